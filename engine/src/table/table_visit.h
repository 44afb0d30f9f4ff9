// Passes over all rows, with the stripes' mutexes: the templates that scans and restrictions share.
#pragma once

#include <atomic>
#include <cstring>
#include <optional>

#include "table/table_of.h"

namespace tfra {

template <typename Keys>
template <typename Visit>
Status TableOf<Keys>::VisitStripe(Stripe* stripe, size_t row_offset, size_t row_bytes,
                                  Visit&& visit) {
  // Rows are all over memory: fetch those of the next buckets early.
  constexpr uint64_t kAhead = 8;
  std::optional<ReadGuard> guard;
  if (tiers_ != nullptr) guard.emplace();
  std::vector<SlowRow> slow;
  std::vector<uint64_t> slow_bits;
  std::unique_lock lock(stripe->mutex());
  const BucketArray* array = stripe->array();
  for (uint64_t b = 0; b < array->count; ++b) {
    if (b + kAhead < array->count) {
      const Bucket& later = array->buckets[b + kAhead];
      const uint32_t state = later.state.load(std::memory_order_relaxed);
      for (uint32_t used = state & Bucket::kUsed; used != 0; used &= used - 1) {
        const uint32_t row = later.rows[__builtin_ctz(used)].load(std::memory_order_relaxed);
        if (!IsSlow(row)) Prefetch<false>(RowAt(row) + row_offset, row_bytes);
      }
    }
    Bucket* bucket = array->buckets + b;
    const uint32_t state = bucket->state.load(std::memory_order_relaxed);
    for (uint32_t used = state & Bucket::kUsed; used != 0; used &= used - 1) {
      const Stripe::Entry entry{bucket, static_cast<uint32_t>(__builtin_ctz(used))};
      const uint32_t row_id = entry.row();
      if (IsSlow(row_id)) {
        slow.push_back({static_cast<uint32_t>(slow_bits.size()), RecordOf(row_id)});
        slow_bits.push_back(entry.key_bits());
      } else {
        visit(entry, RowAt(row_id));
      }
    }
  }
  lock.unlock();
  return slow.empty() ? Status::Ok() : VisitSlow(stripe, slow_bits, &slow, visit);
}

template <typename Keys>
template <typename Visit>
Status TableOf<Keys>::VisitSlow(Stripe* stripe, const std::vector<uint64_t>& bits,
                                std::vector<SlowRow>* rows, Visit&& visit) {
  SortByRecord(rows);
  RowRecords& records = tiers_->records();
  Staging staging, again;
  std::vector<SlowRow> batch;
  for (size_t begin = 0; begin < rows->size(); begin += records.batch_rows()) {
    const auto first = rows->begin() + static_cast<std::ptrdiff_t>(begin);
    const size_t count = std::min(records.batch_rows(), rows->size() - begin);
    batch.assign(first, first + static_cast<std::ptrdiff_t>(count));
    TFRA_RETURN_IF_ERROR(records.Read(&batch, layout_.stride, &staging));
    std::lock_guard lock(stripe->mutex());
    for (const SlowRow& slow : batch) {
      const uint64_t key_bits = bits[slow.number];
      const auto entry = stripe->Find(key_bits, Keys::Hash(key_bits), [&](uint32_t row_id) {
        return !Keys::kStrings || KeyOf(row_id) == tiers_->Key(slow.record);
      });
      if (!entry) continue;  // It has left.
      const uint32_t row_id = entry.row();
      if (!IsSlow(row_id)) {
        visit(entry, RowAt(row_id));
      } else if (RecordOf(row_id) == slow.record) {
        visit(entry, slow.row);
      } else {
        // It came, was changed and left memory again since, which is rare.
        std::vector<SlowRow> one = {{0, RecordOf(row_id)}};
        TFRA_RETURN_IF_ERROR(records.Read(&one, layout_.stride, &again));
        visit(entry, one[0].row);
      }
    }
  }
  return Status::Ok();
}

template <typename Keys>
template <typename Goes>
Status TableOf<Keys>::RemoveRows(size_t row_offset, size_t row_bytes, uint64_t Tally::* counter,
                                 uint64_t* total, Goes&& goes) {
  std::atomic<uint64_t> removed{0};
  SharedStatus status;
  ParallelFor(kStripes, ThreadsFor(size()), [&](size_t s) {
    Counting([&](Tally* tally) {
      const auto visit = [&](Stripe::Entry entry, const std::byte* row) {
        if (!goes(entry, row)) return;
        RemoveEntry(&stripes_[s], entry, tally);
        ++(tally->*counter);
      };
      status.Set(VisitStripe(&stripes_[s], row_offset, row_bytes, visit));
      removed += tally->*counter;
    });
  });
  *total = removed;
  return status.Get();
}

template <typename Keys>
template <typename Visit>
void TableOf<Keys>::VisitMetadata(Visit&& visit) {
  ParallelFor(kStripes, ThreadsFor(size()), [&](size_t s) {
    std::lock_guard lock(stripes_[s].mutex());
    const BucketArray& array = *stripes_[s].array();
    for (uint64_t b = 0; b < array.count; ++b) {
      Bucket* bucket = array.buckets + b;
      ForEachEntry(bucket->used(), [&](uint32_t i) {
        visit(s, Stripe::Entry{bucket, i}, array.MetadataOf(bucket, i));
      });
    }
  });
}

template <typename Keys>
template <typename Going>
uint64_t TableOf<Keys>::RemoveEntriesOf(uint64_t Tally::* counter, Going&& going) {
  std::atomic<uint64_t> total{0};
  ParallelFor(kStripes, ThreadsFor(size()), [&](size_t s) {
    Counting([&](Tally* tally) {
      // Some buckets' entries go at once: how many go of one bucket no CPU can predict.
      constexpr size_t kBatch = 256;
      Stripe::Entry entries[kBatch + kBucketEntries];
      size_t count = 0;
      const auto remove = [&] {
        RemoveEntries(&stripes_[s], entries, count, tally);
        tally->*counter += count;
        count = 0;
      };
      std::lock_guard lock(stripes_[s].mutex());
      const BucketArray& array = *stripes_[s].array();
      for (uint64_t b = 0; b < array.count; ++b) {
        const uint32_t mask = going(array, b) & array.buckets[b].used();
        for (uint32_t i = 0; i < kBucketEntries; ++i) {
          entries[count] = {array.buckets + b, i};
          count += mask >> i & 1;
        }
        if (count >= kBatch) remove();
      }
      remove();
      total += tally->*counter;
    });
  });
  return total;
}

template <typename Keys>
template <typename Goes>
uint64_t TableOf<Keys>::RemoveByMetadata(uint64_t Tally::* counter, Goes&& goes) {
  return RemoveEntriesOf(counter, [&](const BucketArray& array, uint64_t b) {
    const Bucket* bucket = array.buckets + b;
    uint32_t going = 0;
    ForEachEntry(bucket->used(), [&](uint32_t i) {
      going |= static_cast<uint32_t>(goes(array.MetadataOf(bucket, i))) << i;
    });
    return going;
  });
}

}  // namespace tfra
