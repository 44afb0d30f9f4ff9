#include "bounded/bounded_inserter.h"

#include <algorithm>

#include "reading/batch_rows.h"
#include "tiers/row_mover.h"

namespace tfra {

template <typename Keys, typename Op>
Status BoundedInserter<Keys, Op>::Insert(const uint32_t* keys, size_t count) {
  // An eviction reads scores, then the bucket of the entry with the lowest score, then its row.
  // Each is prefetched some keys ahead, so that it has arrived when it is needed.
  constexpr size_t kToLikely = 8, kToRow = 4, kAhead = 16;
  const bool evicts = !call_.has_room && !state_.bounds->exact();
  const auto hash_of = [&](size_t k) { return Keys::Hash(call_.bits[keys[k]]); };
  Candidate likely[kAhead];
  const BucketArray* likely_in[kAhead];
  uint64_t last_scores[kToLikely];  // The scores of the last keys that got in.
  std::fill_n(last_scores, kToLikely, kNoScore);
  for (size_t step = 0; step < count + kAhead; ++step) {
    if (step < count) {
      op_->Fetch(keys[step]);
      const uint64_t hash = hash_of(step);
      const BucketArray& array = *state_.StripeFor(hash).array();
      const uint64_t home = array.HomeOf(hash);
      __builtin_prefetch(array.buckets + home, 1);
      PrefetchScores(array, home, evicts ? kCandidateBuckets : 1);
      state_.bounds->PrefetchMemory(array.PositionOf(hash));
    }
    if (const size_t k = step - (kAhead - kToLikely); evicts && k < count) {
      likely[k % kAhead] = LowestNear(state_.stripes.get(), hash_of(k));
      likely_in[k % kAhead] = state_.StripeFor(hash_of(k)).array();
      __builtin_prefetch(likely[k % kAhead].entry.bucket, 1);
    }
    if (const size_t k = step - (kAhead - kToRow); evicts && k < count) {
      const Stripe::Entry entry = likely[k % kAhead].entry;
      if (entry && !state_.IsSlow(entry.row()))
        Prefetch<true>(state_.RowAt(entry.row()), state_.layout.stride);
    }
    if (const size_t k = step - kAhead; k < count) {
      if (evicts) {
        likely_ = likely[k % kAhead];
        likely_in_ = likely_in[k % kAhead];
        lowest_since_ = *std::min_element(last_scores, last_scores + kToLikely);
      }
      inserted_ = kNoScore;
      TFRA_RETURN_IF_ERROR(InsertChain(keys[k]));
      last_scores[k % kToLikely] = inserted_;
    }
  }
  return Status::Ok();
}

template <typename Keys, typename Op>
Status BoundedInserter<Keys, Op>::InsertChain(uint32_t i) {
  constexpr uint32_t kEnd = KeyChains::kEnd;
  const BoundedCall& call = call_;
  const KeyBits& bits = call.bits;
  Op* const op = op_;
  Tally* const tally = tally_;
  const uint64_t hash = Keys::Hash(bits[i]);
  Stripe& stripe = state_.StripeFor(hash);
  Stripe::Entry entry;
  // Since the key was not found, another thread may have inserted it, or this call may have
  // inserted an equal key that is not in the same chain.
  if (!still_missing_) entry = finder_.FindEntry(stripe, bits, i);
  if (entry) {
    std::byte* row;
    TFRA_RETURN_IF_ERROR(RowMover(state_).RowToWrite(&stripe, entry, Op::kChangesRows, &row));
    for (; i != kEnd; i = call.Next(i)) {
      UpdateEntry(state_, call, *stripe.array(), i, entry, row, op, tally);
    }
    return Status::Ok();
  }

  for (; i != kEnd && !op->Inserts(i); i = call.Next(i)) ++tally->exists_mismatch;
  if (i == kEnd) return Status::Ok();
  bool enters;
  uint32_t seen;
  TFRA_RETURN_IF_ERROR(MayEnter<Keys>(state_, bits, i, op->context, &enters, &seen));
  if (!enters) {
    uint64_t& left_out =
        std::is_same_v<Op, AccumulateOp> ? tally->exists_mismatch : tally->not_admitted;
    for (; i != kEnd; i = call.Next(i)) ++(op->Inserts(i) ? left_out : tally->exists_mismatch);
    return Status::Ok();
  }
  Scoring::Occurrences occurrences;
  AddOccurrences(call.scoring, *op, i, &occurrences);
  for (uint32_t k = call.Next(i); k != kEnd; k = call.Next(k)) {
    if (op->Updates(k)) AddOccurrences(call.scoring, *op, k, &occurrences);
  }
  const uint64_t score =
      call.scoring.Score(state_.bounds->Recall(stripe.array()->PositionOf(hash)), occurrences);
  TFRA_RETURN_IF_ERROR(InsertScored(i, score, seen, &entry));
  if (entry) {
    while ((i = call.Next(i)) != kEnd) {
      UpdateRow(state_, stripe.array(), i, entry, state_.RowAt(entry.row()), op, tally);
    }
    return Status::Ok();
  }
  state_.bounds->Remember(stripe.array()->PositionOf(hash), score);
  for (; i != kEnd; i = call.Next(i)) {
    if (!op->Inserts(i)) {
      ++tally->exists_mismatch;
      continue;
    }
    ++tally->score_too_low;
    if (call.report.rejected != nullptr) call.report.rejected[i] = true;
    if constexpr (requires { op->Reject(i, bits[i]); }) op->Reject(i, bits[i]);
  }
  return Status::Ok();
}

template <typename Keys, typename Op>
Status BoundedInserter<Keys, Op>::InsertScored(size_t i, uint64_t score, uint32_t seen,
                                               Stripe::Entry* entry) {
  const BoundedCall& call = call_;
  const uint64_t hash = Keys::Hash(call.bits[i]);
  Stripe& stripe = state_.StripeFor(hash);
  // The bytes of the key were allocated before, unless other threads removed the key since.
  if constexpr (Keys::kStrings) {
    TFRA_RETURN_IF_ERROR(call.new_keys->Make(i, call.bits.bytes(i), "key"));
  }
  // Unlike other tables, which tidy their stripes at the start of a call, a bounded table does so
  // after a number of keys: the neighbours of a key must not depend on how keys were split over
  // threads.
  if (state_.bounds->CountInsert(StripeOf(hash)) % kKeysPerLock == 0 || stripe.NeedsReseed()) {
    const uint64_t seed = stripe.array()->seed;
    stripe.Tidy();
    // An eviction of an exact table looks at all buckets. If keys came stripe by stripe, a stripe
    // may have far more buckets than it needs.
    if (state_.bounds->exact() && stripe.size() < stripe.limit() / 4) {
      (void)stripe.Rebuild(stripe.size()).ok();
    }
    if (stripe.array()->seed != seed) state_.bounds->ForgetStripe(stripe.number());
  }
  uint32_t row_id = 0;
  if (state_.bounds->TakeRoom(stripe.size())) {
    const Status status = CatchBadAlloc([&] {
      TFRA_RETURN_IF_ERROR(stripe.Grow(stripe.size() + 1));
      return state_.TakeRow(&stripe, &row_id);
    });
    if (!status.ok()) {
      state_.bounds->GiveRoom(stripe.size() + 1);
      return status;
    }
  } else {
    const Candidate lowest = LowestCandidate(hash);
    if (!lowest.entry || score < lowest.score) return Status::Ok();
    if (lowest.stripe != StripeOf(hash)) TFRA_RETURN_IF_ERROR(stripe.Grow(stripe.size() + 1));
    // In a tiered table the row of the evicted key may be in the file, so take another row.
    if (state_.tiers != nullptr) TFRA_RETURN_IF_ERROR(state_.TakeRow(&stripe, &row_id));
    uint32_t left;
    try {
      left = Evict(lowest);
    } catch (const std::bad_alloc&) {
      if (state_.tiers != nullptr) stripe.GiveRow(row_id);
      throw;
    }
    if (state_.tiers == nullptr) {
      row_id = left;
    } else {
      state_.DropRow(&state_.stripes[lowest.stripe], left, tally_);
    }
  }
  EditRow(state_.RowAt(row_id), state_.layout.stride, [&](std::byte* row) {
    op_->Fill(i, call.bits[i], row);
    if constexpr (Keys::kStrings) {
      Blob* key = call.new_keys->Take(i);
      tally_->string_bytes += static_cast<int64_t>(key->allocated_bytes());
      StoreBlob(row + state_.layout.key_offset, key);
    }
  });
  *entry = stripe.Insert(call.bits[i], hash, row_id, {score, FreshMetadata(*op_, i, seen)});
  NoteEntered<Keys>(state_, call.bits, i);
  inserted_ = score;
  ++tally_->inserts;
  return Status::Ok();
}

template <typename Keys, typename Op>
Candidate BoundedInserter<Keys, Op>::LowestCandidate(uint64_t hash) const {
  if (state_.bounds->exact()) return LowestOfAll(state_.stripes.get());
  const Stripe& stripe = state_.StripeFor(hash);
  const bool still = likely_.entry && likely_in_ == stripe.array() &&
                     stripe.score(likely_.entry) == likely_.score && lowest_since_ >= likely_.score;
  return still ? likely_ : LowestNear(state_.stripes.get(), hash);
}

template <typename Keys, typename Op>
uint32_t BoundedInserter<Keys, Op>::Evict(const Candidate& candidate) {
  Tally* const tally = tally_;
  const Stripe::Entry entry = candidate.entry;
  const uint64_t key_bits = entry.key_bits();
  const uint32_t row = entry.row();
  state_.PrepareDrop(&state_.stripes[candidate.stripe], 1, tally);
  if (call_.report.evicted != nullptr) {
    auto& [rows, slow] = *evicted_;
    const BatchRows appender(state_);
    appender.AppendEntry(key_bits, row, &rows, &slow);
    appender.AppendColumns(*state_.stripes[candidate.stripe].array(), entry.bucket, entry.index,
                           &rows);
  }
  state_.stripes[candidate.stripe].Erase(entry);
  state_.DropStrings(row, tally);
  const BucketArray& array = *state_.stripes[candidate.stripe].array();
  state_.bounds->Remember(array.PositionOf(Keys::Hash(key_bits)), candidate.score);
  ++tally->evictions;
  return row;
}

#define TFRA_INSTANTIATE(Keys, Op) template class BoundedInserter<Keys, Op>;
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, IntKeys)
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, StringKeys)

}  // namespace tfra
