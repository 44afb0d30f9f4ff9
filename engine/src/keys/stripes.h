// The stripes of a table: parts of the index, each with a mutex of its own. The first bits of a
// key's hash say which stripe the key is in.
#pragma once

#include <cstdint>

namespace tfra {

inline constexpr uint32_t kStripeBits = 4;
inline constexpr uint32_t kStripes = 1u << kStripeBits;

inline uint32_t StripeOf(uint64_t hash) {
  return static_cast<uint32_t>(hash >> (64 - kStripeBits));
}

// A set of stripes: one bit for each.
using StripeSet = uint64_t;
static_assert(kStripes <= 64);
inline constexpr StripeSet kAllStripes = ~StripeSet{0} >> (64 - kStripes);

// How many of `keys` keys one stripe is likely to get, plus four standard deviations.
uint64_t KeysPerStripe(uint64_t keys);

}  // namespace tfra
