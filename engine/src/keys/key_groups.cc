#include "keys/key_groups.h"

#include <cmath>

namespace tfra {

uint64_t KeysPerStripe(uint64_t keys) {
  const double mean = static_cast<double>(keys) / kStripes;
  return static_cast<uint64_t>(std::ceil(mean + 4 * std::sqrt(mean)));
}

void KeyGroups::DealKeys(const uint8_t* stripe_of, size_t begin, size_t end, size_t groups,
                         GroupPlaces* places) {
  auto& [group_of, next] = *places;
  // Eight counts of 8 bits fit into one register, so for up to 255 keys it counts the keys of each
  // group. Incrementing pointers in memory would be slower: when adjacent keys have the same group,
  // each increment waits for the one before.
  constexpr size_t kCounts = 8, kMost = 255;
  if (groups > kCounts) {
    for (size_t i = begin; i < end; ++i) {
      *next[group_of[stripe_of[i - begin]]]++ = static_cast<uint32_t>(i);
    }
    return;
  }
  for (size_t first = begin; first < end; first += kMost) {
    const size_t last = std::min(first + kMost, end);
    uint64_t counts = 0;
    for (size_t i = first; i < last; ++i) {
      const size_t group = group_of[stripe_of[i - begin]];
      next[group][counts >> (8 * group) & 0xFF] = static_cast<uint32_t>(i);
      counts += uint64_t{1} << (8 * group);
    }
    for (size_t group = 0; group < groups; ++group) next[group] += counts >> (8 * group) & 0xFF;
  }
}

std::unique_ptr<uint32_t[]> KeyGroups::ExtractDuplicates(const KeyBits& bits) {
  std::unique_ptr<uint32_t[]> next(new uint32_t[bits.size()]);
  ParallelFor(groups(), groups(),
              [&](size_t group) { ExtractDuplicates(bits, group, next.get()); });
  return next;
}

void KeyGroups::ExtractDuplicates(const KeyBits& bits, size_t group, uint32_t* next) {
  size_t count = 0;
  for (size_t chunk = 0; chunk < groups(); ++chunk) count += segments(group)[chunk].count;
  KeyChains chains(bits, count, next);
  for (size_t chunk = 0; chunk < groups(); ++chunk) {
    Segment& segment = segments(group)[chunk];
    size_t unique = 0;
    constexpr size_t kAhead = 8;
    for (size_t k = 0; k < segment.count; ++k) {
      if (k + kAhead < segment.count) chains.Prefetch(segment.keys[k + kAhead]);
      const uint32_t i = segment.keys[k];
      if (chains.Add(i)) segment.keys[unique++] = i;
    }
    segment.count = unique;
  }
}

}  // namespace tfra
