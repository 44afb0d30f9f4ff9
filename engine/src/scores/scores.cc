#include "scores/scores.h"

#include <algorithm>
#include <string>

#include "keys/keys.h"
#include "memory/pages.h"

namespace tfra {
namespace {

// The number of cells for each key that a stripe is made for, and the least number of cache lines.
constexpr uint64_t kCellsPerKey = 4;
constexpr uint64_t kMinLines = 128;
// Each time this many counts were stored, one cell is halved. If cells were halved more often, keys
// would be forgotten before they come again; if less often, keys that come once would look
// frequent.
constexpr uint64_t kTurnsPerCell = 4;

// Scores from here on, if callers give them, do not advance the clock: it would soon overflow.
constexpr uint64_t kLastClock = uint64_t{1} << 63;

void RaiseTo(std::atomic<uint64_t>* clock, uint64_t value) {
  uint64_t now = clock->load();
  while (now < value && !clock->compare_exchange_weak(now, value)) {
  }
}

// Sets `best` to the entry with the lowest score of some buckets, if that is lower than
// best->score. Returns how many of the buckets have keys. It checks only the first two entries of a
// bucket, since entries are used in order.
uint64_t LookAt(const BucketArray& array, uint32_t stripe, uint64_t first, uint64_t buckets,
                Candidate* best) {
  static_assert(kBucketEntries == 5);
  const uint64_t* score = array.scores() + first * kBucketEntries;
  // Finds the minimum of each bucket first, without branches, so that comparisons run in parallel.
  uint64_t lowest = kNoScore, lowest_bucket = 0, taken = 0;
  for (uint64_t b = 0; b < buckets; ++b, score += kBucketEntries) {
    const uint64_t front = std::min(score[0], score[1]);
    const uint64_t of_bucket = std::min(std::min(front, score[4]), std::min(score[2], score[3]));
    taken += front != kNoScore;
    lowest_bucket = of_bucket < lowest ? b : lowest_bucket;
    lowest = std::min(of_bucket, lowest);
  }
  if (lowest >= best->score) return taken;
  Bucket* const bucket = array.buckets + first + lowest_bucket;
  uint32_t index = 0;
  while (index + 1 < kBucketEntries && *array.ScoreOf(bucket, index) != lowest) ++index;
  *best = {stripe, {bucket, index}, lowest};
  return taken;
}

}  // namespace

uint64_t CountMemory::LinesPerStripe(uint64_t keys) {
  return std::max(kMinLines, kCellsPerKey * KeysPerStripe(keys) / kLineCells);
}

uint64_t CountMemory::Recall(uint64_t position) const {
  Cell* cells = cells_.load(std::memory_order_acquire);
  if (cells == nullptr) return 0;
  const auto own = CellsOf(cells, position);
  return std::min(*own[0], *own[1]);
}

void CountMemory::Remember(uint64_t position, uint64_t count) {
  if (cells_.load(std::memory_order_acquire) == nullptr) {
    std::lock_guard lock(mutex_);
    if (cells_.load() == nullptr) {
      cells_.store(reinterpret_cast<Cell*>(AllocatePages(lines_ * kLineBytes)));
    }
  }
  Cell* cells = cells_.load(std::memory_order_acquire);
  if (cells == nullptr) return;
  const Cell seen = static_cast<Cell>(std::min<uint64_t>(count, UINT16_MAX));
  for (Cell* cell : CellsOf(cells, position)) *cell = std::max(*cell, seen);
  const uint32_t stripe = StripeOf(position);
  if (++turns_[stripe] % kTurnsPerCell != 0) return;
  const uint64_t stripe_cells = lines_ / kStripes * kLineCells;
  cells[stripe * stripe_cells + turns_[stripe] / kTurnsPerCell % stripe_cells] /= 2;
}

void CountMemory::ForgetStripe(uint32_t stripe) {
  Cell* cells = cells_.load(std::memory_order_acquire);
  if (cells == nullptr) return;
  const uint64_t stripe_cells = lines_ / kStripes * kLineCells;
  std::fill_n(cells + stripe * stripe_cells, stripe_cells, Cell{0});
}

void CountMemory::Forget() {
  FreePages(reinterpret_cast<std::byte*>(cells_.load()), bytes());
  cells_.store(nullptr);
  turns_ = {};
}

bool Bounds::Remembers(const Bound& bound) {
  return bound.remember_counts &&
         (bound.strategy == EvictStrategy::kLfu || bound.strategy == EvictStrategy::kEpochLfu);
}

uint64_t Bounds::MemoryBytes(const Bound& bound) {
  return Remembers(bound) ? CountMemory::BytesFor(static_cast<uint64_t>(bound.max_capacity)) : 0;
}

Bounds::Bounds(const Bound& bound)
    : strategy_(bound.strategy),
      max_capacity_(static_cast<uint64_t>(bound.max_capacity)),
      stripe_keys_(KeysPerStripe(max_capacity_)),
      most_(exact() ? max_capacity_ : stripe_keys_),
      share_(exact() ? 0 : 2 * (max_capacity_ / kStripes) - most_),
      remembers_(Remembers(bound)),
      count_mask_(bound.strategy == EvictStrategy::kEpochLfu ? UINT32_MAX : UINT64_MAX),
      room_(max_capacity_ - kStripes * share_),
      memory_(max_capacity_) {}

Status Bounds::CheckScores(const Scores& scores) const {
  if (scores.kind != Scores::kCounts || strategy_ == EvictStrategy::kLfu ||
      strategy_ == EvictStrategy::kEpochLfu) {
    return Status::Ok();
  }
  return Status::InvalidArgument(
      "counts of occurrences need a table that evicts by frequency (kLfu, kEpochLfu), received one "
      "of another strategy");
}

Scoring Bounds::StartCall(size_t n, const Scores& given) {
  uint64_t now = 0;
  if (given.kind == Scores::kExact) {
    AdvancePast(given.values, n);
  } else if (strategy_ == EvictStrategy::kLru) {
    now = clock_.fetch_add(n) + 1;
  } else if (strategy_ == EvictStrategy::kEpochLru) {
    uint64_t last = clock_.load();
    do {
      now = (last & UINT32_MAX) == UINT32_MAX ? last : last + 1;
    } while (!clock_.compare_exchange_weak(last, now));
  } else {
    now = clock_.load();
  }
  return Scoring(strategy_, now, given);
}

void Bounds::AdvancePast(const uint64_t* scores, size_t n) {
  uint64_t latest = 0;
  if (strategy_ == EvictStrategy::kLru) {
    for (size_t i = 0; i < n; ++i) {
      if (scores[i] < kLastClock) latest = std::max(latest, scores[i]);
    }
  } else if (strategy_ == EvictStrategy::kEpochLru) {
    const uint32_t now = epoch();
    for (size_t i = 0; i < n; ++i) {
      if (scores[i] >> 32 == now) latest = std::max(latest, scores[i]);
    }
  }
  RaiseTo(&clock_, latest);
}

void Bounds::SetEpoch(uint32_t epoch) {
  const bool epochs =
      strategy_ == EvictStrategy::kEpochLru || strategy_ == EvictStrategy::kEpochLfu;
  if (epochs && epoch != this->epoch()) clock_.store(uint64_t{epoch} << 32);
}

uint32_t Bounds::epoch() const {
  return strategy_ == EvictStrategy::kLru ? 0 : static_cast<uint32_t>(clock_.load() >> 32);
}

bool Bounds::TakeRoom(uint64_t size) {
  if (size < share_) return true;
  if (size >= most_) return false;
  uint64_t room = room_.load(std::memory_order_relaxed);
  while (room > 0) {
    if (room_.compare_exchange_weak(room, room - 1, std::memory_order_relaxed)) return true;
  }
  return false;
}

void Bounds::GiveRoom(uint64_t size) {
  if (size > share_) room_.fetch_add(1, std::memory_order_relaxed);
}

Room Bounds::RoomFor(const Stripe* stripes, const std::array<uint64_t, kStripes>& more) const {
  bool fits = true;
  uint64_t wanted = 0;  // How much of the shared room the keys need.
  for (uint32_t s = 0; s < kStripes; ++s) {
    const uint64_t size = stripes[s].size();
    fits &= size + more[s] <= most_;
    const uint64_t own = std::max(size, share_), in_the_end = std::min(size + more[s], most_);
    if (in_the_end > own) wanted += in_the_end - own;
  }
  const uint64_t room = this->room();
  if (fits && wanted <= room) return Room::kForAll;
  return room > 0 && wanted > room ? Room::kForSome : Room::kOfEachStripe;
}

void Bounds::Clear() {
  room_.store(max_capacity_ - kStripes * share_, std::memory_order_relaxed);
  memory_.Forget();
}

Candidate LowestNear(const Stripe* stripes, uint64_t hash) {
  const uint32_t number = StripeOf(hash);
  const BucketArray& array = *stripes[number].array();
  Candidate best;
  const uint64_t window = std::min(kCandidateBuckets, array.count);
  uint64_t first = array.HomeOf(hash);
  // If keys were inserted or removed in the order of their hashes, a part of the stripe is empty. A
  // new key of that part would have few candidates to evict, so it also looks at other parts.
  const uint64_t jump = array.count * 5 / 8 + 1;
  constexpr int kMostJumps = 7;
  for (int jumps = 0;; ++jumps) {
    const uint64_t before_end = std::min(window, array.count - first);
    const uint64_t taken = LookAt(array, number, first, before_end, &best);
    LookAt(array, number, 0, window - before_end, &best);
    if (jumps == kMostJumps || 4 * taken >= 3 * before_end) break;
    first = (first + jump) % array.count;
  }
  // If keys were chosen to collide, they may all be in buckets that were not looked at.
  for (first = 0; first < array.count && !best.entry; first += window) {
    LookAt(array, number, first, std::min(window, array.count - first), &best);
  }
  return best;
}

Candidate LowestOfAll(const Stripe* stripes) {
  Candidate best;
  for (uint32_t s = 0; s < kStripes; ++s) {
    const BucketArray& array = *stripes[s].array();
    LookAt(array, s, 0, array.count, &best);
  }
  return best;
}

}  // namespace tfra
