// One cache line of the index: five keys, five row ids, and a state of 32 bits.
//
// The state has a bit for each entry in use, the number of displaced keys that passed this bucket,
// a bit that is set during a write, and a version that each write advances. A reader loads the
// state, finds its key, copies the row, and compares the state again: if it is unchanged, the copy
// is whole.
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
  // The key_bits: the key itself, or the hash of a string.
  std::atomic<uint64_t> bits[kBucketEntries];
  std::atomic<uint32_t> rows[kBucketEntries];
  std::atomic<uint32_t> state;

  static constexpr uint32_t kUsed = (1u << kBucketEntries) - 1;
  // The number of keys that are in later buckets because this one was full. When the count reaches
  // its maximum, it stays there until the index is rebuilt: searches are then longer, but find
  // every key. Only keys that were chosen to collide reach it: see Displacement::crowded.
  static constexpr uint32_t kOverflowOne = 1u << 5;
  static constexpr uint32_t kOverflow = 127u << 5;
  static constexpr uint32_t kLocked = 1u << 12;
  // The entries were copied to a new array. They can be read here until the new array is published.
  static constexpr uint32_t kMoved = 1u << 13;
  // The version has 18 bits. A reader misses a change only if exactly a multiple of 262,144 writes
  // go to this bucket while it copies one row.
  static constexpr uint32_t kVersionOne = 1u << 14;

  static constexpr bool LostCount(uint32_t state) { return (state & kOverflow) == kOverflow; }
  // By chance, about forty keys pass a bucket at most.
  static constexpr bool IsCrowded(uint32_t state) {
    return (state & kOverflow) >= 64 * kOverflowOne;
  }
  // The state after one more key has passed the bucket.
  static constexpr uint32_t WithPasser(uint32_t state) {
    return LostCount(state) ? state : state + kOverflowOne;
  }

  // Entries in use, as a bit mask.
  uint32_t used() const { return state.load(std::memory_order_relaxed) & kUsed; }

  // The entries that contain `key_bits` and that are in use in the state `seen`, as a bit mask.
  [[gnu::always_inline]] uint32_t Match(uint64_t key_bits, uint32_t seen) const {
    static_assert(kBucketEntries == 5);
    // Written without a loop, because compilers do not unroll loops over atomics.
    const auto bit = [&](uint32_t i) {
      return static_cast<uint32_t>(bits[i].load(std::memory_order_relaxed) == key_bits) << i;
    };
#if defined(__SSE2__) && !defined(TFRA_TSAN)
    // In practice each aligned half of these loads is atomic, which is enough here.
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

  // BeginWrite and EndWrite enclose every change of the bucket or of its rows, so that readers
  // notice the change. Returns the state before. REQUIRES: the stripe's mutex is held.
  uint32_t BeginWrite() {
    const uint32_t seen = state.load(std::memory_order_relaxed);
    state.store(seen | kLocked, std::memory_order_relaxed);
    ReleaseFence();
    return seen;
  }

  // seen: the result of BeginWrite, with the new kUsed and kOverflow bits.
  void EndWrite(uint32_t seen) { state.store(seen + kVersionOne, std::memory_order_release); }
};

static_assert(sizeof(Bucket) == 64);

// A write that changes rows, but no entries. The write ends with the scope, also after an
// exception: otherwise readers would wait for the bucket for ever.
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
