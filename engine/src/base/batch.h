// How one call's keys are spread over threads, and how one thread goes through its share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tfra/thread_pool.h"

// For what a loop calls: a closure that is not inlined keeps everything it uses in memory.
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
  if (reinterpret_cast<uintptr_t>(start) % 64 + (bytes - 1) % 64 >= 64) {
    __builtin_prefetch(start + bytes - 1, kForWrite);
  }
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

// Searching a batch takes it through two loops, a block of keys at a time: one finds where keys
// are, the other uses what is there. Each fetches what it needs some keys ahead, and nothing else:
// CPUs have room for some twenty to fifty cache misses under way, and may drop prefetches beyond
// those (docs/engine-experiments.md).
inline constexpr size_t kBlockKeys = 512;
inline constexpr size_t kFindAhead = 96;

// How many keys ahead so many bytes each are fetched: what is under way must stay in the caches.
[[gnu::always_inline]] inline size_t UseAhead(size_t bytes) {
  constexpr size_t kBytesAhead = 12 << 10;
  return std::clamp<size_t>(kBytesAhead / std::max<size_t>(bytes, 1), 16, kFindAhead);
}

// Calls use(i) for [begin, end), and fetch(i) for the same keys, so many before.
template <typename Fetch, typename Use>
[[gnu::always_inline]] inline void FetchAhead(size_t ahead, size_t begin, size_t end, Fetch&& fetch,
                                              Use&& use) {
  const size_t started = std::min(begin + ahead, end);
  for (size_t i = begin; i < started; ++i) fetch(i);
  for (size_t i = begin; i < end; ++i) {
    if (i + ahead < end) fetch(i + ahead);
    use(i);
  }
}

// Runs both loops over [0, n): locate(i) prefetches what find(i) reads, fetch(i) what use(i) does,
// so many keys ahead. What they know of key i is kept at i % kBlockKeys.
template <typename Locate, typename Find, typename Fetch, typename Use>
[[gnu::always_inline]] inline void FindThenUse(size_t n, size_t use_ahead, Locate&& locate,
                                               Find&& find, Fetch&& fetch, Use&& use) {
  for (size_t begin = 0; begin < n; begin += kBlockKeys) {
    const size_t end = std::min(begin + kBlockKeys, n);
    FetchAhead(kFindAhead, begin, end, locate, find);
    FetchAhead(use_ahead, begin, end, fetch, use);
  }
}

}  // namespace tfra
