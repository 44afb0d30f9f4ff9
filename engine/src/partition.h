// The keys of a writing call, spread over threads by shard: equal keys meet in one thread, in their
// order, and the threads of one call do not touch the same shard.
#pragma once

#include <cstdint>
#include <vector>

#include "batch.h"
#include "keys.h"
#include "shard.h"

namespace tfra {

struct Partition {
  size_t parts = 1;
  // lists[part]: key numbers to go through, list after list. Empty: one part with every key.
  std::vector<std::vector<std::vector<uint32_t>>> lists;
  std::vector<uint64_t> keys_per_shard = std::vector<uint64_t>(kShards);
};

inline size_t PartOf(uint32_t shard, size_t parts) { return shard * parts / kShards; }

template <typename Keys>
Partition Split(const Words& words) {
  const size_t n = words.size();
  Partition split;
  split.parts = std::min<size_t>(PartsFor(n), kShards);
  if (split.parts == 1) {
    for (size_t i = 0; i < n; ++i) ++split.keys_per_shard[ShardOf(Keys::Hash(words[i]))];
    return split;
  }
  const size_t parts = split.parts;
  split.lists.assign(parts, std::vector<std::vector<uint32_t>>(parts));
  std::vector<std::vector<uint64_t>> counts(parts, std::vector<uint64_t>(kShards));
  ParallelFor(parts, [&](size_t chunk) {
    const size_t begin = n * chunk / parts, end = n * (chunk + 1) / parts;
    std::vector<std::vector<uint32_t>> mine(parts);
    for (auto& list : mine) list.reserve((end - begin) / parts + (end - begin) / 8);
    for (size_t i = begin; i < end; ++i) {
      const uint32_t shard = ShardOf(Keys::Hash(words[i]));
      ++counts[chunk][shard];
      mine[PartOf(shard, parts)].push_back(static_cast<uint32_t>(i));
    }
    for (size_t part = 0; part < parts; ++part) split.lists[part][chunk] = std::move(mine[part]);
  });
  for (const auto& count : counts) {
    for (uint32_t shard = 0; shard < kShards; ++shard) split.keys_per_shard[shard] += count[shard];
  }
  return split;
}

// Calls body(order, count) for each list of a part; a null order means key numbers 0 .. count - 1.
template <typename Body>
void ForEachList(const Partition& partition, size_t part, size_t n, Body&& body) {
  if (partition.lists.empty()) {
    body(nullptr, n);
    return;
  }
  for (const auto& list : partition.lists[part]) body(list.data(), list.size());
}

// Chains of equal keys, made from a partition, which then lists each key once: its first number.
class Duplicates {
 public:
  static constexpr uint32_t kEnd = UINT32_MAX;

  template <typename Keys>
  static Duplicates Extract(const Words& words, Partition* partition);

  // The next key equal to key i, or kEnd.
  uint32_t Next(uint32_t i) const { return next_[i]; }

 private:
  std::unique_ptr<uint32_t[]> next_;
};

template <typename Keys>
Duplicates Duplicates::Extract(const Words& words, Partition* partition) {
  Duplicates result;
  result.next_.reset(new uint32_t[words.size()]);
  uint32_t* next = result.next_.get();
  std::vector<std::vector<std::vector<uint32_t>>> lists(partition->parts);
  std::vector<uint64_t> unique_per_shard(kShards);
  ParallelFor(partition->parts, [&](size_t part) {
    size_t count = 0;
    ForEachList(*partition, part, words.size(), [&](const uint32_t*, size_t n) { count += n; });
    std::vector<uint32_t> unique;
    unique.reserve(count);
    // An open-addressed table of positions in `unique`, at most half full; `last` ends each chain.
    const uint32_t bits = 64 - __builtin_clzll(count * 2 + 1);
    std::vector<uint32_t> table(size_t{1} << bits, kEnd);
    std::vector<uint32_t> last;
    last.reserve(count);
    ForEachList(*partition, part, words.size(), [&](const uint32_t* order, size_t n) {
      for (size_t k = 0; k < n; ++k) {
        const uint32_t i = order == nullptr ? static_cast<uint32_t>(k) : order[k];
        const uint64_t hash = Keys::Hash(words[i]);
        // The top bits chose the part; a multiplication brings in the others.
        size_t place = (hash * 0x9E3779B97F4A7C15u) >> (64 - bits);
        next[i] = kEnd;
        for (;; place = (place + 1) & (table.size() - 1)) {
          const uint32_t u = table[place];
          if (u == kEnd) {
            table[place] = static_cast<uint32_t>(unique.size());
            unique.push_back(i);
            last.push_back(i);
            ++unique_per_shard[ShardOf(hash)];
            break;
          }
          if (words[unique[u]] == words[i] && words.bytes(unique[u]) == words.bytes(i)) {
            next[last[u]] = i;
            last[u] = i;
            break;
          }
        }
      }
    });
    lists[part].push_back(std::move(unique));
  });
  partition->lists = std::move(lists);
  partition->keys_per_shard = std::move(unique_per_shard);
  return result;
}

}  // namespace tfra
