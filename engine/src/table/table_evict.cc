// Inserting into bounded tables: full ones evict, or reject.
#include "table/table_bounded.h"

namespace tfra {

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::InsertKeys(const uint32_t* keys, size_t count, Insertion<Op> insertion) {
  // An eviction reads scores, then the index entry of the lowest one, then its row. Each is asked
  // for some keys ahead, so that it has arrived when the next is to be found.
  constexpr size_t kToLikely = 8, kToRow = 4, kAhead = 16;
  const bool evicts = !insertion.call.has_room && !bounds_->exact();
  const auto hash_of = [&](size_t k) { return Keys::Hash(insertion.call.bits[keys[k]]); };
  Candidate likely[kAhead];
  const BucketArray* likely_in[kAhead];
  uint64_t inserted[kToLikely];  // The scores of the last keys that got in.
  std::fill_n(inserted, kToLikely, kNoScore);
  for (size_t step = 0; step < count + kAhead; ++step) {
    if (step < count) {
      insertion.op->Fetch(keys[step]);
      const uint64_t hash = hash_of(step);
      const BucketArray& array = *StripeFor(hash).array();
      const uint64_t home = array.HomeOf(hash);
      __builtin_prefetch(array.buckets + home, 1);
      PrefetchScores(array, home, evicts ? kCandidateBuckets : 1);
      bounds_->PrefetchMemory(array.PositionOf(hash));
    }
    if (const size_t k = step - (kAhead - kToLikely); evicts && k < count) {
      likely[k % kAhead] = LowestNear(stripes_.get(), hash_of(k));
      likely_in[k % kAhead] = StripeFor(hash_of(k)).array();
      __builtin_prefetch(likely[k % kAhead].entry.bucket, 1);
    }
    if (const size_t k = step - (kAhead - kToRow); evicts && k < count) {
      const Stripe::Entry entry = likely[k % kAhead].entry;
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
  const KeyBits& bits = call.bits;
  Op* const op = insertion->op;
  Tally* const tally = insertion->tally;
  const uint64_t hash = Keys::Hash(bits[i]);
  Stripe& stripe = StripeFor(hash);
  Stripe::Entry entry;
  // Another thread may have inserted it since, or an equal key that is not chained to it.
  if (!insertion->still_missing) entry = FindEntry(stripe, bits, i);
  if (entry) {
    std::byte* row;
    TFRA_RETURN_IF_ERROR(RowToWrite(&stripe, entry, Op::kChangesRows, &row));
    for (; i != kEnd; i = call.Next(i)) {
      UpdateEntry(call, *stripe.array(), i, entry, row, op, tally);
    }
    return Status::Ok();
  }

  for (; i != kEnd && !op->Inserts(i); i = call.Next(i)) ++tally->ignored;
  if (i == kEnd) return Status::Ok();
  bool enters;
  uint32_t seen;
  TFRA_RETURN_IF_ERROR(Enters(bits, i, op->context, &enters, &seen));
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
      call.scoring.Score(bounds_->Recall(stripe.array()->PositionOf(hash)), occurrences);
  TFRA_RETURN_IF_ERROR(InsertScored(i, score, seen, insertion, &entry));
  if (entry) {
    while ((i = call.Next(i)) != kEnd) {
      UpdateRow(stripe.array(), i, entry, RowAt(entry.row()), op, tally);
    }
    return Status::Ok();
  }
  bounds_->Remember(stripe.array()->PositionOf(hash), score);
  for (; i != kEnd; i = call.Next(i)) {
    if (!op->Inserts(i)) {
      ++tally->ignored;
      continue;
    }
    ++tally->rejections;
    if (call.report.rejected != nullptr) call.report.rejected[i] = true;
    if constexpr (requires { op->Reject(i, bits[i]); }) op->Reject(i, bits[i]);
  }
  return Status::Ok();
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::InsertScored(size_t i, uint64_t score, uint32_t seen,
                                   Insertion<Op>* insertion, Stripe::Entry* entry) {
  const BoundedCall& call = insertion->call;
  const uint64_t hash = Keys::Hash(call.bits[i]);
  Stripe& stripe = StripeFor(hash);
  // Done before, unless other threads removed the key since.
  if constexpr (Keys::kStrings) {
    TFRA_RETURN_IF_ERROR(call.new_keys->Make(i, call.bits.bytes(i), "key"));
  }
  // Not at the start of a call, as in other tables, but after so many keys of the stripe: who is
  // near whom must not depend on how keys were split over threads.
  if (bounds_->CountInsert(StripeOf(hash)) % kKeysPerLock == 0 || stripe.NeedsReseed()) {
    const uint64_t seed = stripe.array()->seed;
    stripe.Tidy();
    // An eviction of an exact table looks at all buckets. Its keys may have come stripe by stripe.
    if (bounds_->exact() && stripe.size() < stripe.limit() / 4) {
      (void)stripe.Rebuild(stripe.size()).ok();
    }
    if (stripe.array()->seed != seed) bounds_->ForgetStripe(stripe.number());
  }
  uint32_t number = 0;
  if (bounds_->TakeRoom(stripe.size())) {
    const Status status = CatchBadAlloc([&] {
      TFRA_RETURN_IF_ERROR(stripe.Grow(stripe.size() + 1));
      return TakeRow(&stripe, &number);
    });
    if (!status.ok()) {
      bounds_->GiveRoom(stripe.size() + 1);
      return status;
    }
  } else {
    const Candidate lowest = LowestCandidate(hash, *insertion);
    if (!lowest.entry || score < lowest.score) return Status::Ok();
    if (lowest.stripe != StripeOf(hash)) TFRA_RETURN_IF_ERROR(stripe.Grow(stripe.size() + 1));
    // In a tiered table the row may be in the file.
    if (tiers_ != nullptr) TFRA_RETURN_IF_ERROR(TakeRow(&stripe, &number));
    uint32_t left;
    try {
      left = Evict(lowest, insertion);
    } catch (const std::bad_alloc&) {
      if (tiers_ != nullptr) stripe.GiveRow(number);
      throw;
    }
    if (tiers_ == nullptr) {
      number = left;
    } else {
      DropRow(&stripes_[lowest.stripe], left, insertion->tally);
    }
  }
  EditRow(RowAt(number), layout_.stride, [&](std::byte* row) {
    insertion->op->Fill(i, call.bits[i], row);
    if constexpr (Keys::kStrings) {
      Blob* key = call.new_keys->Take(i);
      insertion->tally->string_bytes += static_cast<int64_t>(key->allocated_bytes());
      StoreBlob(row + layout_.key_offset, key);
    }
  });
  *entry =
      stripe.Insert(call.bits[i], hash, number, {score, FreshMetadata(*insertion->op, i, seen)});
  NoteEntered(call.bits, i);
  insertion->inserted = score;
  ++insertion->tally->inserts;
  return Status::Ok();
}

template <typename Keys>
template <typename Op>
Candidate TableOf<Keys>::LowestCandidate(uint64_t hash, const Insertion<Op>& insertion) const {
  if (bounds_->exact()) return LowestOfAll(stripes_.get());
  const Stripe& stripe = StripeFor(hash);
  const Candidate& likely = insertion.likely;
  const bool still = likely.entry && insertion.likely_in == stripe.array() &&
                     stripe.score(likely.entry) == likely.score &&
                     insertion.lowest_since >= likely.score;
  return still ? likely : LowestNear(stripes_.get(), hash);
}

template <typename Keys>
template <typename Op>
uint32_t TableOf<Keys>::Evict(const Candidate& candidate, Insertion<Op>* insertion) {
  Tally* const tally = insertion->tally;
  const Stripe::Entry entry = candidate.entry;
  const uint64_t key_bits = entry.key_bits();
  const uint32_t row = entry.row();
  PrepareDrop(&stripes_[candidate.stripe], 1, tally);
  if (insertion->call.report.evicted != nullptr) {
    auto& [rows, slow] = *insertion->evicted;
    AppendEntry(key_bits, row, &rows, &slow);
    AppendColumns(*stripes_[candidate.stripe].array(), entry.bucket, entry.index, &rows);
  }
  stripes_[candidate.stripe].Erase(entry);
  DropStrings(row, tally);
  const BucketArray& array = *stripes_[candidate.stripe].array();
  bounds_->Remember(array.PositionOf(Keys::Hash(key_bits)), candidate.score);
  ++tally->evictions;
  return row;
}

#define TFRA_INSTANTIATE(Keys, Op) \
  template Status TableOf<Keys>::InsertKeys(const uint32_t*, size_t, Insertion<Op>);
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, IntKeys)
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, StringKeys)

}  // namespace tfra
