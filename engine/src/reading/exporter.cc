#include "reading/exporter.h"

#include <algorithm>
#include <string>

#include "tiers/row_mover.h"

namespace tfra {
namespace {

// How many buckets ahead an export prefetches rows.
constexpr uint64_t kExportAhead = 4;

// The first hash of a stripe.
uint64_t StripeStart(uint32_t stripe) { return uint64_t{stripe} << (64 - kStripeBits); }

}  // namespace

template <typename Keys>
Status Exporter<Keys>::Export(size_t max_rows, ExportCursor* cursor, ExportBatch* batch) const try {
  if (max_rows == 0)
    return Status::InvalidArgument("expected a batch of 1 row or more, received 0");
  batch->Clear();
  if (cursor->done) return Status::Ok();
  ReadGuard guard;
  std::vector<SlowRow> slow;
  Range range{cursor->position, cursor->position, cursor->seed, false};
  for (uint32_t s = StripeOf(range.from); s < kStripes; ++s) {
    const Stripe& stripe = state_.stripes[s];
    const BucketArray* array = stripe.array();
    if (range.from == StripeStart(s)) range.seed = array->seed;
    // Rows of a stripe that took a new seed come in one batch. They begin here in `batch` and
    // `slow`, so that they can be taken out again if the seed changes once more.
    size_t reordered = batch->size, reordered_slow = slow.size();
    const auto reorder = [&] {
      if (range.reordered) {
        rows_.Truncate(reordered, batch);
        slow.resize(reordered_slow);
      }
      reordered = batch->size;
      reordered_slow = slow.size();
      range.reordered = true;
      range.from = StripeStart(s);
    };
    if (array->seed != range.seed) reorder();
    for (uint64_t bucket = array->BucketAt(range.from); bucket < array->count; ++bucket) {
      if (batch->size >= max_rows && !range.reordered) {
        TFRA_RETURN_IF_ERROR(RowMover(state_).FillRows(&slow, batch));
        cursor->position = std::max(range.from, StripeStart(s) | array->FirstPosition(bucket));
        cursor->seed = range.seed;
        return Status::Ok();
      }
      const size_t complete = batch->size, complete_slow = slow.size();
      for (Backoff backoff; !ExportBucket(stripe, *array, bucket, range, batch, &slow);
           backoff.Wait()) {
        rows_.Truncate(complete, batch);
        slow.resize(complete_slow);
        if (stripe.array() == array) continue;
        // The stripe has another array: go on from the same position there.
        range.from = std::max(range.from, StripeStart(s) | array->FirstPosition(bucket));
        if (!range.reordered) range.begin = range.from;
        const uint64_t seed = array->seed;
        array = stripe.array();
        if (array->seed != seed) reorder();
        bucket = array->BucketAt(range.from);
      }
    }
    if (s + 1 < kStripes) range = {StripeStart(s + 1), StripeStart(s + 1), 0, false};
  }
  TFRA_RETURN_IF_ERROR(RowMover(state_).FillRows(&slow, batch));
  cursor->done = true;
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
bool Exporter<Keys>::ExportBucket(const Stripe& stripe, const BucketArray& array, uint64_t home,
                                  const Range& range, ExportBatch* batch,
                                  std::vector<SlowRow>* slow) const {
  if (home + kExportAhead < array.count) {
    const Bucket& later = array.buckets[home + kExportAhead];
    const uint32_t state = later.state.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < kBucketEntries; ++i) {
      const uint32_t row_id = later.rows[i].load(std::memory_order_relaxed);
      if (!(state >> i & 1) || state_.IsSlow(row_id)) continue;
      Prefetch<false>(state_.RowAt(row_id), state_.layout.stride);
    }
  }
  std::vector<const Bucket*> seen;
  SearchPath path(array, home);
  do {
    const Bucket* bucket = path.bucket();
    // In a small array a search path may return to a bucket.
    if (std::find(seen.begin(), seen.end(), bucket) != seen.end()) continue;
    const uint32_t state = bucket->state.load(std::memory_order_acquire);
    if ((state & (Bucket::kLocked | Bucket::kMoved)) == Bucket::kLocked) return false;
    const auto valid = [&] {
      return StillValid(bucket, state) && (!(state & Bucket::kMoved) || stripe.array() == &array);
    };
    for (uint32_t i = 0; i < kBucketEntries; ++i) {
      if (!(state >> i & 1)) continue;
      const uint64_t key_bits = bucket->bits[i].load(std::memory_order_relaxed);
      const uint64_t hash = Keys::Hash(key_bits);
      const uint64_t position = array.PositionOf(hash);
      if (array.BucketAt(position) != home || position < range.from) continue;
      if (range.reordered && BucketArray::PositionOf(hash, range.seed) < range.begin) continue;
      const uint32_t row_id = bucket->rows[i].load(std::memory_order_relaxed);
      rows_.AppendColumns(array, bucket, i, batch);
      if (state_.IsSlow(row_id)) {
        // The record, and the key's bytes, stay as they are while this thread is inside a guard.
        if (state_.has_string_keys() && !valid()) return false;
        rows_.AppendEntry(key_bits, row_id, batch, slow);
      } else if (state_.has_string_keys() || state_.has_string_values()) {
        // Pointers to strings may be followed only if they are this entry's.
        thread_local std::vector<std::byte> copy;
        copy.resize(state_.layout.stride);
        LoadRow(copy.data(), state_.RowAt(row_id), state_.layout.stride);
        if (!valid()) return false;
        rows_.AppendRow(key_bits, copy.data(), batch);
      } else {
        rows_.AppendRow(key_bits, state_.RowAt(row_id), batch);
      }
    }
    if (!valid()) return false;
    if (!(state & Bucket::kOverflow)) return true;
    seen.push_back(bucket);
  } while (path.Advance());
  return true;
}

template class Exporter<IntKeys>;
template class Exporter<StringKeys>;

}  // namespace tfra
