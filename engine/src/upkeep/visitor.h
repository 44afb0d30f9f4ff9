// Passes over all keys of a table, with the mutexes of the stripes. Readers go on meanwhile.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "base/batch.h"
#include "keys/keys.h"
#include "state/table_state.h"

namespace tfra {

template <typename Keys>
class Visitor {
 public:
  explicit Visitor(const TableState& state) : state_(state) {}

  // Calls visit(entry, row) for every row of a stripe, with its mutex. `row_bytes` from
  // `row_offset` on are prefetched. Rows in the file come last; the mutex is not held while they
  // are read.
  template <typename Visit>
  Status VisitStripe(Stripe* stripe, size_t row_offset, size_t row_bytes, Visit&& visit) const;
  // Removes the rows for which goes(entry, row) is true and adds them to `counter`. total: how many
  // there were.
  template <typename Goes>
  Status RemoveRows(size_t row_offset, size_t row_bytes, uint64_t Tally::* counter, uint64_t* total,
                    Goes&& goes) const;

  // The rest does not touch rows.

  // REQUIRES: the mutex of the entry's stripe.
  RowMetadata MetadataOf(Stripe::Entry entry) const {
    const Stripe& stripe = state_.StripeFor(Keys::Hash(entry.key_bits()));
    return stripe.array()->MetadataOf(entry.bucket, entry.index);
  }
  // Calls visit(stripe number, entry, metadata) for every key.
  template <typename Visit>
  void VisitMetadata(Visit&& visit) const;
  // Removes the entries that going(array, bucket number) returns, as a bit mask, and adds them to
  // `counter`. Returns how many there were. The mask may have bits of empty entries.
  template <typename Going>
  uint64_t RemoveEntriesOf(uint64_t Tally::* counter, Going&& going) const;
  // Removes the keys for which goes(metadata) is true.
  template <typename Goes>
  uint64_t RemoveByMetadata(uint64_t Tally::* counter, Goes&& goes) const;

 private:
  // VisitStripe for rows that were in the file: row number k has the key bits[k].
  template <typename Visit>
  Status VisitSlow(Stripe* stripe, const std::vector<uint64_t>& bits, std::vector<SlowRow>* rows,
                   Visit&& visit) const;

  const TableState& state_;
};

template <typename Keys>
template <typename Visit>
Status Visitor<Keys>::VisitStripe(Stripe* stripe, size_t row_offset, size_t row_bytes,
                                  Visit&& visit) const {
  // Rows are all over memory: prefetch those of later buckets.
  constexpr uint64_t kAhead = 8;
  std::optional<ReadGuard> guard;
  if (state_.tiers != nullptr) guard.emplace();
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
        if (!state_.IsSlow(row)) Prefetch<false>(state_.RowAt(row) + row_offset, row_bytes);
      }
    }
    Bucket* bucket = array->buckets + b;
    const uint32_t state = bucket->state.load(std::memory_order_relaxed);
    for (uint32_t used = state & Bucket::kUsed; used != 0; used &= used - 1) {
      const Stripe::Entry entry{bucket, static_cast<uint32_t>(__builtin_ctz(used))};
      const uint32_t row_id = entry.row();
      if (state_.IsSlow(row_id)) {
        slow.push_back({static_cast<uint32_t>(slow_bits.size()), RecordOf(row_id)});
        slow_bits.push_back(entry.key_bits());
      } else {
        visit(entry, state_.RowAt(row_id));
      }
    }
  }
  lock.unlock();
  return slow.empty() ? Status::Ok() : VisitSlow(stripe, slow_bits, &slow, visit);
}

template <typename Keys>
template <typename Visit>
Status Visitor<Keys>::VisitSlow(Stripe* stripe, const std::vector<uint64_t>& bits,
                                std::vector<SlowRow>* rows, Visit&& visit) const {
  SortByRecord(rows);
  RowRecords& records = state_.tiers->records();
  Staging staging, again;
  std::vector<SlowRow> batch;
  for (size_t begin = 0; begin < rows->size(); begin += records.batch_rows()) {
    const auto first = rows->begin() + static_cast<std::ptrdiff_t>(begin);
    const size_t count = std::min(records.batch_rows(), rows->size() - begin);
    batch.assign(first, first + static_cast<std::ptrdiff_t>(count));
    TFRA_RETURN_IF_ERROR(records.Read(&batch, state_.layout.stride, &staging));
    std::lock_guard lock(stripe->mutex());
    for (const SlowRow& slow : batch) {
      const uint64_t key_bits = bits[slow.number];
      const auto entry = stripe->Find(key_bits, Keys::Hash(key_bits), [&](uint32_t row_id) {
        return !Keys::kStrings || state_.KeyOf(row_id) == state_.tiers->Key(slow.record);
      });
      if (!entry) continue;  // The key has left the table.
      const uint32_t row_id = entry.row();
      if (!state_.IsSlow(row_id)) {
        visit(entry, state_.RowAt(row_id));
      } else if (RecordOf(row_id) == slow.record) {
        visit(entry, slow.row);
      } else {
        // Rare: the row was fetched, changed and moved to the file again since.
        std::vector<SlowRow> one = {{0, RecordOf(row_id)}};
        TFRA_RETURN_IF_ERROR(records.Read(&one, state_.layout.stride, &again));
        visit(entry, one[0].row);
      }
    }
  }
  return Status::Ok();
}

template <typename Keys>
template <typename Goes>
Status Visitor<Keys>::RemoveRows(size_t row_offset, size_t row_bytes, uint64_t Tally::* counter,
                                 uint64_t* total, Goes&& goes) const {
  std::atomic<uint64_t> removed{0};
  SharedStatus status;
  ParallelFor(kStripes, ThreadsFor(state_.size()), [&](size_t s) {
    state_.Counting([&](Tally* tally) {
      const auto visit = [&](Stripe::Entry entry, const std::byte* row) {
        if (!goes(entry, row)) return;
        state_.RemoveEntry(&state_.stripes[s], entry, tally);
        ++(tally->*counter);
      };
      status.Set(VisitStripe(&state_.stripes[s], row_offset, row_bytes, visit));
      removed += tally->*counter;
    });
  });
  *total = removed;
  return status.Get();
}

template <typename Keys>
template <typename Visit>
void Visitor<Keys>::VisitMetadata(Visit&& visit) const {
  ParallelFor(kStripes, ThreadsFor(state_.size()), [&](size_t s) {
    std::lock_guard lock(state_.stripes[s].mutex());
    const BucketArray& array = *state_.stripes[s].array();
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
uint64_t Visitor<Keys>::RemoveEntriesOf(uint64_t Tally::* counter, Going&& going) const {
  std::atomic<uint64_t> total{0};
  ParallelFor(kStripes, ThreadsFor(state_.size()), [&](size_t s) {
    state_.Counting([&](Tally* tally) {
      // The entries of some buckets are removed at once, without a branch for each bucket: no CPU
      // can predict how many entries of a bucket go.
      constexpr size_t kBatch = 256;
      Stripe::Entry entries[kBatch + kBucketEntries];
      size_t count = 0;
      const auto remove = [&] {
        state_.RemoveEntries(&state_.stripes[s], entries, count, tally);
        tally->*counter += count;
        count = 0;
      };
      std::lock_guard lock(state_.stripes[s].mutex());
      const BucketArray& array = *state_.stripes[s].array();
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
uint64_t Visitor<Keys>::RemoveByMetadata(uint64_t Tally::* counter, Goes&& goes) const {
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
