// Whole tables, straight into the caller's memory.
//
// A stripe's rows have their place among those of the other stripes before any of them is copied,
// so that the order of an export does not depend on which thread was first.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/streaming.h"
#include "table/table_write.h"

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

template <typename Keys>
Status TableOf<Keys>::ExportAll(ExportBatch* batch) try {
  if (!ExportsAsWhole()) {
    ExportCursor cursor;
    return Export(SIZE_MAX, &cursor, batch);
  }
  batch->Clear();
  const size_t room = size();
  const auto array = [&](auto* vector, size_t elements) {
    vector->resize(room * elements);
    return elements == 0 ? nullptr : vector->data();
  };
  const RowArrays arrays{room,
                         array(&batch->int_keys, 1),
                         array(&batch->values, layout_.value_bytes),
                         array(&batch->slots, layout_.slots_bytes),
                         array(&batch->metadata, spec_.metadata),
                         array(&batch->scores, bounds_ != nullptr)};
  size_t rows;
  ExportBatch rest;
  TFRA_RETURN_IF_ERROR(ExportInto(arrays, &rows, &rest));
  Truncate(rows, batch);
  AppendBatch(&rest, batch);
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::ExportInto(const RowArrays& arrays, size_t* rows, ExportBatch* rest) try {
  if (!ExportsAsWhole()) {
    return Status::InvalidArgument(
        "expected a table of int64 keys and plain values, all in memory, received another");
  }
  if ((arrays.metadata != nullptr && !spec_.metadata) ||
      (arrays.scores != nullptr && bounds_ == nullptr)) {
    return Status::InvalidArgument(
        "expected memory for what the table has, received some for its metadata or scores");
  }
  rest->Clear();
  struct Part {
    size_t begin, room, rows = 0;
    ExportBatch rest;
  };
  std::array<Part, kStripes> parts;
  size_t begin = 0;
  for (uint32_t s = 0; s < kStripes; ++s) {
    parts[s].begin = begin;
    parts[s].room = std::min<size_t>(stripes_[s].size(), arrays.room - begin);
    begin += parts[s].room;
  }
  ParallelFor(kStripes, ThreadsFor(begin), [&](size_t s) {
    Part& part = parts[s];
    const size_t end = part.begin + part.room;
    for (int attempts = 0;; ++attempts) {
      ReadGuard guard;
      // A stripe that is rebuilt all the time has to wait at last.
      std::unique_lock lock(stripes_[s].mutex(), std::defer_lock);
      if (attempts >= kMostAttempts) lock.lock();
      part.rest.Clear();
      if (ExportStripe(stripes_[s], arrays, part.begin, end, &part.rows, &part.rest)) break;
    }
    StreamFence();
  });
  *rows = 0;
  for (Part& part : parts) {
    // Keys have left meanwhile, and there is a gap.
    if (part.begin > *rows) {
      MoveRows(arrays, layout_.value_bytes, layout_.slots_bytes, part.begin, part.rows, *rows);
    }
    *rows += part.rows;
    AppendBatch(&part.rest, rest);
  }
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
bool TableOf<Keys>::ExportStripe(const Stripe& stripe, const RowArrays& arrays, size_t begin,
                                 size_t end, size_t* rows, ExportBatch* rest) const {
  const BucketArray* const array = stripe.array();
  const uint64_t ahead = BucketsAhead(layout_.stride);
  size_t at = begin;
  for (uint64_t b = 0; b < array->count; ++b) {
    if (b + ahead < array->count) {
      const Bucket& later = array->buckets[b + ahead];
      ForEachEntry(later.used(), [&](uint32_t i) TFRA_INLINE {
        Prefetch<false>(RowAt(later.rows[i].load(std::memory_order_relaxed)), layout_.stride);
      });
    }
    const Bucket* const bucket = array->buckets + b;
    for (Backoff backoff; !ExportBucketInto(*array, bucket, arrays, end, &at, rest);
         backoff.Wait()) {
      if (stripe.array() != array) return false;
    }
  }
  *rows = at - begin;
  // Entries stay in their bucket as long as the stripe has its array.
  return stripe.array() == array;
}

template <typename Keys>
[[gnu::always_inline]] inline bool TableOf<Keys>::ExportBucketInto(const BucketArray& array,
                                                                   const Bucket* bucket,
                                                                   const RowArrays& arrays,
                                                                   size_t end, size_t* at,
                                                                   ExportBatch* rest) const {
  const uint32_t state = bucket->state.load(std::memory_order_acquire);
  if ((state & (Bucket::kLocked | Bucket::kMoved)) == Bucket::kLocked) return false;
  size_t place = *at;
  const size_t complete = rest->size;
  ForEachEntry(state & Bucket::kUsed, [&](uint32_t i) TFRA_INLINE {
    const uint64_t key_bits = bucket->bits[i].load(std::memory_order_relaxed);
    const std::byte* row = RowAt(bucket->rows[i].load(std::memory_order_relaxed));
    if (place == end) {
      AppendColumns(array, bucket, i, rest);
      AppendRow(key_bits, row, rest);
      return;
    }
    if (arrays.keys != nullptr) arrays.keys[place] = static_cast<int64_t>(key_bits);
    if (arrays.values != nullptr) {
      CopyOut(arrays.values + place * layout_.value_bytes, row, layout_.value_bytes);
    }
    if (arrays.slots != nullptr) {
      CopyOut(arrays.slots + place * layout_.slots_bytes, row + layout_.slots_offset,
              layout_.slots_bytes);
    }
    if (arrays.metadata != nullptr) arrays.metadata[place] = array.MetadataOf(bucket, i);
    if (arrays.scores != nullptr) {
      arrays.scores[place] = __atomic_load_n(array.ScoreOf(bucket, i), __ATOMIC_RELAXED);
    }
    ++place;
  });
  if (!StillValid(bucket, state)) {
    Truncate(complete, rest);
    return false;
  }
  *at = place;
  return true;
}

#define TFRA_INSTANTIATE(Keys)                            \
  template Status TableOf<Keys>::ExportAll(ExportBatch*); \
  template Status TableOf<Keys>::ExportInto(const RowArrays&, size_t*, ExportBatch*);
TFRA_INSTANTIATE(IntKeys)
TFRA_INSTANTIATE(StringKeys)

}  // namespace tfra
