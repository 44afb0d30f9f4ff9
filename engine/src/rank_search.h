// Finds which of many numbers are among the k largest, in one pass over all of them. The numbers of
// a few rows, taken at random, tell a narrow range that the boundary is most likely in. The pass
// counts what is below that range and gathers what is within. If the boundary is not there after
// all, the next try takes a wider one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tfra {

// 64 bits that count, and 64 that decide between equal ones.
__extension__ typedef unsigned __int128 Rank;

class RankSearch {
 public:
  enum Side : uint8_t { kBelow, kWithin, kAbove };

  // `keep`: how many of the largest numbers stay.
  explicit RankSearch(uint64_t keep) : keep_(keep) {}

  // How many numbers to take at random before a pass. All, if there are no more.
  static constexpr uint64_t kSample = 65536;

  // Before each pass: `sample` was taken out of `size` numbers.
  void Aim(std::vector<Rank> sample, uint64_t size) {
    low_ = 0;
    high_ = ~Rank{0};
    const double stays =
        static_cast<double>(keep_) / static_cast<double>(std::max<uint64_t>(size, 1));
    const double count = static_cast<double>(sample.size());
    const double goes = std::max(0.0, 1.0 - stays);
    // In about one of a million samples the boundary is further away than this.
    const double margin = std::ldexp(5.0 * std::sqrt(count * goes * (1.0 - goes)) + 8.0, tries_++);
    if (size > kSample) {
      PickAt(&sample, count * goes - margin, &low_);
      PickAt(&sample, count * goes + margin, &high_);
    }
    below_ = seen_ = 0;
    within_.clear();
  }

  Side SideOf(Rank rank) const {
    if (rank < low_) return kBelow;
    return rank <= high_ ? kWithin : kAbove;
  }

  // The first and the last rank within.
  Rank low() const { return low_; }
  Rank high() const { return high_; }

  // The numbers of one part of the data, gone through by one thread.
  class Part {
   public:
    explicit Part(const RankSearch& search) : search_(search) {}

    Side Add(Rank rank) {
      const Side side = search_.SideOf(rank);
      if (side == kWithin) within_.push_back(rank);
      Count(side, 1);
      return side;
    }
    // Some of which it is known.
    void Count(Side side, uint64_t ranks) { counts_[side] += ranks; }

   private:
    friend class RankSearch;
    const RankSearch& search_;
    uint64_t counts_[3] = {};
    std::vector<Rank> within_;
  };

  // Of each part of the data, in any order and from any thread.
  void Take(const Part& part) {
    std::lock_guard lock(mutex_);
    below_ += part.counts_[kBelow];
    for (const uint64_t count : part.counts_) seen_ += count;
    within_.insert(within_.end(), part.within_.begin(), part.within_.end());
  }

  // After all parts were taken: whether the boundary was found. If not, aim again.
  bool Found() {
    const uint64_t go = seen_ > keep_ ? seen_ - keep_ : 0;
    boundary_ = low_;
    ties_ = 0;
    if (go < below_ || go > below_ + within_.size()) return false;
    if (within_.empty()) return true;
    const uint64_t first = std::min<uint64_t>(go - below_, within_.size() - 1);
    std::nth_element(within_.begin(), within_.begin() + static_cast<ptrdiff_t>(first),
                     within_.end());
    boundary_ = within_[first];
    const auto smaller =
        std::count_if(within_.begin(), within_.end(), [&](Rank rank) { return rank < boundary_; });
    ties_ = go - below_ - static_cast<uint64_t>(smaller);
    return true;
  }

  // Numbers below this go, and `ties` of those that are equal to it.
  Rank boundary() const { return boundary_; }
  uint64_t ties() const { return ties_; }

 private:
  // The number at a place of the sample in its order. Leaves *rank as it is beyond its ends.
  static void PickAt(std::vector<Rank>* sample, double place, Rank* rank) {
    if (place < 0.0 || place >= static_cast<double>(sample->size())) return;
    const auto at = sample->begin() + static_cast<ptrdiff_t>(place);
    std::nth_element(sample->begin(), at, sample->end());
    *rank = *at;
  }

  const uint64_t keep_;
  int tries_ = 0;
  Rank low_ = 0, high_ = ~Rank{0};
  Rank boundary_ = 0;
  uint64_t ties_ = 0;

  std::mutex mutex_;
  // Guarded by mutex_.
  uint64_t below_ = 0, seen_ = 0;
  std::vector<Rank> within_;
};

}  // namespace tfra
