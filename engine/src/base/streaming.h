// Stores past the caches: whole cache lines are written without being fetched first. They are not
// ordered with other stores unless a fence does it.
#pragma once

#include <cstddef>

#include "base/sync.h"

#if defined(__SSE2__) && !defined(TFRA_TSAN)
#define TFRA_STREAMS 1
#include <emmintrin.h>
#endif

namespace tfra {

#ifdef TFRA_STREAMS
inline constexpr bool kStreams = true;

// REQUIRES: `to` is at the start of a cache line, and `bytes` are whole ones.
[[gnu::always_inline]] inline void StreamBytes(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
}

// All stores before it are seen before any store after it.
inline void StreamFence() { _mm_sfence(); }
#else
inline constexpr bool kStreams = false;

inline void StreamBytes(std::byte* to, const std::byte* from, size_t bytes) {
  CopyBytes(to, from, bytes);
}
inline void StreamFence() {}
#endif

}  // namespace tfra
