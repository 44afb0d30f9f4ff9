// Writing to bounded tables: scores are renewed, and full tables evict or reject.
#include <algorithm>
#include <optional>

#include "table_write.h"

namespace tfra {
namespace {

// The next of the equal keys that an Op takes as one.
template <typename Op>
uint32_t NextEqual(const Op& op, size_t i) {
  if constexpr (requires { op.next; }) {
    return op.next[i];
  } else {
    return KeyChains::kEnd;
  }
}

template <typename Op>
void AddOccurrences(const Scoring& scoring, const Op& op, size_t i,
                    Scoring::Occurrences* occurrences) {
  scoring.Add(i, occurrences);
  for (uint32_t k = NextEqual(op, i); k != KeyChains::kEnd; k = NextEqual(op, k)) {
    scoring.Add(k, occurrences);
  }
}

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

void PrefetchScores(const BucketArray& array, uint64_t bucket, uint64_t buckets) {
  const uint64_t* first = array.scores() + bucket * kBucketEntries;
  Prefetch<true>(reinterpret_cast<const std::byte*>(first),
                 std::min(buckets, array.count - bucket) * kBucketEntries * sizeof(*first));
}

}  // namespace

template <typename Keys>
struct TableOf<Keys>::BoundedCall {
  const Words& words;
  const Scoring scoring;
  PendingBlobs* const new_keys;
  bool* const rejected;  // Or null.
  // Chains of equal missing keys. Null while there is room for all: then it makes no difference
  // whether equal keys are inserted together or one by one.
  std::unique_ptr<uint32_t[]> next;

  uint32_t Next(size_t i) const { return next == nullptr ? KeyChains::kEnd : next[i]; }
};

// One thread that inserts.
template <typename Keys>
template <typename Op>
struct TableOf<Keys>::Insertion {
  const BoundedCall& call;
  Op* const op;
  Tally* const tally;
  ExportBatch* const evicted;                // Or null.
  std::vector<SlowRow>* const slow_evicted;  // Those of them whose rows were in the file.

