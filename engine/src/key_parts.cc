#include "key_parts.h"

namespace tfra {

void KeyParts::DealKeys(const uint8_t* shard_of, size_t begin, size_t end, size_t parts,
                        PartPlaces* places) {
  auto& [part_of, next] = *places;
  // How many keys of some have gone to each of so many parts fits into one register: pointers in
  // memory would wait for one another, where keys that follow are of the same part.
  constexpr size_t kCounts = 8, kMost = 255;
  if (parts > kCounts) {
    for (size_t i = begin; i < end; ++i) {
      *next[part_of[shard_of[i - begin]]]++ = static_cast<uint32_t>(i);
    }
    return;
  }
  for (size_t first = begin; first < end; first += kMost) {
    const size_t last = std::min(first + kMost, end);
    uint64_t counts = 0;
    for (size_t i = first; i < last; ++i) {
      const size_t part = part_of[shard_of[i - begin]];
      next[part][counts >> (8 * part) & 0xFF] = static_cast<uint32_t>(i);
      counts += uint64_t{1} << (8 * part);
    }
    for (size_t part = 0; part < parts; ++part) next[part] += counts >> (8 * part) & 0xFF;
  }
}

std::unique_ptr<uint32_t[]> KeyParts::ExtractDuplicates(const Words& words) {
  std::unique_ptr<uint32_t[]> next(new uint32_t[words.size()]);
  ParallelFor(parts(), parts(), [&](size_t part) { ExtractDuplicates(words, part, next.get()); });
  return next;
}

void KeyParts::ExtractDuplicates(const Words& words, size_t part, uint32_t* next) {
  size_t count = 0;
  for (size_t chunk = 0; chunk < parts(); ++chunk) count += segments(part)[chunk].count;
  KeyChains chains(words, count, next);
  for (size_t chunk = 0; chunk < parts(); ++chunk) {
    Segment& segment = segments(part)[chunk];
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
