// How one call's keys are spread over threads, and how one thread goes through its share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tfra/thread_pool.h"

// For the stages of a loop: a closure that is not inlined keeps everything it uses in memory.
#define TFRA_INLINE __attribute__((always_inline))

namespace tfra {

// Prefetches the cache lines of [start, start + bytes). Always inlined: GCC takes a function that
// only prefetches for one without effect, and drops the calls.
template <bool kForWrite>
[[gnu::always_inline]] inline void Prefetch(const std::byte* start, size_t bytes) {
  if (bytes == 0) return;
  for (size_t offset = 0; offset < bytes; offset += 64) {
    __builtin_prefetch(start + offset, kForWrite);
  }
  // What does not start with a line may end with one more: callers' arrays rarely start with one.
  __builtin_prefetch(start + bytes - 1, kForWrite);
}

// Calls body(std::integral_constant) with the number of bytes of a row, if it is one of the common
// ones, and with 0 for all others: loops for a size known to the compiler are shorter.
template <typename Body>
decltype(auto) WithRowBytes(size_t bytes, Body&& body) {
  switch (bytes) {
    case 32:
      return body(std::integral_constant<size_t, 32>());
    case 64:
      return body(std::integral_constant<size_t, 64>());
    case 128:
      return body(std::integral_constant<size_t, 128>());
    case 256:
      return body(std::integral_constant<size_t, 256>());
    default:
      return body(std::integral_constant<size_t, 0>());
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
  const size_t threads = ThreadsFor(n);
  // Several per thread, so that one whose CPU is busy elsewhere does less.
  const size_t parts = threads == 1 ? 1 : std::min(4 * threads, n / kMinKeysPerThread);
  ParallelFor(parts, threads, [&](size_t part) { body(n * part / parts, n * (part + 1) / parts); });
}

// Runs three stages over [0, n), each some keys ahead of the next: locate(i), find(i) and use(i).
// Each prefetches what the next one reads, so that many cache misses are under way at any time. A
// stage takes a few keys at once: its instructions are few, so that the CPU sees several keys ahead
// and looks up their pages at the same time (docs/engine-experiments.md). What the stages know is
// kept in rings of kRing.
inline constexpr size_t kAtOnce = 8;
inline constexpr size_t kToFind = 24;
inline constexpr size_t kToUse = 40;
inline constexpr size_t kRing = 64;
static_assert(kToFind % kAtOnce == 0 && kToUse % kAtOnce == 0 && kRing >= kToUse + kAtOnce);

// Runs a stage for the keys whose turn it is: kAtOnce of them, `delay` behind `at`.
template <typename Stage>
[[gnu::always_inline]] inline void RunStage(size_t at, size_t delay, size_t n, Stage&& stage) {
  if (at < delay || at - delay >= n) return;
  const size_t end = std::min(at - delay + kAtOnce, n);
  for (size_t i = at - delay; i < end; ++i) stage(i);
}

template <typename Locate, typename Find, typename Use>
[[gnu::always_inline]] inline void Pipeline(size_t n, Locate&& locate, Find&& find, Use&& use) {
  for (size_t at = 0; at < n + kToUse; at += kAtOnce) {
    RunStage(at, kToUse, n, use);
    RunStage(at, kToFind, n, find);
    RunStage(at, 0, n, locate);
  }
}

}  // namespace tfra
