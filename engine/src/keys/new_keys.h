// What inserting needs to know beforehand: which keys are new, how many distinct ones there are,
// and the memory for their bytes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "keys/keys.h"
#include "memory/blob.h"
#include "tfra/status.h"

namespace tfra {

// Strings allocated before the first row changes, to be taken one by one as rows are written. What
// is not taken is freed in the end.
class PendingBlobs {
 public:
  PendingBlobs() = default;
  ~PendingBlobs() {
    for (Blob* blob : blobs_) std::free(blob);
  }
  PendingBlobs(const PendingBlobs&) = delete;
  PendingBlobs& operator=(const PendingBlobs&) = delete;

  void Resize(size_t count) { blobs_.resize(count, nullptr); }

  // Makes string i, unless it is there.
  Status Make(size_t i, std::string_view text, const char* what) {
    if (blobs_[i] == nullptr) blobs_[i] = Blob::Make(text);
    if (blobs_[i] != nullptr) return Status::Ok();
    return Status::OutOfMemory("could not allocate " + std::to_string(text.size()) +
                               " bytes for a string " + what);
  }

  // Gives string i up to the caller; null if it was not made.
  Blob* Take(size_t i) { return std::exchange(blobs_[i], nullptr); }

 private:
  std::vector<Blob*> blobs_;
};

// Chains equal keys, in the order in which they are added.
class KeyChains {
 public:
  static constexpr uint32_t kEnd = UINT32_MAX;

  // next: for the number of each key that is added, that of the next equal one, or kEnd.
  KeyChains(const KeyBits& bits, size_t at_most, uint32_t* next)
      : bits_(bits),
        mask_((size_t{1} << (64 - __builtin_clzll(at_most * 2 + 1))) - 1),
        next_(next),
        chains_(mask_ + 1) {}

  // Some keys ahead of Add.
  void Prefetch(uint32_t i) const { __builtin_prefetch(&chains_[PlaceOf(i)], 1); }

  // `i` is the key's number. Returns whether it is the first of its chain.
  bool Add(uint32_t i) {
    next_[i] = kEnd;
    size_t place = PlaceOf(i);
    while (chains_[place].first != kEnd && !bits_.Equal(chains_[place].first, i)) {
      place = (place + 1) & mask_;
    }
    Chain& chain = chains_[place];
    const bool first = chain.first == kEnd;
    if (first) {
      chain.first = i;
    } else {
      next_[chain.last] = i;
    }
    chain.last = i;
    return first;
  }

 private:
  struct Chain {
    uint32_t first = kEnd;
    uint32_t last;
  };

  size_t PlaceOf(uint32_t i) const { return Scramble(bits_[i], seed_) & mask_; }

  const KeyBits& bits_;
  const uint64_t seed_ = kScrambleSeed;
  size_t mask_;
  uint32_t* next_;
  std::vector<Chain> chains_;  // An open-addressed table, at most half full.
};

// Tells keys seen for the first time from repetitions.
class DistinctKeys {
 public:
  DistinctKeys(const KeyBits& bits, size_t at_most)
      : bits_(bits), mask_((size_t{2} << (64 - __builtin_clzll(at_most + 1))) - 1) {
    numbers_.resize(mask_ + 1, kNone);
  }

  // `i` is the key's number. Returns whether it is a new one.
  bool Add(uint32_t i) {
    size_t place = Scramble(bits_[i], seed_) & mask_;
    for (; numbers_[place] != kNone; place = (place + 1) & mask_) {
      if (bits_.Equal(numbers_[place], i)) return false;
    }
    numbers_[place] = i;
    return true;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  const KeyBits& bits_;
  const uint64_t seed_ = kScrambleSeed;
  size_t mask_;
  std::vector<uint32_t> numbers_;  // An open-addressed table, at most half full.
};

}  // namespace tfra
