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
  // An open-addressed table of chains, at most half full.
  struct Chain {
    uint32_t first = kEnd;
    uint32_t last;
  };
  const uint32_t bits = 64 - static_cast<uint32_t>(__builtin_clzll(count * 2 + 1));
  const size_t mask = (size_t{1} << bits) - 1;
  std::vector<Chain> chains(mask + 1);
  for (size_t chunk = 0; chunk < parts(); ++chunk) {
    Segment& segment = segments(part)[chunk];
    size_t unique = 0;
    for (size_t k = 0; k < segment.count; ++k) {
      const uint32_t i = segment.keys[k];
      next[i] = kEnd;
      size_t place = Scramble(words[i]) & mask;
      while (chains[place].first != kEnd && !words.Equal(chains[place].first, i)) {
        place = (place + 1) & mask;
      }
      Chain& chain = chains[place];
      if (chain.first == kEnd) {
        chain.first = i;
        segment.keys[unique++] = i;
      } else {
        next[chain.last] = i;
      }
      chain.last = i;
    }
    segment.count = unique;
  }
}

}  // namespace tfra
