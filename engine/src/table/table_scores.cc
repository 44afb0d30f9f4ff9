#include "table/table_scores.h"

#include <algorithm>
#include <vector>

#include "keys/key_groups.h"
#include "reading/batch_rows.h"
#include "reading/reader.h"
#include "tiers/row_mover.h"
#include "upkeep/visitor.h"
#include "writing/assigner.h"

namespace tfra {

template <typename Keys>
Status ScoresOf<Keys>::AssignAndEvict(const KeyBatch& keys, const void* values, const void* slots,
                                      const RowMetadata* metadata, const Scores& scores,
                                      ExportBatch* evicted, bool* rejected) {
  evicted->Clear();
  if (rejected != nullptr) std::fill_n(rejected, keys.size, false);
  return AssignRows<Keys>(state_, keys, {values, slots, metadata, scores}, NewKeys::kInsert,
                          {evicted, rejected});
}

template <typename Keys>
Status ScoresOf<Keys>::Lookup(const KeyBatch& keys, uint64_t* scores, bool* exists) {
  return Reader<Keys>(state_).LookupScores(keys, scores, exists);
}

template <typename Keys>
Status ScoresOf<Keys>::Assign(const KeyBatch& keys, const uint64_t* scores) try {
  TFRA_RETURN_IF_ERROR(state_.CheckBounded("assigning scores"));
  TFRA_RETURN_IF_ERROR(state_.CheckKeys(keys));
  state_.bounds->AdvancePast(scores, keys.size);
  KeyBits bits;
  const KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  ParallelFor(groups.groups(), groups.groups(), [&](size_t group) {
    Tally tally;
    groups.ForEachRun(group, kKeysPerLock, [&](const uint32_t* order, size_t count) {
      StripeLocks locks(state_.stripes.get(), groups.stripes(group));
      for (size_t k = 0; k < count; ++k) {
        const size_t i = order[k];
        Stripe& stripe = state_.StripeFor(Keys::Hash(bits[i]));
        const auto entry = Finder<Keys>{state_}.FindEntry(stripe, bits, i);
        if (entry) stripe.SetScore(entry, std::min(scores[i], kMaxScore));
        tally.exists_mismatch += !entry;
      }
    });
    state_.Count(std::move(tally));
  });
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
template <typename Visit>
Status ScoresOf<Keys>::VisitScores(Visit&& visit) const {
  TFRA_RETURN_IF_ERROR(state_.CheckBounded("selecting by score"));
  ParallelFor(kStripes, ThreadsFor(state_.size()), [&](size_t s) {
    std::lock_guard lock(state_.stripes[s].mutex());
    const BucketArray* array = state_.stripes[s].array();
    for (uint64_t place = 0; place < array->count * kBucketEntries; ++place) {
      const uint64_t score = array->scores()[place];
      if (score == kNoScore) continue;
      Bucket* bucket = array->buckets + place / kBucketEntries;
      visit(s, Stripe::Entry{bucket, static_cast<uint32_t>(place % kBucketEntries)}, score);
    }
  });
  return Status::Ok();
}

template <typename Keys>
Status ScoresOf<Keys>::CountIf(const ScorePredicate& predicate, uint64_t* count) try {
  std::vector<uint64_t> counts(kStripes);
  TFRA_RETURN_IF_ERROR(
      VisitScores([&](size_t s, Stripe::Entry, uint64_t score) { counts[s] += predicate(score); }));
  *count = 0;
  for (uint64_t each : counts) *count += each;
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status ScoresOf<Keys>::RemoveIf(const ScorePredicate& predicate, uint64_t* removed) try {
  TFRA_RETURN_IF_ERROR(state_.CheckBounded("selecting by score"));
  *removed = Visitor<Keys>(state_).RemoveEntriesOf(
      &Tally::removals, [&](const BucketArray& array, uint64_t b) {
        const Bucket* bucket = array.buckets + b;
        uint32_t going = 0;
        ForEachEntry(bucket->used(), [&](uint32_t i) {
          going |= static_cast<uint32_t>(predicate(*array.ScoreOf(bucket, i))) << i;
        });
        return going;
      });
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status ScoresOf<Keys>::ExportIf(const ScorePredicate& predicate, ExportBatch* batch) try {
  *batch = ExportBatch();
  const BatchRows rows(state_);
  std::vector<ExportBatch> selected(kStripes);
  std::vector<std::vector<SlowRow>> slow(kStripes);
  ReadGuard guard;  // Until the rows in the file have been read.
  TFRA_RETURN_IF_ERROR(VisitScores([&](size_t s, Stripe::Entry entry, uint64_t score) {
    if (!predicate(score)) return;
    rows.AppendEntry(entry.key_bits(), entry.row(), &selected[s], &slow[s]);
    rows.AppendColumns(*state_.stripes[s].array(), entry.bucket, entry.index, &selected[s]);
  }));
  for (uint32_t s = 0; s < kStripes; ++s) {
    TFRA_RETURN_IF_ERROR(RowMover(state_).FillRows(&slow[s], &selected[s]));
    batch->Append(std::move(selected[s]));
  }
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template class ScoresOf<IntKeys>;
template class ScoresOf<StringKeys>;

}  // namespace tfra
