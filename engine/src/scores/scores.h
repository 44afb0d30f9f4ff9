// What only bounded tables have: scores, the choice of the key to evict, and the room for new keys.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "index/stripe.h"
#include "tfra/table.h"

namespace tfra {

// Computes the scores of the keys that one call writes to. Each thread has its own copy.
class Scoring {
 public:
  // The equal keys of a call: the sum of their counts, and the position of the last one.
  struct Occurrences {
    uint64_t count = 0;
    size_t last = 0;
  };

  Scoring(EvictStrategy strategy, uint64_t now, const Scores& given)
      : strategy_(strategy), now_(now), given_(given) {}

  void Add(size_t i, Occurrences* occurrences) const {
    const uint64_t count = given_.kind == Scores::kCounts ? given_.values[i] : 1;
    occurrences->count = SaturatingSum(occurrences->count, count, kMaxScore);
    occurrences->last = i;
  }

  // before: the key's score; for a new key, how often it was seen before.
  uint64_t Score(uint64_t before, const Occurrences& occurrences) const {
    if (given_.kind == Scores::kExact) return std::min(given_.values[occurrences.last], kMaxScore);
    switch (strategy_) {
      case EvictStrategy::kLru:
        return std::min(now_ + occurrences.last, kMaxScore);
      case EvictStrategy::kLfu:
        return SaturatingSum(before, occurrences.count, kMaxScore);
      case EvictStrategy::kEpochLru:
        return std::min(now_, kMaxScore);
      case EvictStrategy::kEpochLfu: {
        const uint64_t count = SaturatingSum(before & UINT32_MAX, occurrences.count, UINT32_MAX);
        return std::min(now_ | count, kMaxScore);
      }
      case EvictStrategy::kCustomized:
        return before;
    }
    return before;
  }

 private:
  static uint64_t SaturatingSum(uint64_t a, uint64_t b, uint64_t most) {
    return b > most || a > most - b ? most : a + b;
  }

  EvictStrategy strategy_;
  uint64_t now_;  // kLru: the score of the first key. With epochs: the score without the count.
  Scores given_;
};

// Remembers in fixed memory, approximately, how often keys that are not in the table were seen. A
// key has two cells in one cache line, and its count is the smaller one; keys that share both cells
// are confused. New counts lower old counts a little, so that the cells do not fill up with keys
// that come only once. The position of a key in the index selects its cells. So if a stripe takes a
// new seed because keys were chosen to collide, these keys also get different cells.
// REQUIRES, for all functions with a position: the mutex of its stripe.
class CountMemory {
 public:
  // For a table of `keys` keys. Allocates memory at the first Remember.
  explicit CountMemory(uint64_t keys) : lines_(kStripes * LinesPerStripe(keys)) {}
  ~CountMemory() { Forget(); }
  CountMemory(const CountMemory&) = delete;
  CountMemory& operator=(const CountMemory&) = delete;

  // The count of a key; 0 if nothing is known.
  uint64_t Recall(uint64_t position) const;
  // If there is no memory, the count is forgotten.
  void Remember(uint64_t position, uint64_t count);
  // Forgets the counts of one stripe.
  void ForgetStripe(uint32_t stripe);
  // Forgets all counts and frees the memory. REQUIRES: the mutexes of all stripes.
  void Forget();
  void Prefetch(uint64_t position) const {
    if (Cell* cells = cells_.load()) __builtin_prefetch(LineOf(cells, position), 1);
  }

  // 0 before the first Remember.
  uint64_t bytes() const { return cells_.load() == nullptr ? 0 : lines_ * kLineBytes; }
  static uint64_t BytesFor(uint64_t keys) { return kStripes * LinesPerStripe(keys) * kLineBytes; }

 private:
  using Cell = uint16_t;
  static constexpr uint64_t kLineBytes = 64;
  static constexpr uint64_t kLineCells = kLineBytes / sizeof(Cell);
  static uint64_t LinesPerStripe(uint64_t keys);

  // Lines are in the order of positions, so the lines of keys that compete with each other are
  // near.
  Cell* LineOf(Cell* cells, uint64_t position) const {
    const uint64_t line =
        static_cast<uint64_t>((static_cast<unsigned __int128>(position) * lines_) >> 64);
    return cells + line * kLineCells;
  }
  std::array<Cell*, 2> CellsOf(Cell* cells, uint64_t position) const {
    Cell* line = LineOf(cells, position);
    return {line + position % kLineCells, line + position / kLineCells % kLineCells};
  }

  const uint64_t lines_;
  std::atomic<Cell*> cells_{nullptr};
  std::mutex mutex_;  // Guards the allocation.
  // For each stripe, the number of counts stored so far, which selects the next cell to halve.
  std::array<uint64_t, kStripes> turns_{};
};

// Whether there is room for some new keys: for all of them; for some of them, depending on their
// order; or only the room that each stripe has for itself.
enum class Room { kForAll, kForSome, kOfEachStripe };

// The bound of a table: its clock, the room for new keys, and the counts that it remembers. Any
// thread may call it; some functions require the mutex of a stripe.
class Bounds {
 public:
  explicit Bounds(const Bound& bound);

