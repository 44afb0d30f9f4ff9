// How one call's keys are spread over threads, and how one thread goes through its share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tfra/thread_pool.h"

// For the stages of a loop: a closure that is not inlined keeps everything it uses in memory.
#define TFRA_INLINE __attribute__((always_inline))

namespace tfra {

// Prefetches the cache lines of [start, start + bytes). Always inlined: GCC takes a function that
// only prefetches for one without effect, and drops the calls.
template <bool kForWrite>
[[gnu::always_inline]] inline void Prefetch(const std::byte* start, size_t bytes) {
  for (size_t offset = 0; offset < bytes; offset += 64) {
    __builtin_prefetch(start + offset, kForWrite);
  }
}

// Fewer keys than this per thread are not worth waking one.
inline constexpr size_t kMinKeysPerThread = 4096;

inline size_t ThreadsFor(size_t n) {
  return std::clamp<size_t>(n / kMinKeysPerThread, 1, static_cast<size_t>(NumThreads()));
}

// Calls body(begin, end) for consecutive parts of [0, n), on several threads.
template <typename Body>
void ForEachPart(size_t n, Body&& body) {
  const size_t parts = ThreadsFor(n);
  ParallelFor(parts, parts, [&](size_t part) { body(n * part / parts, n * (part + 1) / parts); });
}

// Runs four stages over [0, n), each some keys ahead of the next: locate(i), find(i), settle(i) and
// use(i). Each stage prefetches what the next one reads, so that many cache misses are under way at
// any time. A steady stream of them is faster than groups of keys taken through one stage after the
// other (docs/engine-experiments.md).
inline constexpr size_t kFar = 16;  // Powers of two: stages keep what they found in rings.
inline constexpr size_t kNear = 8;  // From find to use; settle is half-way.

template <typename Locate, typename Find, typename Settle, typename Use>
[[gnu::always_inline]] inline void Pipeline(size_t n, Locate&& locate, Find&& find, Settle&& settle,
                                            Use&& use) {
  constexpr size_t kToSettle = kFar + kNear / 2, kToUse = kFar + kNear;
  // One loop with checks that are easily predicted, so that each stage stands here once and is
  // inlined.
  for (size_t i = 0; i < n + kToUse; ++i) {
    if (i >= kToUse) use(i - kToUse);
    if (i >= kToSettle && i - kToSettle < n) settle(i - kToSettle);
    if (i >= kFar && i - kFar < n) find(i - kFar);
    if (i < n) locate(i);
  }
}

}  // namespace tfra
