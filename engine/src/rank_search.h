// Finds the k-th smallest of many numbers that can be gone through several times but not be kept:
// by counting how many fall into each of some ranges, again and again in the range that has it.
#pragma once

#include <algorithm>
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
      if (search.step_ == kCount) counts_.resize(search.Bins());
    }

    void Add(Rank rank) {
      if (search_.step_ == kBounds) {
        low_ = std::min(low_, rank);
        high_ = std::max(high_, rank);
        ++size_;
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
    uint64_t size_ = 0;
    std::vector<uint32_t> counts_;
    std::vector<Rank> ranks_;
  };

  // Of each part of the data, in any order and from any thread.
  void Take(const Part& part) {
    std::lock_guard lock(mutex_);
    if (step_ == kBounds) {
      seen_low_ = std::min(seen_low_, part.low_);
      seen_high_ = std::max(seen_high_, part.high_);
      size_ += part.size_;
    } else if (step_ == kCount) {
      if (counts_.empty()) counts_.resize(part.counts_.size());
      for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += part.counts_[i];
    } else {
      ranks_.insert(ranks_.end(), part.ranks_.begin(), part.ranks_.end());
    }
  }

  // After all parts were taken: whether the data must be gone through once more. `keep`: how many
  // of the largest numbers stay.
  bool Next(uint64_t keep) {
    if (step_ == kBounds) {
      if (size_ <= keep) return false;  // All stay: low_ is 0.
      below_ = size_ - keep;
      low_ = seen_low_;
      high_ = seen_high_;
    } else if (step_ == kCount) {
      size_t bin = 0;
      while (bin + 1 < counts_.size() && below_ >= counts_[bin]) below_ -= counts_[bin++];
      in_range_ = counts_[bin];
      low_ += static_cast<Rank>(bin) << shift_;
      high_ = std::min(high_, low_ + ((Rank{1} << shift_) - 1));
      counts_.clear();
    } else {
      const auto place = std::min<uint64_t>(below_, ranks_.empty() ? 0 : ranks_.size() - 1);
      if (!ranks_.empty()) {
        std::nth_element(ranks_.begin(), ranks_.begin() + static_cast<ptrdiff_t>(place),
                         ranks_.end());
        low_ = ranks_[place];
        below_ = static_cast<uint64_t>(
            std::count(ranks_.begin(), ranks_.begin() + static_cast<ptrdiff_t>(place), low_));
      }
      return false;
    }
    if (low_ == high_ || below_ == 0) return false;
    step_ = in_range_ <= kFew ? kCollect : kCount;
    const Rank range = high_ - low_;
    for (shift_ = 0; (range >> shift_) >= kMostBins;) ++shift_;
    return true;
  }

  // Numbers below this go, and `ties` of those that are equal to it.
  Rank boundary() const { return low_; }
  uint64_t ties() const { return below_; }

 private:
  static constexpr size_t kMostBins = size_t{1} << 16;
  static constexpr uint64_t kFew = 65536;
  enum Step { kBounds, kCount, kCollect };

  size_t Bins() const { return static_cast<size_t>((high_ - low_) >> shift_) + 1; }

  Step step_ = kBounds;
  // The number that is looked for is one of those from low_ to high_, `below_` of which go.
  Rank low_ = 0, high_ = 0;
  uint64_t below_ = 0;
  uint64_t in_range_ = UINT64_MAX;
  uint32_t shift_ = 0;

  std::mutex mutex_;
  // Guarded by mutex_.
  Rank seen_low_ = ~Rank{0}, seen_high_ = 0;
  uint64_t size_ = 0;
  std::vector<uint64_t> counts_;
  std::vector<Rank> ranks_;
};

}  // namespace tfra