  uint64_t max_capacity() const { return max_capacity_; }
  // Whether all keys of the table are candidates for eviction.
  bool exact() const { return max_capacity_ <= static_cast<uint64_t>(kExactCapacity); }
  // The number of keys that a stripe is made for.
  uint64_t stripe_keys() const { return stripe_keys_; }

  Status CheckScores(const Scores& scores) const;
  // Call this at the start of a call of n keys.
  Scoring StartCall(size_t n, const Scores& given);
  // Advances the clock past these scores.
  void AdvancePast(const uint64_t* scores, size_t n);
  void SetEpoch(uint32_t epoch);
  uint32_t epoch() const;

  // The number of keys that there is room for beyond the shares of the stripes.
  uint64_t room() const { return room_.load(std::memory_order_relaxed); }
  // Whether only the shares of the stripes are left as room.
  bool is_full() const { return room() == 0 && !exact(); }
  // Whether most keys of the last call were new. The next call chooses its algorithm by this.
  bool mostly_new() const { return mostly_new_.load(std::memory_order_relaxed); }
  void NoteMissing(size_t missing, size_t keys) {
    mostly_new_.store(2 * missing > keys, std::memory_order_relaxed);
  }
  // Takes room for one more key of a stripe that has `size` keys. Returns false if there is none.
  // REQUIRES: the stripe's mutex.
  bool TakeRoom(uint64_t size);
  // The room for more[s] keys of each stripe s, unless other threads take it meanwhile.
  Room RoomFor(const Stripe* stripes, const std::array<uint64_t, kStripes>& more) const;
  // Gives back the room of one key of a stripe that has `size` keys. REQUIRES: the stripe's mutex.
  void GiveRoom(uint64_t size);
  // Counts one more key that is to be inserted into a stripe, and returns the count. REQUIRES: the
  // stripe's mutex.
  uint64_t CountInsert(uint32_t stripe) { return ++inserts_[stripe].count; }
  // Call this when all keys have left the table. REQUIRES: the mutexes of all stripes.
  void Clear();

  // The count of a key that is not in the table, by its position in the index. REQUIRES, for these:
  // the mutex of its stripe.
  uint64_t Recall(uint64_t position) const { return remembers_ ? memory_.Recall(position) : 0; }
  // Remembers the count of a key with this score that was rejected or has left the table.
  void Remember(uint64_t position, uint64_t score) {
    if (remembers_) memory_.Remember(position, score & count_mask_);
  }
  // Call this when the keys of a stripe have got new positions.
  void ForgetStripe(uint32_t stripe) {
    if (remembers_) memory_.ForgetStripe(stripe);
  }
  void PrefetchMemory(uint64_t position) const {
    if (remembers_) memory_.Prefetch(position);
  }
  uint64_t memory_bytes() const { return memory_.bytes(); }
  // The memory_bytes() of a table that remembers counts, after the first one.
  static uint64_t MemoryBytes(const Bound& bound);

 private:
  static bool Remembers(const Bound& bound);

  const EvictStrategy strategy_;
  const uint64_t max_capacity_;
  const uint64_t stripe_keys_;
  // Keys are spread evenly over the stripes, except for chance. But they may come stripe by stripe,
  // for example from an export. Each stripe evicts its own keys, so the first stripes must not take
  // the room of the others.
  const uint64_t most_;   // The most keys of a stripe.
  const uint64_t share_;  // The number of keys for which each stripe has room of its own.
  const bool remembers_;
  const uint64_t count_mask_;  // The part of a score that is a count.

  std::atomic<uint64_t> room_;
  std::atomic<bool> mostly_new_{true};
  // The last score that was used. kLru: a count of keys; with epochs: the epoch and a count of
  // calls.
  std::atomic<uint64_t> clock_{0};
  CountMemory memory_;
  // Each is guarded by its stripe's mutex, and has its own cache line.
  struct alignas(kCacheLine) Inserts {
    uint64_t count = 0;
  };
  std::array<Inserts, kStripes> inserts_;
};

// A key that may be evicted, and its score. `entry` is empty if there is no such key. REQUIRES, to
// use it: the stripe's mutex.
struct Candidate {
  uint32_t stripe = 0;
  Stripe::Entry entry;
  uint64_t score = kNoScore;
};

// A new key may evict the keys of this many buckets.
inline constexpr uint64_t kCandidateBuckets = 16;

// The key with the lowest score near the position of a hash. REQUIRES: the stripe's mutex.
Candidate LowestNear(const Stripe* stripes, uint64_t hash);
// The key with the lowest score of the table. REQUIRES: the mutexes of all stripes.
Candidate LowestOfAll(const Stripe* stripes);

}  // namespace tfra
