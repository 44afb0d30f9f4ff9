// What only bounded tables have: scores, the choice of the key to evict, and the room that is left.
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
  // Equal keys of the call, which it writes to one after the other.
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
  uint64_t now_;  // kLru: the score of the first key. With epochs: all of the score but the count.
  Scores given_;
};

// How often keys that are not in the table were seen, approximately, in fixed memory. A key has two
// cells of one cache line, and the smaller one counts; keys that share both cells are taken for one
// another. Each new count lowers old ones a little, so that the cells do not fill up with keys that
// come once. Keys are identified by their positions in the index, so when a stripe takes a new seed
// because of keys that were chosen to collide, such keys do not share cells any more either.
// REQUIRES, for all that takes a position: the mutex of its stripe.
class CountMemory {
 public:
  // For a table of so many keys. Takes memory only when there is something to remember.
  explicit CountMemory(uint64_t keys) : lines_(kStripes * LinesPerStripe(keys)) {}
  ~CountMemory() { Forget(); }
  CountMemory(const CountMemory&) = delete;
  CountMemory& operator=(const CountMemory&) = delete;

  // 0 if nothing is known.
  uint64_t Recall(uint64_t position) const;
  // If there is no memory, the count is forgotten.
  void Remember(uint64_t position, uint64_t count);
  // All of a stripe.
  void ForgetStripe(uint32_t stripe);
  // REQUIRES: the mutexes of all stripes.
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

  // In the order of positions: those of a stripe are together, and so are those of keys that
  // compete.
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
  // For each stripe, the number of counts so far, which says which cells are lowered next.
  std::array<uint64_t, kStripes> turns_{};
};

// The room for some new keys: for all of them; for some of them, depending on which come first; or
// only the room that belongs to their stripes.
enum class Room { kForAll, kForSome, kOfEachStripe };

// The bound of a table: its clock, the room that is left, the counts it remembers. Any thread,
// except where a stripe's mutex is asked for.
class Bounds {
 public:
  explicit Bounds(const Bound& bound);

  uint64_t max_capacity() const { return max_capacity_; }
  // Whether all keys of the table are candidates.
  bool exact() const { return max_capacity_ <= static_cast<uint64_t>(kExactCapacity); }
  // The number of keys that a stripe is made for.
  uint64_t stripe_keys() const { return stripe_keys_; }

  Status CheckScores(const Scores& scores) const;
  // At the start of a call of n keys.
  Scoring StartCall(size_t n, const Scores& given);
  // The clock goes on after these scores.
  void AdvancePast(const uint64_t* scores, size_t n);
  void SetEpoch(uint32_t epoch);
  uint32_t epoch() const;

  // Keys there is room for beyond the shares of the stripes.
  uint64_t room() const { return room_.load(std::memory_order_relaxed); }
  // Whether only the room that belongs to the stripes is left.
  bool is_full() const { return room() == 0 && !exact(); }
  // Whether most keys of the last call were new, which decides how the next call is done.
  bool mostly_new() const { return mostly_new_.load(std::memory_order_relaxed); }
  void NoteMissing(size_t missing, size_t keys) {
    mostly_new_.store(2 * missing > keys, std::memory_order_relaxed);
  }
  // Takes room for one more key of a stripe of `size` keys, if there is some. REQUIRES, for these
  // two: the stripe's mutex.
  bool TakeRoom(uint64_t size);
  // The room for so many more keys of each stripe, unless other threads take it.
  Room RoomFor(const Stripe* stripes, const std::array<uint64_t, kStripes>& more) const;
  // Gives back what one key of a stripe of `size` keys took.
  void GiveRoom(uint64_t size);
  // The keys that a stripe was asked to take so far. REQUIRES: its mutex.
  uint64_t CountInsert(uint32_t stripe) { return ++inserts_[stripe].count; }
  // All keys have left the table. REQUIRES: the mutexes of all stripes.
  void Clear();

  // What is known of a key that is not there, by its position in the index. REQUIRES, for these:
  // the mutex of its stripe.
  uint64_t Recall(uint64_t position) const { return remembers_ ? memory_.Recall(position) : 0; }
  // A key of this score is not, or no longer, in the table.
  void Remember(uint64_t position, uint64_t score) {
    if (remembers_) memory_.Remember(position, score & count_mask_);
  }
  // The keys of a stripe have other positions now.
  void ForgetStripe(uint32_t stripe) {
    if (remembers_) memory_.ForgetStripe(stripe);
  }
  void PrefetchMemory(uint64_t position) const {
    if (remembers_) memory_.Prefetch(position);
  }
  uint64_t memory_bytes() const { return memory_.bytes(); }
  // What memory_bytes() is when there is something to remember.
  static uint64_t MemoryBytes(const Bound& bound);

 private:
  static bool Remembers(const Bound& bound);

  const EvictStrategy strategy_;
  const uint64_t max_capacity_;
  const uint64_t stripe_keys_;
  // Stripes differ by chance only. Keys may come stripe by stripe, as from an export: whoever comes
  // first must not take the room of others, since stripes evict for themselves.
  const uint64_t most_;   // Keys of a stripe.
  const uint64_t share_;  // Keys of each stripe for which other stripes leave room.
  const bool remembers_;
  const uint64_t count_mask_;  // The part of a score that is a count.

  std::atomic<uint64_t> room_;
  std::atomic<bool> mostly_new_{true};
  // The last score that was given out: kLru, a count; with epochs, the epoch and the calls in it.
  std::atomic<uint64_t> clock_{0};
  CountMemory memory_;
  // Each guarded by its stripe's mutex, and apart from those of other threads.
  struct alignas(kCacheLine) Inserts {
    uint64_t count = 0;
  };
  std::array<Inserts, kStripes> inserts_;
};

// An entry and its score; no entry if there is none. REQUIRES, to use it: the stripe's mutex.
struct Candidate {
  uint32_t stripe = 0;
  Stripe::Entry entry;
  uint64_t score = kNoScore;
};

// Buckets whose keys are candidates for a new one.
inline constexpr uint64_t kCandidateBuckets = 16;

// The candidate of the lowest score near a hash, in its own stripe. REQUIRES: the stripe's mutex.
Candidate LowestNear(const Stripe* stripes, uint64_t hash);
// Of all keys. REQUIRES: the mutexes of all stripes.
Candidate LowestOfAll(const Stripe* stripes);

}  // namespace tfra
