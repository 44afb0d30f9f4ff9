// One cache line of the index: five keys, five row numbers, and one word of state.
//
// The state says which entries are in use, how many keys had to go on to a later bucket, whether a
// writer holds the bucket, and a version that each writer advances. A reader takes the state, finds
// its key, copies the row, and compares the state again: unchanged means the copy is whole.
#pragma once

#include <atomic>
#include <cstdint>

#include "sync.h"

namespace tfra {

inline constexpr uint32_t kBucketEntries = 5;

struct alignas(64) Bucket {
  // The key itself, or the hash of a string.
  std::atomic<uint64_t> words[kBucketEntries];
  std::atomic<uint32_t> rows[kBucketEntries];
  std::atomic<uint32_t> state;

  static constexpr uint32_t kUsed = (1u << kBucketEntries) - 1;
  // How many keys whose search starts here or earlier live further on. At kOverflow the count is
  // lost and stays until the index is rebuilt, which costs time but finds every key.
  static constexpr uint32_t kOverflowOne = 1u << 5;
  static constexpr uint32_t kOverflow = 15u << 5;
  static constexpr uint32_t kLocked = 1u << 9;
  // The entries were copied to a new array. They can be read here until that one is published.
  static constexpr uint32_t kMoved = 1u << 10;
  static constexpr uint32_t kVersionOne = 1u << 11;

  // Entries in use that hold `word`, as a bit mask.
  uint32_t Match(uint64_t word, uint32_t state) const {
    // Written out, because compilers keep a loop over atomics a loop.
    const auto bit = [&](uint32_t i) {
      return static_cast<uint32_t>(words[i].load(std::memory_order_relaxed) == word) << i;
    };
    static_assert(kBucketEntries == 5);
    return (bit(0) | bit(1) | bit(2) | bit(3) | bit(4)) & state;
  }

  // Locks the bucket if its state is still `seen`: then nothing that was read since has changed.
  bool TryLock(uint32_t seen) {
    if (seen & kLocked) return false;
    const bool locked = state.compare_exchange_strong(seen, seen | kLocked, std::memory_order_acquire,
                                                      std::memory_order_relaxed);
    ReleaseFence();
    return locked;
  }

  // Waits for the lock and returns the state before it. REQUIRES: the bucket has not moved.
  uint32_t Lock() {
    Backoff backoff;
    for (;;) {
      const uint32_t seen = state.load(std::memory_order_relaxed);
      if (TryLock(seen)) return seen;
      backoff.Wait();
    }
  }

  // Ends a lock under which nothing was changed.
  void Release(uint32_t seen) { state.store(seen, std::memory_order_release); }

  // Ends the lock; `seen` carries the changes of use and overflow.
  void Unlock(uint32_t seen) { state.store(seen + kVersionOne, std::memory_order_release); }
};

static_assert(sizeof(Bucket) == 64);

}  // namespace tfra
