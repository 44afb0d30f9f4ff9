#include "key_parts.h"

namespace tfra {

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
