#include "key_parts.h"

namespace tfra {

size_t KeyParts::total() const {
  size_t total = 0;
  for (size_t count : counts_) total += count;
  return total;
}

std::unique_ptr<uint32_t[]> KeyParts::ExtractDuplicates(const Words& words) {
  std::unique_ptr<uint32_t[]> next(new uint32_t[words.size()]);
  ParallelFor(parts(), parts(), [&](size_t part) { ExtractDuplicates(words, part, next.get()); });
  return next;
}

void KeyParts::ExtractDuplicates(const Words& words, size_t part, uint32_t* next) {
  const size_t count = counts_[part];
  uint32_t* keys = order_.get() + begin_[part];
  // An open-addressed table of positions in `keys`, at most half full. `last` ends each chain.
  const uint32_t bits = 64 - static_cast<uint32_t>(__builtin_clzll(count * 2 + 1));
  const size_t mask = (size_t{1} << bits) - 1;
  std::vector<uint32_t> table(mask + 1, kEnd);
  std::vector<uint32_t> last(count);
  uint32_t unique = 0;
  for (size_t k = 0; k < count; ++k) {
    const uint32_t i = keys[k];
    next[i] = kEnd;
    for (size_t place = Scramble(words[i]) & mask;; place = (place + 1) & mask) {
      const uint32_t u = table[place];
      if (u == kEnd) {
        table[place] = unique;
        last[unique] = i;
        keys[unique++] = i;
        break;
      }
      if (words.Equal(keys[u], i)) {
        next[last[u]] = i;
        last[u] = i;
        break;
      }
    }
  }
  counts_[part] = unique;
}

}  // namespace tfra
