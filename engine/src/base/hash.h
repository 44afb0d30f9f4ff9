// Hashes of keys. A hash decides where a key is in the index and what its initial row is. So hashes
// are the same on every platform, and golden tests pin them: changing one changes behaviour.
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

// The two halves of the 128-bit product a * b, combined by xor. Computed from 32-bit halves.
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

// Binary digits of pi.
inline constexpr uint64_t kPi[4] = {0x243F6A8885A308D3u, 0x13198A2E03707344u, 0xA4093822299F31D0u,
                                    0x082EFA98EC4E6C89u};

template <typename Word>
uint64_t LoadLittleEndian(const char* data) {
  Word loaded;
  std::memcpy(&loaded, data, sizeof(loaded));
  if constexpr (std::endian::native == std::endian::big) {
    uint64_t swapped = 0;
    for (size_t i = 0; i < sizeof(Word); ++i) {
      swapped = (swapped << 8) | ((loaded >> (8 * i)) & 0xFFu);
    }
    return swapped;
  }
  return loaded;
}

struct SipState {
  uint64_t v0, v1, v2, v3;

  [[gnu::always_inline]] void Round() {
    v0 += v1;
    v2 += v3;
    v1 = std::rotl(v1, 13) ^ v0;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 = std::rotl(v0, 32) + v3;
    v2 += v1;
    v1 = std::rotl(v1, 17) ^ v2;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 = std::rotl(v2, 32);
  }
  [[gnu::always_inline]] void Absorb(uint64_t block) {
    v3 ^= block;
    Round();
    Round();
    v0 ^= block;
  }
};

}  // namespace hash_internal

// SipHash-2-4 (Aumasson and Bernstein) of `size` bytes, which may be zero bytes. TensorFlow's
// `tf.strings.to_hash_bucket_strong` computes the same function, modulo its number of buckets.
inline uint64_t SipHash(uint64_t key0, uint64_t key1, const char* data, size_t size) {
  using namespace hash_internal;
  SipState state{key0 ^ 0x736F6D6570736575u, key1 ^ 0x646F72616E646F6Du, key0 ^ 0x6C7967656E657261u,
                 key1 ^ 0x7465646279746573u};
  const char* const end = data + size / 8 * 8;
  for (; data < end; data += 8) state.Absorb(LoadLittleEndian<uint64_t>(data));
  // The last block: the lowest byte of the size on top, and below it the last zero to seven bytes.
  uint64_t last = uint64_t{size} << 56;
  size_t rest = size % 8, shift = 0;
  if (rest >= 4) {
    last |= LoadLittleEndian<uint32_t>(data);
    data += 4, rest -= 4, shift = 32;
  }
  for (; rest > 0; --rest, ++data, shift += 8) {
    last |= uint64_t{static_cast<unsigned char>(*data)} << shift;
  }
  state.Absorb(last);
  state.v2 ^= 0xFF;
  for (int i = 0; i < 4; ++i) state.Round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

// The key of HashBytes. It is constant, because the hash of a string must be the same in every
// process. It is public, so an attacker can search for strings whose hashes share some bits
// (SeededOrder deals with these), but cannot find many whose hashes are equal.
inline constexpr uint64_t kStringHashKey[2] = {hash_internal::kPi[0], hash_internal::kPi[1]};

// The key_bits of a string key. This is version 2: for the function before it, anybody could make
// strings that collide. Changing it changes the initial rows of string keys, and makes saved Bloom
// filters of string keys useless.
inline uint64_t HashBytes(const char* data, size_t size) {
  return SipHash(kStringHashKey[0], kStringHashKey[1], data, size);
}

// A function of a hash whose result nobody can predict without the seed. Not a bijection.
constexpr uint64_t SeededOrder(uint64_t hash, uint64_t seed) {
  using hash_internal::kPi;
  return FoldMultiply(FoldMultiply(hash ^ seed, std::rotl(seed, 32) ^ kPi[2]) ^ kPi[3], seed | 1);
}

// A seed that others cannot guess, and that is not 0. Threads: any.
uint64_t RandomSeed();

}  // namespace tfra
