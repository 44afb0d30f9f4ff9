// Hashes of keys. Their values decide where a key lives and what its initial row is, so they are
// the same on every platform and pinned by golden tests: changing one is a change of behaviour.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tfra {

// A bijection of 64-bit integers in which every input bit reaches every output bit (Evensen's
// "moremur"). The first shift brings high input bits down before the multiplies carry everything
// up, so keys that differ only in high bits spread as well as sequential ones.
constexpr uint64_t MixInt64(uint64_t x) {
  x ^= x >> 27;
  x *= 0x3C79AC492BA7B653u;
  x ^= x >> 33;
  x *= 0x1C69B3F74AC4AE35u;
  x ^= x >> 27;
  return x;
}

// The two halves of the 128-bit product a * b, xored, from 32-bit limbs.
constexpr uint64_t FoldMultiplyPortable(uint64_t a, uint64_t b) {
  const uint64_t a_low = a & 0xFFFFFFFFu, a_high = a >> 32;
  const uint64_t b_low = b & 0xFFFFFFFFu, b_high = b >> 32;
  const uint64_t low = a_low * b_low;
  const uint64_t cross = a_high * b_low + (low >> 32);
  const uint64_t middle = a_low * b_high + (cross & 0xFFFFFFFFu);
  const uint64_t high = a_high * b_high + (cross >> 32) + (middle >> 32);
  return high ^ (a * b);
}

constexpr uint64_t FoldMultiply(uint64_t a, uint64_t b) {
#ifdef __SIZEOF_INT128__
  __extension__ using Product = unsigned __int128;
  const Product product = static_cast<Product>(a) * b;
  return static_cast<uint64_t>(product >> 64) ^ static_cast<uint64_t>(product);
#else
  return FoldMultiplyPortable(a, b);
#endif
}

namespace hash_internal {

// Binary digits of pi, made odd.
inline constexpr uint64_t kPi[5] = {0x243F6A8885A308D3u, 0x13198A2E03707345u, 0xA4093822299F31D1u,
                                    0x082EFA98EC4E6C89u, 0x452821E638D01377u};

template <typename Word>
uint64_t LoadLittleEndian(const char* data) {
  Word word;
  std::memcpy(&word, data, sizeof(word));
  if constexpr (std::endian::native == std::endian::big) {
    uint64_t swapped = 0;
    for (size_t i = 0; i < sizeof(Word); ++i) {
      swapped = (swapped << 8) | ((word >> (8 * i)) & 0xFFu);
    }
    return swapped;
  }
  return word;
}

inline uint64_t Absorb(const char* data, uint64_t secret, uint64_t state) {
  return FoldMultiply(LoadLittleEndian<uint64_t>(data) ^ secret,
                      LoadLittleEndian<uint64_t>(data + 8) ^ state);
}

}  // namespace hash_internal

// Hashes `size` bytes, any of them zero. Not keyed: it does not resist an adversary who picks keys.
inline uint64_t HashBytes(const char* data, size_t size) {
  using namespace hash_internal;
  uint64_t state = kPi[0];
  // The last 16 bytes, or all of them twice over where there are fewer: the words may overlap, and
  // the size, which enters at the end, tells apart strings that then look alike.
  uint64_t first = 0, last = 0;
  if (size >= 8 && size <= 16) {
    first = LoadLittleEndian<uint64_t>(data);
    last = LoadLittleEndian<uint64_t>(data + size - 8);
  } else if (size >= 4 && size < 8) {
    first = LoadLittleEndian<uint32_t>(data);
    last = LoadLittleEndian<uint32_t>(data + size - 4);
  } else if (size > 16) {
    size_t left = size;
    if (left > 64) {
      // Four independent chains hide the latency of the multiply.
      uint64_t state1 = state, state2 = state, state3 = state;
      for (; left > 64; left -= 64, data += 64) {
        state = Absorb(data, kPi[1], state);
        state1 = Absorb(data + 16, kPi[2], state1);
        state2 = Absorb(data + 32, kPi[3], state2);
        state3 = Absorb(data + 48, kPi[4], state3);
      }
      state = (state ^ std::rotl(state1, 16)) + (std::rotl(state2, 32) ^ std::rotl(state3, 48));
    }
    for (; left > 16; left -= 16, data += 16) state = Absorb(data, kPi[1], state);
    first = LoadLittleEndian<uint64_t>(data + left - 16);
    last = LoadLittleEndian<uint64_t>(data + left - 8);
  } else if (size > 0) {
    first = static_cast<uint64_t>(static_cast<unsigned char>(data[0])) << 16 |
            static_cast<uint64_t>(static_cast<unsigned char>(data[size / 2])) << 8 |
            static_cast<unsigned char>(data[size - 1]);
  }
  return FoldMultiply(FoldMultiply(first ^ kPi[2], last ^ state), kPi[3] ^ size);
}

}  // namespace tfra
