// Writing to bounded tables: keys that are there get new scores, the others are inserted.
#include "table/table_bounded.h"

#include <atomic>
#include <optional>

namespace tfra {
namespace {

// From so many keys on it pays to go stripe by stripe, if most of them are new.
constexpr size_t kManyKeys = 8192;

// The keys of a stripe for which its mutex is held from finding them to inserting them: those of a
// call of 65,536 keys, with room for chance.
constexpr size_t kMostAtOnce = kKeysPerLock + kKeysPerLock / 4;

// Keeps of equal keys the first, and chains the others to it.
void KeepFirst(const KeyBits& bits, uint32_t* next, std::vector<uint32_t>* keys) {
  constexpr size_t kAhead = 16;
  KeyChains chains(bits, keys->size(), next);
  size_t kept = 0;
  for (size_t k = 0; k < keys->size(); ++k) {
    if (k + kAhead < keys->size()) chains.Prefetch((*keys)[k + kAhead]);
    const uint32_t i = (*keys)[k];
    if (chains.Add(i)) (*keys)[kept++] = i;
  }
  keys->resize(kept);
}

}  // namespace

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::WriteBounded(const KeyBits& bits, const KeyGroups& groups,
                                   const Op& prototype, const Scores& scores, const Report& report,
                                   PendingBlobs* new_keys) {
  BoundedCall call{bits, bounds_->StartCall(bits.size(), scores), new_keys, report};
  std::optional<ReadGuard> until_read;  // Rows that are evicted from the file are read at the end.
  if (tiers_ != nullptr) until_read.emplace();
  if (bounds_->is_full() && bounds_->mostly_new() && bits.size() >= kManyKeys) {
    return WriteFull(&call, groups, prototype);
  }
  SharedStatus result;
  std::vector<std::vector<uint32_t>> missing(groups.groups());
  std::atomic<size_t> missing_keys{0};
  std::vector<Evicted> evicted(groups.groups());
  // Nobody has to go, unless other threads take the room: keys can be inserted as they come.
  const bool at_once = !bounds_->exact() && !Admits(prototype) &&
                       bounds_->RoomFor(stripes_.get(), groups.stripe_keys()) == Room::kForAll;
  ParallelFor(groups.groups(), groups.groups(), [&](size_t group) {
    std::vector<uint32_t>& keys = missing[group];
    Status status;
    RunOp(prototype, bits.size(), [&](Op* op, Tally* tally) {
      groups.ForEachRun(group, kKeysPerLock, [&](const uint32_t* order, size_t count) {
        ReadGuard guard;
        GrowBy(&keys, count);
        StripeLocks locks(stripes_.get(), groups.stripes(group));
        const size_t known = keys.size();
        Status updated = UpdateKeys(call, order, count, op, tally, &keys);
        missing_keys += keys.size() - known;
        if (status.ok()) status = std::move(updated);
        if (!at_once) return;
        if (status.ok()) {
          status =
              InsertKeys(keys.data(), keys.size(), Insertion<Op>{call, op, tally, &evicted[group]});
        }
        keys.clear();
      });
    });
    result.Set(std::move(status));
  });
  bounds_->NoteMissing(missing_keys, bits.size());
  result.Set(ReportEvicted(call, &evicted));
  TFRA_RETURN_IF_ERROR(result.Get());
  return InsertMissing(&call, missing, prototype);
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::WriteFull(BoundedCall* call, const KeyGroups& groups, const Op& prototype) {
  std::array<std::vector<uint32_t>, kStripes> keys;
  for (uint32_t s = 0; s < kStripes; ++s) keys[s].reserve(groups.stripe_keys()[s]);
  ParallelFor(groups.groups(), groups.groups(), [&](size_t group) {
    groups.ForEachRun(group, SIZE_MAX, [&](const uint32_t* order, size_t count) {
      for (size_t k = 0; k < count; ++k) {
        keys[StripeOf(Keys::Hash(call->bits[order[k]]))].push_back(order[k]);
      }
    });
  });
  call->has_room = false;
  call->by_stripes = true;
  call->next.reset(new uint32_t[call->bits.size()]);
  SharedStatus result;
  std::vector<Evicted> evicted(kStripes);
  std::atomic<size_t> missing_keys{0};
  // A stripe's part of the index fits into a cache: what was fetched to find keys is there still
  // when they are inserted. Stripes evict for themselves, so none has to wait for the others.
  ParallelFor(kStripes, ThreadsFor(call->bits.size()), [&](size_t s) {
    const std::vector<uint32_t>& all = keys[s];
    if (all.empty()) return;
    Status status;
    RunOp(prototype, all.size(), [&](Op* op, Tally* tally) {
      std::vector<uint32_t> missing;
      missing.reserve(all.size());
      Insertion<Op> insertion{*call, op, tally, &evicted[s]};
      insertion.still_missing = all.size() <= kMostAtOnce;
      const size_t at_once = insertion.still_missing ? all.size() : kKeysPerLock;
      for (size_t k = 0; k < all.size(); k += at_once) {
        ReadGuard guard;
        std::lock_guard lock(stripes_[s].mutex());
        Status updated = UpdateKeys(*call, all.data() + k, std::min(at_once, all.size() - k), op,
                                    tally, &missing);
        if (status.ok()) status = std::move(updated);
        if (!insertion.still_missing || !status.ok()) continue;
        missing_keys += missing.size();
        KeepFirst(call->bits, call->next.get(), &missing);
        status = InsertKeys(missing.data(), missing.size(), insertion);
      }
      if (insertion.still_missing || !status.ok()) return;
      missing_keys += missing.size();
      status = InsertList(&missing, StripeSet{1} << s, insertion);
    });
    result.Set(std::move(status));
  });
  bounds_->NoteMissing(missing_keys, call->bits.size());
  result.Set(ReportEvicted(*call, &evicted));
  return result.Get();
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::InsertMissing(BoundedCall* call,
                                    const std::vector<std::vector<uint32_t>>& missing,
                                    const Op& prototype) {
  size_t total = 0;
  for (const std::vector<uint32_t>& keys : missing) total += keys.size();
  if (total == 0) return Status::Ok();
  // Stripes evict for themselves, and one after the other is kinder to the caches. Only while they
  // compete for the last room, or for the keys of an exact table, one thread goes through all keys
  // in their order: so what becomes of them does not depend on the number of threads.
  std::array<uint64_t, kStripes> more{};
  for (const std::vector<uint32_t>& keys : missing) {
    for (const uint32_t i : keys) ++more[StripeOf(Keys::Hash(call->bits[i]))];
  }
  const Room room = bounds_->RoomFor(stripes_.get(), more);
  call->has_room = room == Room::kForAll;
  const bool together = bounds_->exact() || room == Room::kForSome;
  std::vector<std::vector<uint32_t>> lists(together ? 1 : kStripes);
  for (const std::vector<uint32_t>& keys : missing) {
    for (const uint32_t i : keys) {
      lists[together ? 0 : StripeOf(Keys::Hash(call->bits[i]))].push_back(i);
    }
  }
  if (together) std::sort(lists[0].begin(), lists[0].end());
  // Where admission decides, equal keys are seen once.
  if (!call->has_room || Admits(prototype)) call->next.reset(new uint32_t[call->bits.size()]);
  SharedStatus result;
  std::vector<Evicted> evicted(lists.size());
  ParallelFor(lists.size(), ThreadsFor(total), [&](size_t list) {
    const StripeSet stripes = together ? kAllStripes : StripeSet{1} << list;
    RunOp(prototype, lists[list].size(), [&](Op* op, Tally* tally) {
      result.Set(
          InsertList(&lists[list], stripes, Insertion<Op>{*call, op, tally, &evicted[list]}));
    });
  });
  result.Set(ReportEvicted(*call, &evicted));
  return result.Get();
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::InsertList(std::vector<uint32_t>* keys, StripeSet stripes,
                                 const Insertion<Op>& insertion) {
  const BoundedCall& call = insertion.call;
  if (call.next != nullptr) KeepFirst(call.bits, call.next.get(), keys);
  for (size_t k = 0; k < keys->size(); k += kKeysPerLock) {
    ReadGuard guard;
    StripeLocks locks(stripes_.get(), stripes);
    TFRA_RETURN_IF_ERROR(
        InsertKeys(keys->data() + k, std::min(kKeysPerLock, keys->size() - k), insertion));
  }
  return Status::Ok();
}

template <typename Keys>
Status TableOf<Keys>::ReportEvicted(const BoundedCall& call, std::vector<Evicted>* evicted) const {
  Status status;
  if (call.report.evicted == nullptr) return status;
  for (auto& [rows, slow] : *evicted) {
    if (rows.size == 0) continue;
    Status read = FillRows(&slow, &rows);
    if (status.ok()) status = std::move(read);
    AppendBatch(&rows, call.report.evicted);
  }
  return status;
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::UpdateKeys(const BoundedCall& call, const uint32_t* order, size_t count,
                                 Op* op, Tally* tally, std::vector<uint32_t>* missing) const {
  Status status;
  const KeyBits& bits = call.bits;
  const size_t known = missing->size();
  BucketArray arrays[kStripes];
  for (uint32_t s = 0; s < kStripes; ++s) arrays[s] = *stripes_[s].array();
  const bool mostly_new = call.by_stripes;
  const auto fetch = [&](size_t i) TFRA_INLINE {
    if (mostly_new) return;
    op->Fetch(i);
    const uint64_t hash = Keys::Hash(bits[i]);
    const BucketArray& array = arrays[StripeOf(hash)];
    PrefetchScores(array, array.HomeOf(hash), 1);
    if (spec_.metadata) {
      __builtin_prefetch(array.metadata() + array.HomeOf(hash) * kBucketEntries, 1);
    }
  };
  const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
    if (probe.row == nullptr) {
      missing->push_back(static_cast<uint32_t>(i));
      return true;
    }
    if (!HasKey(probe.row, bits.bytes(i))) return false;
    const BucketArray& array = arrays[StripeOf(Keys::Hash(bits[i]))];
    const uint32_t mask = probe.bucket->Match(bits[i], probe.state);
    const Stripe::Entry entry{probe.bucket, static_cast<uint32_t>(__builtin_ctz(mask))};
    UpdateEntry(call, array, i, entry, probe.row, op, tally);
    return true;
  };
  const auto late = [&](size_t i) {
    const uint64_t hash = Keys::Hash(bits[i]);
    if (const auto entry = FindEntry(StripeFor(hash), bits, i)) {
      std::byte* row;
      const Status fetched = RowToWrite(&StripeFor(hash), entry, Op::kChangesRows, &row);
      if (fetched.ok()) UpdateEntry(call, arrays[StripeOf(hash)], i, entry, row, op, tally);
      if (status.ok()) status = fetched;
    } else {
      missing->push_back(static_cast<uint32_t>(i));
    }
  };
  Probes<Op::kChangesRows ? Access::kRow : Access::kEntry>(
      bits.data(), count, op->row_bytes(), [=](size_t k) TFRA_INLINE { return order[k]; }, fetch,
      visit, late);
  // Keys that were decided late come after all others: put them in their places.
  const auto begin = missing->begin() + static_cast<std::ptrdiff_t>(known);
  const auto later = std::is_sorted_until(begin, missing->end());
  std::sort(later, missing->end());
  std::inplace_merge(begin, later, missing->end());
  return status;
}

#define TFRA_INSTANTIATE(Keys, Op)                                                         \
  template Status TableOf<Keys>::WriteBounded(const KeyBits&, const KeyGroups&, const Op&, \
                                              const Scores&, const Report&, PendingBlobs*);
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, IntKeys)
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, StringKeys)

}  // namespace tfra
