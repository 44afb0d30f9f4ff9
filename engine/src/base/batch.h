// How the keys of one call are split over threads, and how one thread goes through its keys.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tfra/thread_pool.h"

// Inlines a lambda that a hot loop calls. Otherwise all variables that it captures stay in memory.
#define TFRA_INLINE __attribute__((always_inline))

namespace tfra {

// Prefetches the cache lines of [start, start + bytes). Always inlined: GCC assumes that a function
// that only prefetches has no effect, and removes calls of it.
template <bool kForWrite>
[[gnu::always_inline]] inline void Prefetch(const std::byte* start, size_t bytes) {
  if (bytes == 0) return;
  for (size_t offset = 0; offset < bytes; offset += 64) {
    __builtin_prefetch(start + offset, kForWrite);
  }
  // A range that does not start at a cache line may touch one more line at its end.
  if (reinterpret_cast<uintptr_t>(start) % 64 + (bytes - 1) % 64 >= 64) {
    __builtin_prefetch(start + bytes - 1, kForWrite);
  }
}

// Calls body(std::integral_constant) with the number of bytes of a row if that is a common number,
// and with 0 otherwise. The compiler makes faster loops for a constant size.
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

// A thread is woken only if it gets at least this many keys.
inline constexpr size_t kMinKeysPerThread = 4096;

inline size_t ThreadsFor(size_t n) {
  return std::clamp<size_t>(n / kMinKeysPerThread, 1, static_cast<size_t>(NumThreads()));
}

// Calls body(begin, end) for consecutive parts of [0, n), on several threads.
template <typename Body>
void ForEachPart(size_t n, Body&& body) {
  const size_t threads = ThreadsFor(n);
  // Several parts per thread, so that a thread on a busy CPU does fewer of them.
  const size_t parts = threads == 1 ? 1 : std::min(4 * threads, n / kMinKeysPerThread);
  ParallelFor(parts, threads, [&](size_t part) { body(n * part / parts, n * (part + 1) / parts); });
}

// A batch is searched in blocks of keys, and each block in two loops: the first finds the rows of
// the keys, the second uses the rows. Each loop prefetches only what it needs itself, some keys
// ahead: a CPU handles twenty to fifty cache misses at a time, and may drop prefetches beyond that
// (docs/engine-experiments.md).
inline constexpr size_t kBlockKeys = 512;
inline constexpr size_t kFindAhead = 96;

// How many keys ahead to prefetch rows of `bytes` bytes, so that prefetched rows stay in the caches
// until they are used.
[[gnu::always_inline]] inline size_t UseAhead(size_t bytes) {
  constexpr size_t kBytesAhead = 12 << 10;
  return std::clamp<size_t>(kBytesAhead / std::max<size_t>(bytes, 1), 16, kFindAhead);
}

// Calls use(i) for each i of [begin, end), and fetch(i) `ahead` calls earlier.
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

// Runs both loops over [0, n): locate(i) prefetches what find(i) reads, and fetch(i) prefetches
// what use(i) reads. Callers keep the data of key i at index i % kBlockKeys of their arrays.
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
