#include "bounded/bounded_writer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>

#include "reading/batch_rows.h"
#include "tiers/row_mover.h"

namespace tfra {
namespace {

// Calls of at least this many keys go stripe by stripe if most of the keys are new.
constexpr size_t kManyKeys = 8192;

// If a call has at most this many keys of a stripe, the stripe's mutex is held from finding them to
// inserting them. A call of 65,536 keys has fewer, unless its keys are spread very unevenly.
constexpr size_t kMostAtOnce = kKeysPerLock + kKeysPerLock / 4;

// Keeps the first of equal keys, and chains the others to it.
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

template <typename Keys, typename Op>
Status BoundedWriter<Keys, Op>::Write(const Scores& scores) {
  BoundedCall call{bits_, state_.bounds->StartCall(bits_.size(), scores), new_keys_, report_};
  std::optional<ReadGuard> until_read;  // Evicted rows that are in the file are read at the end.
  if (state_.tiers != nullptr) until_read.emplace();
  if (state_.bounds->is_full() && state_.bounds->mostly_new() && bits_.size() >= kManyKeys) {
    return WriteFull(&call);
  }
  SharedStatus result;
  std::vector<std::vector<uint32_t>> missing(groups_.groups());
  std::atomic<size_t> missing_keys{0};
  std::vector<Evicted> evicted(groups_.groups());
  // If there is room for all keys, none is evicted, unless other threads take the room: new keys
  // can be inserted at once.
  const bool at_once =
      !state_.bounds->exact() && !Admits(state_, prototype_) &&
      state_.bounds->RoomFor(state_.stripes.get(), groups_.stripe_keys()) == Room::kForAll;
  ParallelFor(groups_.groups(), groups_.groups(), [&](size_t group) {
    std::vector<uint32_t>& keys = missing[group];
    Status status;
    RunOp(state_, prototype_, bits_.size(), [&](Op* op, Tally* tally) {
      groups_.ForEachRun(group, kKeysPerLock, [&](const uint32_t* order, size_t count) {
        ReadGuard guard;
        GrowBy(&keys, count);
        StripeLocks locks(state_.stripes.get(), groups_.stripes(group));
        const size_t known = keys.size();
        Status updated = UpdateKeys(call, order, count, op, tally, &keys);
        missing_keys += keys.size() - known;
        if (status.ok()) status = std::move(updated);
        if (!at_once) return;
        if (status.ok()) {
          status = BoundedInserter<Keys, Op>(state_, call, op, tally, &evicted[group])
                       .Insert(keys.data(), keys.size());
        }
        keys.clear();
      });
    });
    result.Set(std::move(status));
  });
  state_.bounds->NoteMissing(missing_keys, bits_.size());
  result.Set(ReportEvicted(&evicted));
  TFRA_RETURN_IF_ERROR(result.Get());
  return InsertMissing(&call, missing);
}

template <typename Keys, typename Op>
Status BoundedWriter<Keys, Op>::WriteFull(BoundedCall* call) {
  std::array<std::vector<uint32_t>, kStripes> keys;
  for (uint32_t s = 0; s < kStripes; ++s) keys[s].reserve(groups_.stripe_keys()[s]);
  ParallelFor(groups_.groups(), groups_.groups(), [&](size_t group) {
    groups_.ForEachRun(group, SIZE_MAX, [&](const uint32_t* order, size_t count) {
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
  // The index of one stripe fits into a cache: buckets that were fetched to find keys are still
  // there when missing keys are inserted. Each stripe evicts its own keys, so no stripe has to wait
  // for others.
  ParallelFor(kStripes, ThreadsFor(call->bits.size()), [&](size_t s) {
    const std::vector<uint32_t>& all = keys[s];
    if (all.empty()) return;
    Status status;
    RunOp(state_, prototype_, all.size(), [&](Op* op, Tally* tally) {
      std::vector<uint32_t> missing;
      missing.reserve(all.size());
      const bool still_missing = all.size() <= kMostAtOnce;
      BoundedInserter<Keys, Op> inserter(state_, *call, op, tally, &evicted[s], still_missing);
      const size_t at_once = still_missing ? all.size() : kKeysPerLock;
      for (size_t k = 0; k < all.size(); k += at_once) {
        ReadGuard guard;
        std::lock_guard lock(state_.stripes[s].mutex());
        Status updated = UpdateKeys(*call, all.data() + k, std::min(at_once, all.size() - k), op,
                                    tally, &missing);
        if (status.ok()) status = std::move(updated);
        if (!still_missing || !status.ok()) continue;
        missing_keys += missing.size();
        KeepFirst(call->bits, call->next.get(), &missing);
        status = inserter.Insert(missing.data(), missing.size());
      }
      if (still_missing || !status.ok()) return;
      missing_keys += missing.size();
      status = InsertList(*call, &missing, StripeSet{1} << s, &inserter);
    });
    result.Set(std::move(status));
  });
  state_.bounds->NoteMissing(missing_keys, call->bits.size());
  result.Set(ReportEvicted(&evicted));
  return result.Get();
}

template <typename Keys, typename Op>
Status BoundedWriter<Keys, Op>::InsertMissing(BoundedCall* call,
                                              const std::vector<std::vector<uint32_t>>& missing) {
  size_t total = 0;
  for (const std::vector<uint32_t>& keys : missing) total += keys.size();
  if (total == 0) return Status::Ok();
  // Each stripe evicts its own keys, and going stripe by stripe uses the caches better. But if
  // stripes compete for the last room, or if the table is exact, one thread goes through all keys
  // in batch order, so that the result does not depend on the number of threads.
  std::array<uint64_t, kStripes> more{};
  for (const std::vector<uint32_t>& keys : missing) {
    for (const uint32_t i : keys) ++more[StripeOf(Keys::Hash(call->bits[i]))];
  }
  const Room room = state_.bounds->RoomFor(state_.stripes.get(), more);
  call->has_room = room == Room::kForAll;
  const bool together = state_.bounds->exact() || room == Room::kForSome;
  std::vector<std::vector<uint32_t>> lists(together ? 1 : kStripes);
  for (const std::vector<uint32_t>& keys : missing) {
    for (const uint32_t i : keys) {
      lists[together ? 0 : StripeOf(Keys::Hash(call->bits[i]))].push_back(i);
    }
  }
  if (together) std::sort(lists[0].begin(), lists[0].end());
  // Admission counts equal keys of a call once, so they must be chained.
  if (!call->has_room || Admits(state_, prototype_))
    call->next.reset(new uint32_t[call->bits.size()]);
  SharedStatus result;
  std::vector<Evicted> evicted(lists.size());
  ParallelFor(lists.size(), ThreadsFor(total), [&](size_t list) {
    const StripeSet stripes = together ? kAllStripes : StripeSet{1} << list;
    RunOp(state_, prototype_, lists[list].size(), [&](Op* op, Tally* tally) {
      BoundedInserter<Keys, Op> inserter(state_, *call, op, tally, &evicted[list]);
      result.Set(InsertList(*call, &lists[list], stripes, &inserter));
    });
  });
  result.Set(ReportEvicted(&evicted));
  return result.Get();
}

template <typename Keys, typename Op>
Status BoundedWriter<Keys, Op>::InsertList(const BoundedCall& call, std::vector<uint32_t>* keys,
                                           StripeSet stripes,
                                           BoundedInserter<Keys, Op>* inserter) const {
  if (call.next != nullptr) KeepFirst(call.bits, call.next.get(), keys);
  for (size_t k = 0; k < keys->size(); k += kKeysPerLock) {
    ReadGuard guard;
    StripeLocks locks(state_.stripes.get(), stripes);
    TFRA_RETURN_IF_ERROR(
        inserter->Insert(keys->data() + k, std::min(kKeysPerLock, keys->size() - k)));
  }
  return Status::Ok();
}

template <typename Keys, typename Op>
Status BoundedWriter<Keys, Op>::ReportEvicted(std::vector<Evicted>* evicted) const {
  Status status;
  if (report_.evicted == nullptr) return status;
  for (auto& [rows, slow] : *evicted) {
    if (rows.size == 0) continue;
    Status read = RowMover(state_).FillRows(&slow, &rows);
    if (status.ok()) status = std::move(read);
    report_.evicted->Append(std::move(rows));
  }
  return status;
}

template <typename Keys, typename Op>
Status BoundedWriter<Keys, Op>::UpdateKeys(const BoundedCall& call, const uint32_t* order,
                                           size_t count, Op* op, Tally* tally,
                                           std::vector<uint32_t>* missing) const {
  const TableState& state = state_;
  const Finder<Keys> finder{state};
  Status status;
  const KeyBits& bits = call.bits;
  const size_t known = missing->size();
  BucketArray arrays[kStripes];
  for (uint32_t s = 0; s < kStripes; ++s) arrays[s] = *state.stripes[s].array();
  const bool mostly_new = call.by_stripes;
  const auto fetch = [&](size_t i) TFRA_INLINE {
    if (mostly_new) return;
    op->Fetch(i);
    const uint64_t hash = Keys::Hash(bits[i]);
    const BucketArray& array = arrays[StripeOf(hash)];
    PrefetchScores(array, array.HomeOf(hash), 1);
    if (state.spec.metadata) {
      __builtin_prefetch(array.metadata() + array.HomeOf(hash) * kBucketEntries, 1);
    }
  };
  const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
    if (probe.row == nullptr) {
      missing->push_back(static_cast<uint32_t>(i));
      return true;
    }
    if (!finder.HasKey(probe.row, bits.bytes(i))) return false;
    const BucketArray& array = arrays[StripeOf(Keys::Hash(bits[i]))];
    const uint32_t mask = probe.bucket->Match(bits[i], probe.state);
    const Stripe::Entry entry{probe.bucket, static_cast<uint32_t>(__builtin_ctz(mask))};
    UpdateEntry(state, call, array, i, entry, probe.row, op, tally);
    return true;
  };
  const auto late = [&](size_t i) {
    const uint64_t hash = Keys::Hash(bits[i]);
    if (const auto entry = finder.FindEntry(state.StripeFor(hash), bits, i)) {
      std::byte* row;
      const Status fetched =
          RowMover(state).RowToWrite(&state.StripeFor(hash), entry, Op::kChangesRows, &row);
      if (fetched.ok()) UpdateEntry(state, call, arrays[StripeOf(hash)], i, entry, row, op, tally);
      if (status.ok()) status = fetched;
    } else {
      missing->push_back(static_cast<uint32_t>(i));
    }
  };
  finder.template Probes<Op::kChangesRows ? Access::kRow : Access::kEntry>(
      bits.data(), count, op->row_bytes(), [=](size_t k) TFRA_INLINE { return order[k]; }, fetch,
      visit, late);
  // Keys for which late() was called are at the end: restore batch order.
  const auto begin = missing->begin() + static_cast<std::ptrdiff_t>(known);
  const auto later = std::is_sorted_until(begin, missing->end());
  std::sort(later, missing->end());
  std::inplace_merge(begin, later, missing->end());
  return status;
}

#define TFRA_INSTANTIATE(Keys, Op) template class BoundedWriter<Keys, Op>;
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, IntKeys)
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, StringKeys)

}  // namespace tfra
