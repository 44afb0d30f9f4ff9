// Writing to bounded tables: keys that are there get new scores, the others are inserted.
#include "table_bounded.h"

#include <atomic>
#include <optional>

namespace tfra {
namespace {

// From so many keys on it pays to go shard by shard, if most of them are new.
constexpr size_t kManyKeys = 8192;

// The keys of a shard for which its mutex is held from finding them to inserting them: those of a
// call of 65,536 keys, with room for chance.
constexpr size_t kMostAtOnce = kKeysPerLock + kKeysPerLock / 4;

// Keeps of equal keys the first, and chains the others to it.
void KeepFirst(const Words& words, uint32_t* next, std::vector<uint32_t>* keys) {
  constexpr size_t kAhead = 16;
  KeyChains chains(words, keys->size(), next);
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
Status TableOf<Keys>::WriteBounded(const Words& words, const KeyParts& parts, const Op& prototype,
                                   const Scores& scores, const Report& report,
                                   PendingBlobs* new_keys) {
  BoundedCall call{words, bounds_->StartCall(words.size(), scores), new_keys, report};
  std::optional<EpochGuard> until_read;  // Rows that are evicted from the file are read at the end.
  if (tiers_ != nullptr) until_read.emplace();
  if (bounds_->is_full() && bounds_->mostly_new() && words.size() >= kManyKeys) {
    return WriteFull(&call, parts, prototype);
  }
  std::vector<Status> statuses(parts.parts());
  std::vector<std::vector<uint32_t>> missing(parts.parts());
  std::atomic<size_t> missing_keys{0};
  std::vector<Evicted> evicted(parts.parts());
  // Nobody has to go, unless other threads take the room: keys can be inserted as they come.
  const bool at_once = !bounds_->exact() && !Admits(prototype) &&
                       bounds_->RoomFor(shards_.get(), parts.shard_keys()) == Room::kForAll;
  ParallelFor(parts.parts(), parts.parts(), [&](size_t part) {
    std::vector<uint32_t>& keys = missing[part];
    RunOp(prototype, words.size(), [&](Op* op, Tally* tally) {
      parts.ForEachRun(part, kKeysPerLock, [&](const uint32_t* order, size_t count) {
        EpochGuard guard;
        GrowBy(&keys, count);
        ShardLocks locks(shards_.get(), parts.shards(part));
        const size_t known = keys.size();
        Status updated = UpdateKeys(call, order, count, op, tally, &keys);
        missing_keys += keys.size() - known;
        if (statuses[part].ok()) statuses[part] = std::move(updated);
        if (!at_once) return;
        if (statuses[part].ok()) {
          statuses[part] =
              InsertKeys(keys.data(), keys.size(), Insertion<Op>{call, op, tally, &evicted[part]});
        }
        keys.clear();
      });
    });
  });
  bounds_->NoteMissing(missing_keys, words.size());
  ReportEvicted(call, &evicted, &statuses);
  TFRA_RETURN_IF_ERROR(FirstError(statuses));
  return InsertMissing(&call, missing, prototype);
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::WriteFull(BoundedCall* call, const KeyParts& parts, const Op& prototype) {
  std::array<std::vector<uint32_t>, kShards> keys;
  for (uint32_t s = 0; s < kShards; ++s) keys[s].reserve(parts.shard_keys()[s]);
  ParallelFor(parts.parts(), parts.parts(), [&](size_t part) {
    parts.ForEachRun(part, SIZE_MAX, [&](const uint32_t* order, size_t count) {
      for (size_t k = 0; k < count; ++k) {
        keys[ShardOf(Keys::Hash(call->words[order[k]]))].push_back(order[k]);
      }
    });
  });
  call->has_room = false;
  call->by_shards = true;
  call->next.reset(new uint32_t[call->words.size()]);
  std::vector<Status> statuses(kShards);
  std::vector<Evicted> evicted(kShards);
  std::atomic<size_t> missing_keys{0};
  // A shard's part of the index fits into a cache: what was fetched to find keys is there still
  // when they are inserted. Shards evict for themselves, so none has to wait for the others.
  ParallelFor(kShards, ThreadsFor(call->words.size()), [&](size_t s) {
    const std::vector<uint32_t>& all = keys[s];
    if (all.empty()) return;
    RunOp(prototype, all.size(), [&](Op* op, Tally* tally) {
      std::vector<uint32_t> missing;
      missing.reserve(all.size());
      Insertion<Op> insertion{*call, op, tally, &evicted[s]};
      insertion.still_missing = all.size() <= kMostAtOnce;
      const size_t at_once = insertion.still_missing ? all.size() : kKeysPerLock;
      for (size_t k = 0; k < all.size(); k += at_once) {
        EpochGuard guard;
        std::lock_guard lock(shards_[s].mutex());
        Status updated = UpdateKeys(*call, all.data() + k, std::min(at_once, all.size() - k), op,
                                    tally, &missing);
        if (statuses[s].ok()) statuses[s] = std::move(updated);
        if (!insertion.still_missing || !statuses[s].ok()) continue;
        missing_keys += missing.size();
        KeepFirst(call->words, call->next.get(), &missing);
        statuses[s] = InsertKeys(missing.data(), missing.size(), insertion);
      }
      if (insertion.still_missing || !statuses[s].ok()) return;
      missing_keys += missing.size();
      statuses[s] = InsertList(&missing, ShardSet{1} << s, insertion);
    });
  });
  bounds_->NoteMissing(missing_keys, call->words.size());
  ReportEvicted(*call, &evicted, &statuses);
  return FirstError(statuses);
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::InsertMissing(BoundedCall* call,
                                    const std::vector<std::vector<uint32_t>>& missing,
                                    const Op& prototype) {
  size_t total = 0;
  for (const std::vector<uint32_t>& keys : missing) total += keys.size();
  if (total == 0) return Status::Ok();
  // Shards evict for themselves, and one after the other is kinder to the caches. Only while they
  // compete for the last room, or for the keys of an exact table, one thread goes through all keys
  // in their order: so what becomes of them does not depend on the number of threads.
  std::array<uint64_t, kShards> more{};
  for (const std::vector<uint32_t>& keys : missing) {
    for (const uint32_t i : keys) ++more[ShardOf(Keys::Hash(call->words[i]))];
  }
  const Room room = bounds_->RoomFor(shards_.get(), more);
  call->has_room = room == Room::kForAll;
  const bool together = bounds_->exact() || room == Room::kForSome;
  std::vector<std::vector<uint32_t>> lists(together ? 1 : kShards);
  for (const std::vector<uint32_t>& keys : missing) {
    for (const uint32_t i : keys) {
      lists[together ? 0 : ShardOf(Keys::Hash(call->words[i]))].push_back(i);
    }
  }
  if (together) std::sort(lists[0].begin(), lists[0].end());
  // Where admission decides, equal keys are seen once.
  if (!call->has_room || Admits(prototype)) call->next.reset(new uint32_t[call->words.size()]);
  std::vector<Status> statuses(lists.size());
  std::vector<Evicted> evicted(lists.size());
  ParallelFor(lists.size(), ThreadsFor(total), [&](size_t list) {
    const ShardSet shards = together ? kAllShards : ShardSet{1} << list;
    RunOp(prototype, lists[list].size(), [&](Op* op, Tally* tally) {
      statuses[list] =
          InsertList(&lists[list], shards, Insertion<Op>{*call, op, tally, &evicted[list]});
    });
  });
  ReportEvicted(*call, &evicted, &statuses);
  return FirstError(statuses);
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::InsertList(std::vector<uint32_t>* keys, ShardSet shards,
                                 const Insertion<Op>& insertion) {
  const BoundedCall& call = insertion.call;
  if (call.next != nullptr) KeepFirst(call.words, call.next.get(), keys);
  for (size_t k = 0; k < keys->size(); k += kKeysPerLock) {
    EpochGuard guard;
    ShardLocks locks(shards_.get(), shards);
    TFRA_RETURN_IF_ERROR(
        InsertKeys(keys->data() + k, std::min(kKeysPerLock, keys->size() - k), insertion));
  }
  return Status::Ok();
}

template <typename Keys>
void TableOf<Keys>::ReportEvicted(const BoundedCall& call, std::vector<Evicted>* evicted,
                                  std::vector<Status>* statuses) const {
  if (call.report.evicted == nullptr) return;
  for (size_t list = 0; list < evicted->size(); ++list) {
    auto& [rows, slow] = (*evicted)[list];
    if (rows.size == 0) continue;
    const Status read = FillRows(&slow, &rows);
    if ((*statuses)[list].ok()) (*statuses)[list] = read;
    AppendBatch(&rows, call.report.evicted);
  }
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::UpdateKeys(const BoundedCall& call, const uint32_t* order, size_t count,
                                 Op* op, Tally* tally, std::vector<uint32_t>* missing) const {
  Status status;
  const Words& words = call.words;
  const size_t known = missing->size();
  BucketArray arrays[kShards];
  for (uint32_t s = 0; s < kShards; ++s) arrays[s] = *shards_[s].array();
  const bool mostly_new = call.by_shards;
  const auto fetch = [&](size_t i) TFRA_INLINE {
    if (mostly_new) return;
    op->Fetch(i);
    const uint64_t hash = Keys::Hash(words[i]);
    const BucketArray& array = arrays[ShardOf(hash)];
    PrefetchScores(array, array.HomeOf(hash), 1);
    if (options_.metadata) {
      __builtin_prefetch(array.metadata() + array.HomeOf(hash) * kBucketEntries, 1);
    }
  };
  const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
    if (probe.row == nullptr) {
      missing->push_back(static_cast<uint32_t>(i));
      return true;
    }
    if (!HasKey(probe.row, words.bytes(i))) return false;
    const BucketArray& array = arrays[ShardOf(Keys::Hash(words[i]))];
    const uint32_t mask = probe.bucket->Match(words[i], probe.state);
    const Shard::Entry entry{probe.bucket, static_cast<uint32_t>(__builtin_ctz(mask))};
    UpdateEntry(call, array, i, entry, probe.row, op, tally);
    return true;
  };
  const auto late = [&](size_t i) {
    const uint64_t hash = Keys::Hash(words[i]);
    if (const auto entry = FindEntry(ShardFor(hash), words, i)) {
      std::byte* row;
      const Status fetched = RowToWrite(&ShardFor(hash), entry, Op::kChangesRows, &row);
      if (fetched.ok()) UpdateEntry(call, arrays[ShardOf(hash)], i, entry, row, op, tally);
      if (status.ok()) status = fetched;
    } else {
      missing->push_back(static_cast<uint32_t>(i));
    }
  };
  Probes<Op::kChangesRows ? Access::kRow : Access::kEntry>(
      words.data(), count, op->row_bytes(), [=](size_t k) TFRA_INLINE { return order[k]; }, fetch,
      visit, late);
  // Keys that were decided late come after all others: put them in their places.
  const auto begin = missing->begin() + static_cast<std::ptrdiff_t>(known);
  const auto later = std::is_sorted_until(begin, missing->end());
  std::sort(later, missing->end());
  std::inplace_merge(begin, later, missing->end());
  return status;
}

#define TFRA_INSTANTIATE(Keys, Op)                                                      \
  template Status TableOf<Keys>::WriteBounded(const Words&, const KeyParts&, const Op&, \
                                              const Scores&, const Report&, PendingBlobs*);
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, IntKeys)
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, StringKeys)

}  // namespace tfra
