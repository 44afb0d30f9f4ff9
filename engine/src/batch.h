// How one call's keys are spread over threads, and how one thread goes through its share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tfra/thread_pool.h"

namespace tfra {

// Fewer keys than this per thread are not worth waking one.
inline constexpr size_t kMinKeysPerThread = 4096;

inline size_t PartsFor(size_t n) {
  return std::clamp<size_t>(n / kMinKeysPerThread, 1, static_cast<size_t>(NumThreads()));
}

// Calls body(part, begin, end) for consecutive parts of [0, n), on several threads.
template <typename Body>
void ForEachPart(size_t n, Body&& body) {
  const size_t parts = PartsFor(n);
  ParallelFor(parts, [&](size_t part) { body(part, n * part / parts, n * (part + 1) / parts); });
}

// Runs four stages over [0, n), each some keys ahead of the next: locate(i), find(i), settle(i) and
// use(i). Each stage prefetches what the next one reads, so that many cache misses are under way at
// any time. A steady stream of them is faster than groups of keys taken through one stage after the
// other (docs/engine-experiments.md).
inline constexpr size_t kFar = 16;   // Powers of two: stages keep what they found in rings.
inline constexpr size_t kNear = 16;  // From find to use; settle is half-way.

template <typename Locate, typename Find, typename Settle, typename Use>
inline void Pipeline(size_t n, Locate&& locate, Find&& find, Settle&& settle, Use&& use) {
  constexpr size_t kHalf = kNear / 2;
  const size_t steps = n + kFar + kNear;
  // The middle part, where all stages have work, is written without their checks.
  const size_t first = std::min(kFar + kNear, n);
  const auto step = [&](size_t i) {
    if (i >= kFar + kNear) use(i - kFar - kNear);
    if (i >= kFar + kHalf && i - kFar - kHalf < n) settle(i - kFar - kHalf);
    if (i >= kFar && i - kFar < n) find(i - kFar);
    if (i < n) locate(i);
  };
  size_t i = 0;
  while (i < first) step(i++);
  for (; i < n; ++i) {
    use(i - kFar - kNear);
    settle(i - kFar - kHalf);
    find(i - kFar);
    locate(i);
  }
  while (i < steps) step(i++);
}

}  // namespace tfra
