// Stores that bypass the caches: they write whole cache lines without reading them first. Only a
// fence orders them with other stores.
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

// REQUIRES: `to` is at the start of a cache line, and `bytes` is a multiple of a cache line.
[[gnu::always_inline]] inline void StreamBytes(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
}

// Other threads see all stores before the fence before any store after it.
inline void StreamFence() { _mm_sfence(); }
#else
inline constexpr bool kStreams = false;

inline void StreamBytes(std::byte* to, const std::byte* from, size_t bytes) {
  CopyBytes(to, from, bytes);
}
inline void StreamFence() {}
#endif

}  // namespace tfra
