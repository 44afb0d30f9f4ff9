// Finds the boundary between the k largest of many numbers and the rest, usually in one pass over
// all numbers. A random sample gives a narrow range that most likely contains the boundary. The
// pass counts the numbers below the range and collects those inside it. If the range does not
// contain the boundary, the next pass has a wider range:
//
//   do {
//     search.Aim(sample, size);
//     for each part of the numbers, on any thread: NewPart, Add, Take
//   } while (!search.Found());
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tfra {

class RankSearch {
 public:
  // keep: how many of the largest numbers are kept. The others are below the boundary.
  explicit RankSearch(uint64_t keep) : keep_(keep) {}

  // How many numbers a sample should have. With fewer numbers than this, the sample may be empty.
  static constexpr uint64_t kSample = 65536;

  // Starts a pass: chooses its range from a sample of `size` numbers, twice as wide as in the last
  // pass, and drops what that pass has found. If the sample is empty, the range is all numbers.
  void Aim(std::vector<uint64_t> sample, uint64_t size) {
    const double stays =
        static_cast<double>(keep_) / static_cast<double>(std::max<uint64_t>(size, 1));
    const double count = static_cast<double>(sample.size());
    const double goes = std::max(0.0, 1.0 - stays);
    // In about one of a million samples the boundary is further away than this.
    const double margin = std::ldexp(5.0 * std::sqrt(count * goes * (1.0 - goes)) + 8.0, tries_++);
    low_ = PickAt(&sample, count * goes - margin, 0);
    high_ = PickAt(&sample, count * goes + margin, UINT64_MAX);
    all_.seen = all_.below = all_.to_low = all_.to_high = 0;
    all_.between.clear();
  }

  // What a pass finds out about a part of the numbers. Numbers equal to an end of the range are
  // counted, and not collected: if many numbers are equal, the end of the range is likely to be
  // that number.
  struct Part {
    Part(uint64_t lowest, uint64_t highest) : low(lowest), high(highest) {}

    const uint64_t low, high;
    uint64_t seen = 0;
    uint64_t below = 0;             // Smaller than low,
    uint64_t to_low = 0;            // not larger than low,
    uint64_t to_high = 0;           // and not larger than high.
    std::vector<uint64_t> between;  // Larger than low, smaller than high.
  };
  Part NewPart() const { return Part(low_, high_); }

  // Adds `count` numbers to a part: number(0), number(1), ... Has no branch that a CPU could not
  // predict.
  template <typename Number>
  [[gnu::always_inline]] static void Add(uint64_t count, Number&& number, Part* part) {
    const uint64_t low = part->low, high = part->high;
    const uint64_t inner = high > low ? high - low - 1 : 0;
    uint64_t below = 0, to_low = 0, to_high = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t value = number(i);
      below += value < low;
      to_low += value <= low;
      to_high += value <= high;
      if (value - low - 1 < inner) [[unlikely]]
        part->between.push_back(value);
    }
    part->seen += count;
    part->below += below;
    part->to_low += to_low;
    part->to_high += to_high;
  }

  // Adds a complete part to the pass. Any thread may call this, in any order.
  void Take(const Part& part) {
    std::lock_guard lock(mutex_);
    all_.seen += part.seen;
    all_.below += part.below;
    all_.to_low += part.to_low;
    all_.to_high += part.to_high;
    all_.between.insert(all_.between.end(), part.between.begin(), part.between.end());
  }

  // Ends a pass, after all parts were taken. Returns whether the boundary was found; if not, start
  // another pass by Aim.
  bool Found() {
    const uint64_t go = all_.seen > keep_ ? all_.seen - keep_ : 0;
    if (go < all_.below || go > all_.to_high) return false;
    const uint64_t to_between = all_.to_low + all_.between.size();
    if (go <= all_.to_low) {
      SetBoundary(low_, go - all_.below, all_.to_low - all_.below);
    } else if (go <= to_between) {
      auto& between = all_.between;
      const auto last = between.begin() + static_cast<ptrdiff_t>(go - all_.to_low - 1);
      std::nth_element(between.begin(), last, between.end());
      const uint64_t boundary = *last;
      const auto smaller = std::count_if(between.begin(), between.end(),
                                         [=](uint64_t number) { return number < boundary; });
      const auto equal = std::count(between.begin(), between.end(), boundary);
      SetBoundary(boundary, go - all_.to_low - static_cast<uint64_t>(smaller),
                  static_cast<uint64_t>(equal));
    } else {
      SetBoundary(high_, go - to_between, all_.to_high - to_between);
    }
    return true;
  }

  // The result. Numbers below the boundary are not kept. Of the `equals` numbers that are equal to
  // it, `ties` are not kept either.
  uint64_t boundary() const { return boundary_; }
  uint64_t ties() const { return ties_; }
  uint64_t equals() const { return equals_; }

 private:
  void SetBoundary(uint64_t boundary, uint64_t ties, uint64_t equals) {
    boundary_ = boundary;
    ties_ = ties;
    equals_ = equals;
  }

  // The number at a place of the sorted sample; `beyond` if there is no such place.
  static uint64_t PickAt(std::vector<uint64_t>* sample, double place, uint64_t beyond) {
    if (place < 0.0 || place >= static_cast<double>(sample->size())) return beyond;
    const auto at = sample->begin() + static_cast<ptrdiff_t>(place);
    std::nth_element(sample->begin(), at, sample->end());
    return *at;
  }

  const uint64_t keep_;
  int tries_ = 0;
  uint64_t low_ = 0, high_ = UINT64_MAX;
  uint64_t boundary_ = 0, ties_ = 0, equals_ = 0;

  std::mutex mutex_;
  Part all_{0, 0};  // Guarded by mutex_.
};

}  // namespace tfra
