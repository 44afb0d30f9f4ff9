// The keys of a writing call, grouped by shard: one thread writes all keys of a shard in one go, so
// that equal keys are taken in their order and the shard's mutex is taken once.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "batch.h"
#include "keys.h"
#include "shard.h"

namespace tfra {

class KeysByShard {
 public:
  template <typename Keys>
  static KeysByShard Group(const Words& words);

  // The numbers of a shard's keys, ascending.
  const uint32_t* of(uint32_t shard) const { return order_.get() + begin_[shard]; }
  size_t count(uint32_t shard) const { return counts_[shard]; }
  size_t total() const;

  // Keeps of equal keys the first, and chains the others to it. Returns the chains: for each key
  // number the next equal one, or kEnd.
  static constexpr uint32_t kEnd = UINT32_MAX;
  std::unique_ptr<uint32_t[]> ExtractDuplicates(const Words& words);

 private:
  void ExtractDuplicates(const Words& words, uint32_t shard, uint32_t* next);

  std::unique_ptr<uint32_t[]> order_;
  std::vector<size_t> begin_ = std::vector<size_t>(kShards);
  std::vector<size_t> counts_ = std::vector<size_t>(kShards);
};

template <typename Keys>
KeysByShard KeysByShard::Group(const Words& words) {
  const size_t n = words.size();
  const size_t chunks = ThreadsFor(n);
  KeysByShard result;
  result.order_.reset(new uint32_t[n]);
  // A counting sort: each chunk counts, learns where its keys of each shard go, and puts them
  // there.
  std::vector<std::vector<size_t>> places(chunks, std::vector<size_t>(kShards));
  const auto for_each_chunk = [&](auto&& body) {
    ParallelFor(chunks, chunks, [&](size_t chunk) {
      size_t* mine = places[chunk].data();
      for (size_t i = n * chunk / chunks; i < n * (chunk + 1) / chunks; ++i) {
        body(i, mine[ShardOf(Keys::Hash(words[i]))]);
      }
    });
  };
  for_each_chunk([](size_t, size_t& count) { ++count; });
  size_t place = 0;
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    result.begin_[shard] = place;
    for (auto& chunk : places) {
      const size_t count = chunk[shard];
      chunk[shard] = place;
      place += count;
    }
    result.counts_[shard] = place - result.begin_[shard];
  }
  uint32_t* order = result.order_.get();
  for_each_chunk([=](size_t i, size_t& next) { order[next++] = static_cast<uint32_t>(i); });
  return result;
}

}  // namespace tfra