  // Found some keys ahead of their turn: the lowest candidate, and the array it is in.
  Candidate likely = {};
  const BucketArray* likely_in = nullptr;
  uint64_t lowest_since = kNoScore;  // Of the keys that were inserted since.
  uint64_t inserted = kNoScore;      // The score of the key whose turn it was, if it got in.
};

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::WriteBounded(const Words& words, const KeyParts& parts, const Op& prototype,
                                   const Scores& scores, const Report& report,
                                   PendingBlobs* new_keys) {
  BoundedCall call{words, bounds_->StartCall(words.size(), scores), new_keys, report.rejected, {}};
  std::vector<Status> statuses(parts.parts());
  std::vector<std::vector<uint32_t>> missing(parts.parts());
  std::vector<ExportBatch> gone(parts.parts());
  std::vector<std::vector<SlowRow>> slow_gone(parts.parts());
  std::optional<EpochGuard> until_read;  // Rows that are evicted from the file are read at the end.
  if (tiers_ != nullptr) until_read.emplace();
  // Nobody has to go, unless other threads take the room: keys can be inserted as they come.
  const bool admits = admission_ != nullptr && prototype.context.new_keys == NewKeys::kAdmit;
  const bool at_once = bounds_->room() >= words.size() && !bounds_->exact() && !admits;
  ParallelFor(parts.parts(), parts.parts(), [&](size_t part) {
    std::vector<uint32_t>& keys = missing[part];
    RunOp(prototype, words.size(), [&](Op* op, Tally* tally) {
      parts.ForEachRun(part, kKeysPerLock, [&](const uint32_t* order, size_t count) {
        EpochGuard guard;
        GrowBy(&keys, count);
        ShardLocks locks(shards_.get(), parts.shards(part));
        Status updated = UpdateKeys(call, order, count, op, tally, &keys);
        if (statuses[part].ok()) statuses[part] = std::move(updated);
        if (!at_once) return;
        if (statuses[part].ok()) {
          ExportBatch* evicted = report.evicted == nullptr ? nullptr : &gone[part];
          statuses[part] = InsertKeys(keys.data(), keys.size(),
                                      Insertion<Op>{call, op, tally, evicted, &slow_gone[part]});
        }
        keys.clear();
      });
    });
  });
  for (size_t part = 0; part < gone.size(); ++part) {
    if (gone[part].size == 0) continue;
    const Status read = FillRows(&slow_gone[part], &gone[part]);
    if (statuses[part].ok()) statuses[part] = read;
    AppendBatch(&gone[part], report.evicted);
  }
  TFRA_RETURN_IF_ERROR(FirstError(statuses));
  return InsertMissing(&call, missing, prototype, report.evicted);
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::InsertMissing(BoundedCall* call,
                                    const std::vector<std::vector<uint32_t>>& missing,
                                    const Op& prototype, ExportBatch* evicted) {
  size_t total = 0;
  for (const std::vector<uint32_t>& keys : missing) total += keys.size();
  if (total == 0) return Status::Ok();
  // Shards evict for themselves, and one after the other is kinder to the caches. Only while they
  // compete for the last room, or for the keys of an exact table, one thread goes through all keys
  // in their order: so what becomes of them does not depend on the number of threads.
  const uint64_t room = bounds_->room();
  const bool together = bounds_->exact() || (room > 0 && room < total);
  std::vector<std::vector<uint32_t>> lists(together ? 1 : kShards);
  for (const std::vector<uint32_t>& keys : missing) {
    for (const uint32_t i : keys) {
      lists[together ? 0 : ShardOf(Keys::Hash(call->words[i]))].push_back(i);
    }
  }
  if (together) std::sort(lists[0].begin(), lists[0].end());
  // Where admission decides, equal keys are seen once.
  const bool admits = admission_ != nullptr && prototype.context.new_keys == NewKeys::kAdmit;
  if (room < total || admits) call->next.reset(new uint32_t[call->words.size()]);
  std::vector<Status> statuses(lists.size());
  std::vector<ExportBatch> gone(lists.size());
  std::vector<std::vector<SlowRow>> slow_gone(lists.size());
  ParallelFor(lists.size(), ThreadsFor(total), [&](size_t list) {
    std::vector<uint32_t>& keys = lists[list];
    const ShardSet shards = together ? kAllShards : ShardSet{1} << list;
    const size_t occurrences = keys.size();
    if (call->next != nullptr) KeepFirst(call->words, call->next.get(), &keys);
    RunOp(prototype, occurrences, [&](Op* op, Tally* tally) {
      for (size_t k = 0; k < keys.size() && statuses[list].ok(); k += kKeysPerLock) {
        EpochGuard guard;
        ShardLocks locks(shards_.get(), shards);
        statuses[list] =
            InsertKeys(keys.data() + k, std::min(kKeysPerLock, keys.size() - k),
                       Insertion<Op>{*call, op, tally, evicted == nullptr ? nullptr : &gone[list],
                                     &slow_gone[list]});
      }
    });
  });
  for (size_t list = 0; list < gone.size(); ++list) {
    if (gone[list].size == 0) continue;
    const Status read = FillRows(&slow_gone[list], &gone[list]);
    if (statuses[list].ok()) statuses[list] = read;
    AppendBatch(&gone[list], evicted);
  }
  return FirstError(statuses);
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
  const auto fetch = [&](size_t i) TFRA_INLINE {
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

template <typename Keys>
template <typename Op>
[[gnu::always_inline]] inline void TableOf<Keys>::UpdateEntry(const BoundedCall& call,
                                                              const BucketArray& array, size_t i,
                                                              Shard::Entry entry, std::byte* row,
                                                              Op* op, Tally* tally) const {
  if (!UpdateRow(array, i, entry, row, op, tally)) return;
  Scoring::Occurrences occurrences;
  AddOccurrences(call.scoring, *op, i, &occurrences);
  uint64_t* score = array.ScoreOf(entry.bucket, entry.index);
  __atomic_store_n(score, call.scoring.Score(*score, occurrences), __ATOMIC_RELAXED);
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::InsertKeys(const uint32_t* keys, size_t count, Insertion<Op> insertion) {
  // An eviction reads scores, then the index entry of the lowest one, then its row. Each is asked
  // for some keys ahead, so that it has arrived when the next is to be found.
  constexpr size_t kToLikely = 8, kToRow = 4, kAhead = 16;
  const bool evicts = bounds_->room() < count && !bounds_->exact();
  const auto hash_of = [&](size_t k) { return Keys::Hash(insertion.call.words[keys[k]]); };
  Candidate likely[kAhead];
  const BucketArray* likely_in[kAhead];
  uint64_t inserted[kToLikely];  // The scores of the last keys that got in.
  std::fill_n(inserted, kToLikely, kNoScore);
  for (size_t step = 0; step < count + kAhead; ++step) {
    if (step < count) {
      insertion.op->Fetch(keys[step]);
      const uint64_t hash = hash_of(step);
      const BucketArray& array = *ShardFor(hash).array();
      const uint64_t home = array.HomeOf(hash);
      __builtin_prefetch(array.buckets + home, 1);
      PrefetchScores(array, home, evicts ? kCandidateBuckets : 1);
      bounds_->PrefetchMemory(hash);
    }
    if (const size_t k = step - (kAhead - kToLikely); evicts && k < count) {
      likely[k % kAhead] = LowestNear(shards_.get(), hash_of(k));
      likely_in[k % kAhead] = ShardFor(hash_of(k)).array();
      __builtin_prefetch(likely[k % kAhead].entry.bucket, 1);
    }
    if (const size_t k = step - (kAhead - kToRow); evicts && k < count) {
      const Shard::Entry entry = likely[k % kAhead].entry;
      if (entry && !IsSlow(entry.row())) Prefetch<true>(RowAt(entry.row()), layout_.stride);
    }
    if (const size_t k = step - kAhead; k < count) {
      if (evicts) {
        insertion.likely = likely[k % kAhead];
        insertion.likely_in = likely_in[k % kAhead];
        insertion.lowest_since = *std::min_element(inserted, inserted + kToLikely);
      }
      insertion.inserted = kNoScore;
      TFRA_RETURN_IF_ERROR(InsertChain(keys[k], &insertion));
      inserted[k % kToLikely] = insertion.inserted;
    }
  }
  return Status::Ok();
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::InsertChain(uint32_t i, Insertion<Op>* insertion) {
  constexpr uint32_t kEnd = KeyChains::kEnd;
  const BoundedCall& call = insertion->call;
  const Words& words = call.words;
  Op* const op = insertion->op;
  Tally* const tally = insertion->tally;
  const uint64_t hash = Keys::Hash(words[i]);
  Shard& shard = ShardFor(hash);
  // Another thread may have inserted it since, or an equal key that is not chained to it.
  Shard::Entry entry = FindEntry(shard, words, i);
  if (entry) {
    std::byte* row;
    TFRA_RETURN_IF_ERROR(RowToWrite(&shard, entry, Op::kChangesRows, &row));
    for (; i != kEnd; i = call.Next(i)) {
      UpdateEntry(call, *shard.array(), i, entry, row, op, tally);
    }
    return Status::Ok();
  }

  for (; i != kEnd && !op->Inserts(i); i = call.Next(i)) ++tally->ignored;
  if (i == kEnd) return Status::Ok();
  bool enters;
  uint32_t seen;
  TFRA_RETURN_IF_ERROR(Enters(words, i, op->context, &enters, &seen));
  if (!enters) {
    uint64_t& refused = std::is_same_v<Op, AccumulateOp> ? tally->ignored : tally->refused;
    for (; i != kEnd; i = call.Next(i)) ++(op->Inserts(i) ? refused : tally->ignored);
    return Status::Ok();
  }
  Scoring::Occurrences occurrences;
  AddOccurrences(call.scoring, *op, i, &occurrences);
  for (uint32_t k = call.Next(i); k != kEnd; k = call.Next(k)) {
    if (op->Updates(k)) AddOccurrences(call.scoring, *op, k, &occurrences);
  }
  const uint64_t score = call.scoring.Score(bounds_->Recall(hash), occurrences);
  TFRA_RETURN_IF_ERROR(InsertScored(i, score, seen, insertion, &entry));
  if (entry) {
    while ((i = call.Next(i)) != kEnd) {
      UpdateRow(*shard.array(), i, entry, RowAt(entry.row()), op, tally);
    }
    return Status::Ok();
  }
  bounds_->Remember(hash, score);
  for (; i != kEnd; i = call.Next(i)) {
    if (!op->Inserts(i)) {
      ++tally->ignored;
      continue;
    }
    ++tally->rejections;
    if (call.rejected != nullptr) call.rejected[i] = true;
    if constexpr (requires { op->Reject(i, words[i]); }) op->Reject(i, words[i]);
  }
  return Status::Ok();
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::InsertScored(size_t i, uint64_t score, uint32_t seen,
                                   Insertion<Op>* insertion, Shard::Entry* entry) {
  const BoundedCall& call = insertion->call;
  const uint64_t hash = Keys::Hash(call.words[i]);
  Shard& shard = ShardFor(hash);
  // Done before, unless other threads removed the key since.
  if constexpr (Keys::kStrings) {
    TFRA_RETURN_IF_ERROR(call.new_keys->Make(i, call.words.bytes(i), "key"));
  }
  // Not at the start of a call, as in other tables, but after so many keys of the shard: who is
  // near whom must not depend on how keys were split over threads.
  if (bounds_->CountInsert(ShardOf(hash)) % kKeysPerLock == 0) shard.Tidy();
  uint32_t number = 0;
  if (bounds_->TakeRoom(shard.size())) {
    const Status status = CatchBadAlloc([&] {
      TFRA_RETURN_IF_ERROR(shard.Grow(shard.size() + 1));
      return TakeRow(&shard, &number);
    });
    if (!status.ok()) {
      bounds_->GiveRoom(shard.size() + 1);
      return status;
    }
  } else {
    const Candidate lowest = LowestCandidate(hash, *insertion);
    if (!lowest.entry || score < lowest.score) return Status::Ok();
    if (lowest.shard != ShardOf(hash)) TFRA_RETURN_IF_ERROR(shard.Grow(shard.size() + 1));
    // In a tiered table the row may be in the file.
    if (tiers_ != nullptr) TFRA_RETURN_IF_ERROR(TakeRow(&shard, &number));
    uint32_t left;
    try {
      left = Evict(lowest, insertion);
    } catch (const std::bad_alloc&) {
      if (tiers_ != nullptr) shard.GiveRow(number);
      throw;
    }
    if (tiers_ == nullptr) {
      number = left;
    } else {
      DropRow(&shards_[lowest.shard], left, insertion->tally);
    }
  }
  EditRow(RowAt(number), layout_.stride, [&](std::byte* row) {
    insertion->op->Fill(i, call.words[i], row);
    if constexpr (Keys::kStrings) {
      Blob* key = call.new_keys->Take(i);
      insertion->tally->string_bytes += static_cast<int64_t>(key->allocated_bytes());
      StoreBlob(row + layout_.key_offset, key);
    }
  });
  *entry =
      shard.Insert(call.words[i], hash, number, {score, FreshMetadata(*insertion->op, i, seen)});
  NoteEntered(call.words, i);
  insertion->inserted = score;
  ++insertion->tally->inserts;
  return Status::Ok();
}

template <typename Keys>
template <typename Op>
Candidate TableOf<Keys>::LowestCandidate(uint64_t hash, const Insertion<Op>& insertion) const {
  if (bounds_->exact()) return LowestOfAll(shards_.get());
  const Shard& shard = ShardFor(hash);
  const Candidate& likely = insertion.likely;
  const bool still = likely.entry && insertion.likely_in == shard.array() &&
                     shard.score(likely.entry) == likely.score &&
                     insertion.lowest_since >= likely.score;
  return still ? likely : LowestNear(shards_.get(), hash);
}

template <typename Keys>
template <typename Op>
uint32_t TableOf<Keys>::Evict(const Candidate& candidate, Insertion<Op>* insertion) {
  Tally* const tally = insertion->tally;
  const Shard::Entry entry = candidate.entry;
  const uint64_t word = entry.word();
  const uint32_t row = entry.row();
  PrepareDrop(&shards_[candidate.shard], 1, tally);
  if (insertion->evicted != nullptr) {
    AppendEntry(word, row, insertion->evicted, insertion->slow_evicted);
    AppendColumns(*shards_[candidate.shard].array(), entry.bucket, entry.index, insertion->evicted);
  }
  shards_[candidate.shard].Erase(entry);
  DropStrings(row, tally);
  bounds_->Remember(Keys::Hash(word), candidate.score);
  ++tally->evictions;
  return row;
}

#define TFRA_INSTANTIATE_OP(Keys, Op)                                                   \
  template Status TableOf<Keys>::WriteBounded(const Words&, const KeyParts&, const Op&, \
                                              const Scores&, const Report&, PendingBlobs*);
#define TFRA_INSTANTIATE(Keys)               \
  TFRA_INSTANTIATE_OP(Keys, AssignOp<0>)     \
  TFRA_INSTANTIATE_OP(Keys, AssignOp<32>)    \
  TFRA_INSTANTIATE_OP(Keys, AssignOp<64>)    \
  TFRA_INSTANTIATE_OP(Keys, AssignOp<128>)   \
  TFRA_INSTANTIATE_OP(Keys, AssignOp<256>)   \
  TFRA_INSTANTIATE_OP(Keys, AssignStringsOp) \
  TFRA_INSTANTIATE_OP(Keys, AccumulateOp)    \
  TFRA_INSTANTIATE_OP(Keys, AddToRowOp)      \
  TFRA_INSTANTIATE_OP(Keys, GradientOp)      \
  TFRA_INSTANTIATE_OP(Keys, TouchOp)         \
  TFRA_INSTANTIATE_OP(Keys, FindOrInsertOp)  \
  TFRA_INSTANTIATE_OP(Keys, FindOrInsertStringsOp)
TFRA_INSTANTIATE(IntKeys)
TFRA_INSTANTIATE(StringKeys)

}  // namespace tfra
