// Keys that an attacker chooses who knows the hashes of base/hash.h.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/hash.h"

namespace tfra::test {

// The x with MixInt64(x) == hash: inverts the steps of MixInt64 in reverse order.
inline uint64_t UnmixInt64(uint64_t hash) {
  const auto inverse = [](uint64_t odd) {
    uint64_t x = odd;  // Newton's iteration doubles the correct bits; odd * odd is 1 modulo 8.
    for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
    return x;
  };
  const auto unshift = [](uint64_t x, int shift) {
    uint64_t y = x;
    for (int i = 0; i < 3; ++i) y = x ^ (y >> shift);
    return y;
  };
  uint64_t x = unshift(hash, 27);
  x *= inverse(0x1C69B3F74AC4AE35u);
  x = unshift(x, 33);
  x *= inverse(0x3C79AC492BA7B653u);
  return unshift(x, 27);
}

inline std::vector<int64_t> KeysOf(size_t n, const std::function<uint64_t(uint64_t)>& key) {
  std::vector<int64_t> keys(n);
  for (size_t i = 0; i < n; ++i) keys[i] = static_cast<int64_t>(key(i));
  return keys;
}

}  // namespace tfra::test
