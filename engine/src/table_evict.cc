// Inserting into bounded tables: full ones evict, or reject.
#include "table_bounded.h"

namespace tfra {

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::InsertKeys(const uint32_t* keys, size_t count, Insertion<Op> insertion) {
  // An eviction reads scores, then the index entry of the lowest one, then its row. Each is asked
  // for some keys ahead, so that it has arrived when the next is to be found.
  constexpr size_t kToLikely = 8, kToRow = 4, kAhead = 16;
  const bool evicts = !insertion.call.has_room && !bounds_->exact();
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
      bounds_->PrefetchMemory(array.PositionOf(hash));
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
  Shard::Entry entry;
  // Another thread may have inserted it since, or an equal key that is not chained to it.
  if (!insertion->still_missing) entry = FindEntry(shard, words, i);
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
  const uint64_t score =
      call.scoring.Score(bounds_->Recall(shard.array()->PositionOf(hash)), occurrences);
  TFRA_RETURN_IF_ERROR(InsertScored(i, score, seen, insertion, &entry));
  if (entry) {
    while ((i = call.Next(i)) != kEnd) {
      UpdateRow(shard.array(), i, entry, RowAt(entry.row()), op, tally);
    }
    return Status::Ok();
  }
  bounds_->Remember(shard.array()->PositionOf(hash), score);
  for (; i != kEnd; i = call.Next(i)) {
    if (!op->Inserts(i)) {
      ++tally->ignored;
      continue;
    }
    ++tally->rejections;
    if (call.report.rejected != nullptr) call.report.rejected[i] = true;
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
  if (bounds_->CountInsert(ShardOf(hash)) % kKeysPerLock == 0 || shard.NeedsReseed()) {
    const uint64_t seed = shard.array()->seed;
    shard.Tidy();
    // An eviction of an exact table looks at all buckets. Its keys may have come shard by shard.
    if (bounds_->exact() && shard.size() < shard.limit() / 4) {
      (void)shard.Rebuild(shard.size()).ok();
    }
    if (shard.array()->seed != seed) bounds_->ForgetShard(shard.number());
  }
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
  if (insertion->call.report.evicted != nullptr) {
    auto& [rows, slow] = *insertion->evicted;
    AppendEntry(word, row, &rows, &slow);
    AppendColumns(*shards_[candidate.shard].array(), entry.bucket, entry.index, &rows);
  }
  shards_[candidate.shard].Erase(entry);
  DropStrings(row, tally);
  const BucketArray& array = *shards_[candidate.shard].array();
  bounds_->Remember(array.PositionOf(Keys::Hash(word)), candidate.score);
  ++tally->evictions;
  return row;
}

#define TFRA_INSTANTIATE(Keys, Op) \
  template Status TableOf<Keys>::InsertKeys(const uint32_t*, size_t, Insertion<Op>);
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, IntKeys)
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, StringKeys)

}  // namespace tfra
