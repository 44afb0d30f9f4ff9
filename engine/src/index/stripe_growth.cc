// How a stripe moves to another array of buckets, on several threads.
//
// Both arrays are in the order of the keys' positions, so the first part of the old array goes to
// the first part of the new one. Each thread moves the entries of a range of old buckets, and
// writes only to the corresponding range of new buckets. The few entries that do not fit into that
// range are put aside, and one thread moves them at the end. If the seeds of the arrays differ, one
// thread moves all entries.
#include <algorithm>
#include <vector>

#include "index/stripe.h"
#include "memory/pages.h"
#include "tfra/thread_pool.h"

namespace tfra {
namespace {

// A thread gets at least this many buckets.
constexpr uint64_t kMinBuckets = 4096;

// An entry is put aside if it would be more than this many steps from its home bucket.
constexpr uint64_t kMaxSteps = 8;
constexpr uint64_t kReach = SearchPath::Offset(kMaxSteps);

struct LateEntry {
  uint64_t key_bits;
  uint32_t row;
  EntryData data;
};

struct Range {
  uint64_t begin;  // The new buckets [begin, end) that a thread may write to.
  uint64_t end;
  std::vector<LateEntry> late;  // Entries put aside. Never allocates while entries move.
  Displacement displaced;
  bool complete = true;
};

// Inserts a key if it fits into the range. Readers do not know the array yet.
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

// Initializes a range of an array in zeroed memory: no entry is in use.
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
  // Too many entries were put aside, because keys were chosen to collide. Start again on one
  // thread.
  std::fill_n(reinterpret_cast<std::byte*>(to.buckets), to.count * sizeof(Bucket), std::byte{0});
  ClearRange(to, 0, to.count);
  ForEachMoving(from, 0, from.count, place);
  return displaced;
}

}  // namespace tfra
