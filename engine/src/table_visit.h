// Passes over all rows, with the shards' mutexes: the templates that scans and restrictions share.
#pragma once

#include <atomic>
#include <cstring>

#include "table_of.h"

namespace tfra {

template <typename Keys>
template <typename Select, typename Visit>
void TableOf<Keys>::VisitSelected(Shard* shard, size_t row_offset, size_t row_bytes,
                                  Select&& select, Visit&& visit) {
  // Rows are all over memory: fetch those of the next buckets early.
  constexpr uint64_t kAhead = 8;
  const BucketArray* array = shard->array();
  const RowArena::Map rows = arena_.map();
  for (uint64_t b = 0; b < array->count; ++b) {
    if (b + kAhead < array->count) {
      const Bucket& later = array->buckets[b + kAhead];
      for (uint32_t mask = select(b + kAhead, later); mask != 0; mask &= mask - 1) {
        const uint32_t row = later.rows[__builtin_ctz(mask)].load(std::memory_order_relaxed);
        Prefetch<false>(rows.At(row) + row_offset, row_bytes);
      }
    }
    Bucket* bucket = array->buckets + b;
    for (uint32_t mask = select(b, *bucket); mask != 0; mask &= mask - 1) {
      const Shard::Entry entry{bucket, static_cast<uint32_t>(__builtin_ctz(mask))};
      visit(entry, rows.At(entry.row()));
    }
  }
}

template <typename Keys>
template <typename Visit>
void TableOf<Keys>::VisitShard(Shard* shard, size_t row_offset, size_t row_bytes, Visit&& visit) {
  VisitSelected(
      shard, row_offset, row_bytes,
      [](uint64_t, const Bucket& bucket) {
        return bucket.state.load(std::memory_order_relaxed) & Bucket::kUsed;
      },
      visit);
}

template <typename Keys>
template <typename Visit>
void TableOf<Keys>::VisitMetadata(Visit&& visit) {
  ParallelFor(kShards, ThreadsFor(size()), [&](size_t s) {
    std::lock_guard lock(shards_[s].mutex());
    VisitShard(&shards_[s], layout_.metadata_offset, sizeof(RowMetadata),
               [&](Shard::Entry entry, const std::byte* row) {
                 RowMetadata metadata;
                 std::memcpy(&metadata, row + layout_.metadata_offset, sizeof(metadata));
                 visit(s, entry, metadata);
               });
  });
}

template <typename Keys>
template <typename Goes>
uint64_t TableOf<Keys>::RemoveRows(size_t row_offset, size_t row_bytes, uint64_t Tally::* counter,
                                   Goes&& goes) {
  std::atomic<uint64_t> total{0};
  ParallelFor(kShards, ThreadsFor(size()), [&](size_t s) {
    Counting([&](Tally* tally) {
      std::lock_guard lock(shards_[s].mutex());
      VisitShard(&shards_[s], row_offset, row_bytes, [&](Shard::Entry entry, const std::byte* row) {
        if (!goes(entry, row)) return;
        RemoveEntry(&shards_[s], entry, tally);
        ++(tally->*counter);
      });
      total += tally->*counter;
    });
  });
  return total;
}

}  // namespace tfra
