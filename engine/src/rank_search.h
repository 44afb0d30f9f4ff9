// Finds the k-th smallest of many numbers that can be gone through several times but not be kept:
// by counting how many fall into each of some ranges, again and again in the range that has it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tfra {

// 64 bits that count, and 64 that decide between equal ones.
__extension__ typedef unsigned __int128 Rank;

class RankSearch {
 public:
  // The numbers of one part of the data, gone through by one thread.
  class Part {
   public:
    explicit Part(const RankSearch& search) : search_(search) {
      if (search.step_ != kCollect) counts_.resize(search.Bins());
    }

    void Add(Rank rank) {
      if (search_.step_ == kFirst) {
        low_ = std::min(low_, rank);
        high_ = std::max(high_, rank);
        ++counts_[CoarseBin(static_cast<uint64_t>(rank >> 64))];
      } else if (rank >= search_.low_ && rank <= search_.high_) {
        if (search_.step_ == kCount) {
          ++counts_[static_cast<size_t>((rank - search_.low_) >> search_.shift_)];
        } else {
          ranks_.push_back(rank);
        }
      }
    }

   private:
    friend class RankSearch;
    const RankSearch& search_;
    Rank low_ = ~Rank{0}, high_ = 0;
    std::vector<uint32_t> counts_;
    std::vector<Rank> ranks_;
  };

  // Of each part of the data, in any order and from any thread.
  void Take(const Part& part) {
    std::lock_guard lock(mutex_);
    seen_low_ = std::min(seen_low_, part.low_);
    seen_high_ = std::max(seen_high_, part.high_);
    counts_.resize(part.counts_.size());
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += part.counts_[i];
    ranks_.insert(ranks_.end(), part.ranks_.begin(), part.ranks_.end());
  }

  // After all parts were taken: whether the data must be gone through once more. `keep`: how many
  // of the largest numbers stay.
  bool Next(uint64_t keep) {
    if (step_ == kFirst) {
      uint64_t size = 0;
      for (const uint64_t count : counts_) size += count;
      if (size <= keep) return false;  // All stay: low_ is 0.
      below_ = size - keep;
      const size_t bin = TakeBin();
      low_ = std::max(seen_low_, CoarseStart(bin));
      high_ = std::min(seen_high_, CoarseStart(bin + 1) - 1);
    } else if (step_ == kCount) {
      low_ += static_cast<Rank>(TakeBin()) << shift_;
      high_ = low_ + std::min(high_ - low_, (Rank{1} << shift_) - 1);
    } else {
      if (ranks_.empty()) return false;
      const auto place = static_cast<ptrdiff_t>(std::min<uint64_t>(below_, ranks_.size() - 1));
      std::nth_element(ranks_.begin(), ranks_.begin() + place, ranks_.end());
      low_ = ranks_[static_cast<size_t>(place)];
      below_ -= static_cast<uint64_t>(
          std::count_if(ranks_.begin(), ranks_.end(), [&](Rank rank) { return rank < low_; }));
      return false;
    }
    if (low_ >= high_ || below_ == 0) return false;
    step_ = in_range_ <= kFew ? kCollect : kCount;
    for (shift_ = 0; ((high_ - low_) >> shift_) >= kMostBins;) ++shift_;
    return true;
  }

  // Numbers below this go, and `ties` of those that are equal to it.
  Rank boundary() const { return low_; }
  uint64_t ties() const { return below_; }

 private:
  static constexpr size_t kMostBins = size_t{1} << 16;
  static constexpr uint64_t kFew = 65536;
  enum Step { kFirst, kCount, kCollect };

  // The first time nothing is known of the numbers: ranges that double, each in 512 parts.
  static constexpr uint32_t kCoarseDigits = 10;
  static constexpr size_t kCoarseBins = (64 - kCoarseDigits) * 512 + 1024;
  static size_t CoarseBin(uint64_t number) {
    const int digits = std::bit_width(number);
    const uint64_t shift =
        digits <= int{kCoarseDigits} ? 0 : static_cast<uint64_t>(digits) - kCoarseDigits;
    return static_cast<size_t>(shift * 512 + (number >> shift));
  }
  // The smallest rank of a bin.
  static Rank CoarseStart(size_t bin) {
    const size_t shift = bin < 1024 ? 0 : bin / 512 - 1;
    return static_cast<Rank>(bin - shift * 512) << shift << 64;
  }

  size_t Bins() const {
    return step_ == kFirst ? kCoarseBins : static_cast<size_t>((high_ - low_) >> shift_) + 1;
  }

  // The bin that has the number which is looked for: the smaller ones are counted off.
  size_t TakeBin() {
    size_t bin = 0;
    while (bin + 1 < counts_.size() && below_ >= counts_[bin]) below_ -= counts_[bin++];
    in_range_ = counts_[bin];
    counts_.clear();
    return bin;
  }

  Step step_ = kFirst;
  // The number that is looked for is one of those from low_ to high_, `in_range_` of them, `below_`
  // of which go.
  Rank low_ = 0, high_ = 0;
  uint64_t in_range_ = 0;
  uint64_t below_ = 0;
  uint32_t shift_ = 0;

  std::mutex mutex_;
  // Guarded by mutex_.
  Rank seen_low_ = ~Rank{0}, seen_high_ = 0;
  std::vector<uint64_t> counts_;
  std::vector<Rank> ranks_;
};

}  // namespace tfra
