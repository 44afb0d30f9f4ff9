// How a stripe moves to another array of buckets, on several threads.
//
// Both arrays are in the order of the keys' positions, so that the first part of one goes to the
// first part of the other. If their seeds differ, one thread moves all entries. Otherwise each
// thread moves the entries of a range of buckets, and writes to the same range of the other array
// only. The few entries that belong elsewhere, near the ends of a range, are put aside and moved in
// the end.
#include <algorithm>
#include <vector>

#include "index/stripe.h"
#include "memory/pages.h"
#include "tfra/thread_pool.h"

namespace tfra {
namespace {

// Fewer buckets are not worth another thread.
constexpr uint64_t kMinBuckets = 4096;

// So many steps of its path an entry may take to stay within its range.
constexpr uint64_t kMaxSteps = 8;
constexpr uint64_t kReach = SearchPath::Offset(kMaxSteps);

struct LateEntry {
  uint64_t key_bits;
  uint32_t row;
  EntryData data;
};

struct Range {
  uint64_t begin;  // Of the buckets that it may write to.
  uint64_t end;
  std::vector<LateEntry> late;  // With room for some; no more is asked for while entries move.
  Displacement displaced;
  bool complete = true;
};

// Enters a key if it belongs into the range. Other threads do not know the array yet.
[[gnu::always_inline]] inline bool PlaceInRange(const BucketArray& array, uint64_t hash,
                                                uint64_t key_bits, uint32_t row,
                                                const EntryData& data, Range* range) {
  const uint64_t home = array.HomeOf(hash);
  if (home < range->begin || home + kReach >= range->end) return false;
  for (uint64_t step = 0; step <= kMaxSteps; ++step) {
    Bucket* bucket = array.buckets + home + SearchPath::Offset(step);
    const uint32_t state = bucket->state.load(std::memory_order_relaxed);
    if ((state & Bucket::kUsed) == Bucket::kUsed) continue;
    const uint32_t i = static_cast<uint32_t>(__builtin_ctz(~state));
    array.Put(bucket, i, key_bits, row, data);
    bucket->state.store(state | (1u << i), std::memory_order_relaxed);
    for (uint64_t passed = 0; passed < step; ++passed) {
      std::atomic<uint32_t>& full = array.buckets[home + SearchPath::Offset(passed)].state;
      const uint32_t counted = Bucket::WithPasser(full.load(std::memory_order_relaxed));
      range->displaced.crowded |= Bucket::IsCrowded(counted);
      full.store(counted, std::memory_order_relaxed);
    }
    range->displaced.Add(step);
    return true;
  }
  return false;
}

// Calls move(key_bits, row, data) for the entries of some buckets.
template <typename Move>
[[gnu::always_inline]] inline void ForEachMoving(const BucketArray& from, uint64_t begin,
                                                 uint64_t end, Move&& move) {
  for (uint64_t b = begin; b < end; ++b) {
    Bucket& bucket = from.buckets[b];
    const uint32_t state = bucket.state.load(std::memory_order_relaxed);
    bucket.state.store(state | Bucket::kLocked | Bucket::kMoved, std::memory_order_release);
    ForEachEntry(state & Bucket::kUsed, [&](uint32_t i) {
      EntryData data;
      if (from.columns.scores) data.score = *from.ScoreOf(&bucket, i);
      if (from.columns.metadata) data.metadata = from.MetadataOf(&bucket, i);
      move(bucket.bits[i].load(std::memory_order_relaxed),
           bucket.rows[i].load(std::memory_order_relaxed), data);
    });
  }
}

// Makes the array, in fresh memory, one without entries.
void ClearRange(const BucketArray& array, uint64_t begin, uint64_t end) {
  if (!array.columns.scores) return;
  std::fill(array.scores() + begin * kBucketEntries, array.scores() + end * kBucketEntries,
            kNoScore);
}

size_t RangesFor(uint64_t buckets) {
  return std::clamp<uint64_t>(buckets / kMinBuckets, 1, 2 * static_cast<uint64_t>(NumThreads()));
}

}  // namespace

void Stripe::Populate(const BucketArray& array, size_t bytes) {
  const size_t parts = bytes < 2 * kHugePage ? 1 : RangesFor(array.count);
  const size_t part_bytes = (bytes / parts + kHugePage - 1) / kHugePage * kHugePage;
  auto* pages = reinterpret_cast<std::byte*>(array.buckets);
  ParallelFor(parts, parts, [&](size_t part) {
    const size_t begin = std::min(part * part_bytes, bytes);
    PopulatePages(pages + begin, std::min(part_bytes, bytes - begin));
    ClearRange(array, array.count * part / parts, array.count * (part + 1) / parts);
  });
}

Displacement Stripe::MoveEntries(const BucketArray& from, const BucketArray& to) {
  Displacement displaced;
  const auto place = [&](uint64_t key_bits, uint32_t row, const EntryData& data) {
    Place(to, key_bits, HashOf(key_bits), row, data, &displaced);
  };
  if (from.seed != to.seed) {
    ForEachMoving(from, 0, from.count, place);
    return displaced;
  }
  constexpr size_t kLate = 2048;
  std::vector<Range> ranges(RangesFor(to.count));
  const size_t count = ranges.size();
  for (size_t r = 0; r < count; ++r) {
    ranges[r].begin = to.count * r / count;
    ranges[r].end = to.count * (r + 1) / count;
    ranges[r].late.reserve(kLate);
  }
  ParallelFor(count, count, [&](size_t r) {
    Range range = std::move(ranges[r]);
    ForEachMoving(from, from.count * r / count, from.count * (r + 1) / count,
                  [&](uint64_t key_bits, uint32_t row, const EntryData& data) TFRA_INLINE {
                    if (PlaceInRange(to, HashOf(key_bits), key_bits, row, data, &range)) return;
                    range.complete &= range.late.size() < kLate;
                    if (range.complete) range.late.push_back({key_bits, row, data});
                  });
    ranges[r] = std::move(range);
  });
  if (std::all_of(ranges.begin(), ranges.end(), [](const Range& r) { return r.complete; })) {
    for (const Range& range : ranges) {
      displaced.Add(range.displaced);
      steps_taken_ += range.displaced.steps;
      for (const LateEntry& entry : range.late) place(entry.key_bits, entry.row, entry.data);
    }
    return displaced;
  }
  // Keys that are not spread, as of a program that makes them collide: once more, one by one.
  std::fill_n(reinterpret_cast<std::byte*>(to.buckets), to.count * sizeof(Bucket), std::byte{0});
  ClearRange(to, 0, to.count);
  ForEachMoving(from, 0, from.count, place);
  return displaced;
}

}  // namespace tfra
