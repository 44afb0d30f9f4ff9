#include "reading/whole_exporter.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/batch.h"
#include "base/streaming.h"
#include "state/finder.h"

namespace tfra {
namespace {

// How many buckets ahead rows are prefetched: so that as many bytes are under way as pays.
uint64_t BucketsAhead(size_t stride) { return std::clamp<uint64_t>(1536 / stride, 2, 16); }

// How often a stripe is tried while others rebuild it.
constexpr int kMostAttempts = 3;

// Copies to memory that is not read again soon.
[[gnu::always_inline]] inline void CopyOut(std::byte* to, const std::byte* from, size_t bytes) {
  if (kStreams && (bytes | reinterpret_cast<uintptr_t>(to)) % kCacheLine == 0) {
    StreamBytes(to, from, bytes);
  } else {
    LoadRow(to, from, bytes);
  }
}

// Moves rows to an earlier place.
void MoveRows(const RowArrays& arrays, size_t value_bytes, size_t slots_bytes, size_t from,
              size_t count, size_t to) {
  const auto move = [&](auto* array, size_t elements) {
    if (array == nullptr || elements == 0) return;
    std::memmove(array + to * elements, array + from * elements, count * elements * sizeof(*array));
  };
  move(arrays.keys, 1);
  move(arrays.values, value_bytes);
  move(arrays.slots, slots_bytes);
  move(arrays.metadata, 1);
  move(arrays.scores, 1);
}

}  // namespace

Status WholeExporter::ExportAll(ExportBatch* batch) const try {
  batch->Clear();
  const size_t room = state_.size();
  const auto array = [&](auto* vector, size_t elements) {
    vector->resize(room * elements);
    return elements == 0 ? nullptr : vector->data();
  };
  const RowArrays arrays{room,
                         array(&batch->int_keys, 1),
                         array(&batch->values, state_.layout.value_bytes),
                         array(&batch->slots, state_.layout.slots_bytes),
                         array(&batch->metadata, state_.spec.metadata),
                         array(&batch->scores, state_.bounds != nullptr)};
  size_t rows;
  ExportBatch rest;
  TFRA_RETURN_IF_ERROR(ExportInto(arrays, &rows, &rest));
  rows_.Truncate(rows, batch);
  batch->Append(std::move(rest));
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status WholeExporter::ExportInto(const RowArrays& arrays, size_t* rows, ExportBatch* rest) const
    try {
  if (!Handles(state_)) {
    return Status::InvalidArgument(
        "expected a table of int64 keys and plain values, all in memory, received another");
  }
  if ((arrays.metadata != nullptr && !state_.spec.metadata) ||
      (arrays.scores != nullptr && state_.bounds == nullptr)) {
    return Status::InvalidArgument(
        "expected memory for what the table has, received some for its metadata or scores");
  }
  rest->Clear();
  // The output of one stripe.
  struct Section {
    size_t begin, room, rows = 0;
    ExportBatch rest;
  };
  std::array<Section, kStripes> sections;
  size_t begin = 0;
  for (uint32_t s = 0; s < kStripes; ++s) {
    sections[s].begin = begin;
    sections[s].room = std::min<size_t>(state_.stripes[s].size(), arrays.room - begin);
    begin += sections[s].room;
  }
  ParallelFor(kStripes, ThreadsFor(begin), [&](size_t s) {
    Section& section = sections[s];
    const size_t end = section.begin + section.room;
    for (int attempts = 0;; ++attempts) {
      ReadGuard guard;
      // If the stripe is rebuilt again and again, lock it.
      std::unique_lock lock(state_.stripes[s].mutex(), std::defer_lock);
      if (attempts >= kMostAttempts) lock.lock();
      section.rest.Clear();
      if (ExportStripe(state_.stripes[s], arrays, section.begin, end, &section.rows, &section.rest))
        break;
    }
    StreamFence();
  });
  *rows = 0;
  for (Section& section : sections) {
    // Keys that left meanwhile have made a gap.
    if (section.begin > *rows) {
      MoveRows(arrays, state_.layout.value_bytes, state_.layout.slots_bytes, section.begin,
               section.rows, *rows);
    }
    *rows += section.rows;
    rest->Append(std::move(section.rest));
  }
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

bool WholeExporter::ExportStripe(const Stripe& stripe, const RowArrays& arrays, size_t begin,
                                 size_t end, size_t* rows, ExportBatch* rest) const {
  const BucketArray* const array = stripe.array();
  const uint64_t ahead = BucketsAhead(state_.layout.stride);
  size_t at = begin;
  for (uint64_t b = 0; b < array->count; ++b) {
    if (b + ahead < array->count) {
      const Bucket& later = array->buckets[b + ahead];
      ForEachEntry(later.used(), [&](uint32_t i) TFRA_INLINE {
        Prefetch<false>(state_.RowAt(later.rows[i].load(std::memory_order_relaxed)),
                        state_.layout.stride);
      });
    }
    const Bucket* const bucket = array->buckets + b;
    for (Backoff backoff; !ExportBucket(*array, bucket, arrays, end, &at, rest); backoff.Wait()) {
      if (stripe.array() != array) return false;
    }
  }
  *rows = at - begin;
  // Entries stay in their bucket as long as the stripe has its array.
  return stripe.array() == array;
}

[[gnu::always_inline]] inline bool WholeExporter::ExportBucket(const BucketArray& array,
                                                               const Bucket* bucket,
                                                               const RowArrays& arrays, size_t end,
                                                               size_t* at,
                                                               ExportBatch* rest) const {
  const uint32_t state = bucket->state.load(std::memory_order_acquire);
  if ((state & (Bucket::kLocked | Bucket::kMoved)) == Bucket::kLocked) return false;
  size_t place = *at;
  const size_t complete = rest->size;
  ForEachEntry(state & Bucket::kUsed, [&](uint32_t i) TFRA_INLINE {
    const uint64_t key_bits = bucket->bits[i].load(std::memory_order_relaxed);
    const std::byte* row = state_.RowAt(bucket->rows[i].load(std::memory_order_relaxed));
    if (place == end) {
      rows_.AppendColumns(array, bucket, i, rest);
      rows_.AppendRow(key_bits, row, rest);
      return;
    }
    if (arrays.keys != nullptr) arrays.keys[place] = static_cast<int64_t>(key_bits);
    if (arrays.values != nullptr) {
      CopyOut(arrays.values + place * state_.layout.value_bytes, row, state_.layout.value_bytes);
    }
    if (arrays.slots != nullptr) {
      CopyOut(arrays.slots + place * state_.layout.slots_bytes, row + state_.layout.slots_offset,
              state_.layout.slots_bytes);
    }
    if (arrays.metadata != nullptr) arrays.metadata[place] = array.MetadataOf(bucket, i);
    if (arrays.scores != nullptr) {
      arrays.scores[place] = __atomic_load_n(array.ScoreOf(bucket, i), __ATOMIC_RELAXED);
    }
    ++place;
  });
  if (!StillValid(bucket, state)) {
    rows_.Truncate(complete, rest);
    return false;
  }
  *at = place;
  return true;
}

}  // namespace tfra
