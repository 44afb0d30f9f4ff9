// Passes over all rows, with the shards' mutexes: the templates that scans and restrictions share.
#pragma once

#include <atomic>
#include <cstring>

#include "table_of.h"

namespace tfra {

template <typename Keys>
template <typename Visit>
void TableOf<Keys>::VisitShard(Shard* shard, size_t row_offset, size_t row_bytes, Visit&& visit) {
  // Rows are all over memory: fetch those of the next buckets early.
  constexpr uint64_t kAhead = 8;
  const BucketArray* array = shard->array();
  for (uint64_t b = 0; b < array->count; ++b) {
    if (b + kAhead < array->count) {
      const Bucket& later = array->buckets[b + kAhead];
      const uint32_t state = later.state.load(std::memory_order_relaxed);
      for (uint32_t used = state & Bucket::kUsed; used != 0; used &= used - 1) {
        const uint32_t row = later.rows[__builtin_ctz(used)].load(std::memory_order_relaxed);
        Prefetch<false>(RowAt(row) + row_offset, row_bytes);
      }
    }
    Bucket* bucket = array->buckets + b;
    const uint32_t state = bucket->state.load(std::memory_order_relaxed);
    for (uint32_t used = state & Bucket::kUsed; used != 0; used &= used - 1) {
      const Shard::Entry entry{bucket, static_cast<uint32_t>(__builtin_ctz(used))};
      visit(entry, RowAt(entry.row()));
    }
  }
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
