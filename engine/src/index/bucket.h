// One cache line of the index: five keys, five row ids, and a state of 32 bits.
//
// The state says which entries are in use, how many keys had to go on to a later bucket, whether a
// write is under way, and a version that each write advances. A reader takes the state, finds its
// key, copies the row, and compares the state again: unchanged means the copy is whole.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/sync.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace tfra {

inline constexpr uint32_t kBucketEntries = 5;

struct alignas(64) Bucket {
  // The key itself, or the hash of a string.
  std::atomic<uint64_t> bits[kBucketEntries];
  std::atomic<uint32_t> rows[kBucketEntries];
  std::atomic<uint32_t> state;

  static constexpr uint32_t kUsed = (1u << kBucketEntries) - 1;
  // How many keys that passed this bucket, because it was full, live further on. At its maximum the
  // count is lost and stays until the index is rebuilt, which costs time but finds every key. Only
  // keys made to collide get there: see Displacement::crowded.
  static constexpr uint32_t kOverflowOne = 1u << 5;
  static constexpr uint32_t kOverflow = 127u << 5;
  static constexpr uint32_t kLocked = 1u << 12;
  // The entries were copied to a new array. They can be read here until that one is published.
  static constexpr uint32_t kMoved = 1u << 13;
  // 18 bits: a reader is fooled if it sleeps in the middle of one row while exactly a multiple of
  // 262,144 writes go to this one bucket.
  static constexpr uint32_t kVersionOne = 1u << 14;

  static constexpr bool LostCount(uint32_t state) { return (state & kOverflow) == kOverflow; }
  // Chance sends some forty keys past a bucket at most.
  static constexpr bool IsCrowded(uint32_t state) {
    return (state & kOverflow) >= 64 * kOverflowOne;
  }
  // The state when one more key has gone on.
  static constexpr uint32_t WithPasser(uint32_t state) {
    return LostCount(state) ? state : state + kOverflowOne;
  }

  // Entries in use, as a bit mask.
  uint32_t used() const { return state.load(std::memory_order_relaxed) & kUsed; }

  // The entries in use, according to the state `seen`, that hold `key_bits`.
  [[gnu::always_inline]] uint32_t Match(uint64_t key_bits, uint32_t seen) const {
    static_assert(kBucketEntries == 5);
    // Written out, because compilers keep a loop over atomics a loop.
    const auto bit = [&](uint32_t i) {
      return static_cast<uint32_t>(bits[i].load(std::memory_order_relaxed) == key_bits) << i;
    };
#if defined(__SSE2__) && !defined(TFRA_TSAN)
    // Aligned halves of these loads are as good as atomic, and more is not asked of them.
    const __m128i key = _mm_set1_epi64x(static_cast<int64_t>(key_bits));
    const auto* pairs = reinterpret_cast<const __m128i*>(bits);
    const __m128 first = _mm_castsi128_ps(_mm_cmpeq_epi32(_mm_load_si128(pairs), key));
    const __m128 second = _mm_castsi128_ps(_mm_cmpeq_epi32(_mm_load_si128(pairs + 1), key));
    const __m128 low = _mm_shuffle_ps(first, second, _MM_SHUFFLE(2, 0, 2, 0));
    const __m128 high = _mm_shuffle_ps(first, second, _MM_SHUFFLE(3, 1, 3, 1));
    const auto four = static_cast<uint32_t>(_mm_movemask_ps(_mm_and_ps(low, high)));
    return (four | bit(4)) & seen;
#else
    return (bit(0) | bit(1) | bit(2) | bit(3) | bit(4)) & seen;
#endif
  }

  // Around every change to the bucket, or to a row that it names, so that readers notice.
  // REQUIRES: the stripe's mutex is held. Returns the state before.
  uint32_t BeginWrite() {
    const uint32_t seen = state.load(std::memory_order_relaxed);
    state.store(seen | kLocked, std::memory_order_relaxed);
    ReleaseFence();
    return seen;
  }

  // `seen` carries the changes of use and overflow.
  void EndWrite(uint32_t seen) { state.store(seen + kVersionOne, std::memory_order_release); }
};

static_assert(sizeof(Bucket) == 64);

// One write, that keeps the entries. It ends with its scope, also by an exception: readers wait for
// a bucket that is being written.
class BucketWrite {
 public:
  explicit BucketWrite(Bucket* bucket) : bucket_(bucket), state_(bucket->BeginWrite()) {}
  ~BucketWrite() { bucket_->EndWrite(state_); }
  BucketWrite(const BucketWrite&) = delete;
  BucketWrite& operator=(const BucketWrite&) = delete;

 private:
  Bucket* const bucket_;
  const uint32_t state_;
};

// Calls body(index) for each entry of a bit mask.
template <typename Body>
[[gnu::always_inline]] inline void ForEachEntry(uint32_t entries, Body&& body) {
  for (; entries != 0; entries &= entries - 1) {
    body(static_cast<uint32_t>(__builtin_ctz(entries)));
  }
}

}  // namespace tfra
