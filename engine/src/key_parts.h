// The keys of a writing call, split over threads by shard: equal keys meet in one part, in their
// order, and no two parts write to the same shard. Within a part keys keep their order, so that the
// rows a call brings are read nearly in sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "batch.h"
#include "keys.h"
#include "shard.h"

namespace tfra {

class KeyParts {
 public:
  template <typename Keys>
  static KeyParts Split(const Words& words);

  size_t parts() const { return counts_.size(); }
  // The numbers of a part's keys, ascending.
  const uint32_t* keys(size_t part) const { return order_.get() + begin_[part]; }
  size_t count(size_t part) const { return counts_[part]; }
  size_t total() const;

  // Keeps of equal keys the first, and chains the others to it. Returns the chains: for each key
  // number the next equal one, or kEnd.
  static constexpr uint32_t kEnd = UINT32_MAX;
  std::unique_ptr<uint32_t[]> ExtractDuplicates(const Words& words);

 private:
  void ExtractDuplicates(const Words& words, size_t part, uint32_t* next);

  std::unique_ptr<uint32_t[]> order_;
  std::vector<size_t> begin_;
  std::vector<size_t> counts_;
};

// Shards by bit.
using ShardSet = uint64_t;
static_assert(kShards <= 64);
inline constexpr ShardSet kAllShards = ~ShardSet{0} >> (64 - kShards);

// The shards that some keys are in. `order` has `count` key numbers.
template <typename Keys>
ShardSet ShardsOf(const Words& words, const uint32_t* order, size_t count) {
  ShardSet shards = 0;
  for (size_t k = 0; k < count; ++k) {
    shards |= ShardSet{1} << ShardOf(Keys::Hash(words[order[k]]));
  }
  return shards;
}

// Holds the mutexes of some shards. Always taken in ascending order, so that threads do not wait
// for one another in a circle.
class ShardLocks {
 public:
  ShardLocks(Shard* all, ShardSet shards) : all_(all), shards_(shards) {
    for (ShardSet rest = shards_; rest != 0; rest &= rest - 1) {
      all_[__builtin_ctzll(rest)].mutex().lock();
    }
  }
  ~ShardLocks() {
    for (ShardSet rest = shards_; rest != 0; rest &= rest - 1) {
      all_[__builtin_ctzll(rest)].mutex().unlock();
    }
  }
  ShardLocks(const ShardLocks&) = delete;
  ShardLocks& operator=(const ShardLocks&) = delete;

 private:
  Shard* const all_;
  const ShardSet shards_;
};

template <typename Keys>
KeyParts KeyParts::Split(const Words& words) {
  const size_t n = words.size();
  const size_t parts = std::min<size_t>(ThreadsFor(n), kShards);
  KeyParts result;
  result.order_.reset(new uint32_t[n]);
  result.begin_.assign(parts, 0);
  result.counts_.assign(parts, n);
  uint32_t* order = result.order_.get();
  if (parts == 1) {
    for (size_t i = 0; i < n; ++i) order[i] = static_cast<uint32_t>(i);
    return result;
  }
  // A counting sort: each chunk counts, learns where its keys of each part go, and puts them there.
  std::vector<std::vector<size_t>> places(parts, std::vector<size_t>(parts));
  const auto for_each_key = [&](auto&& body) {
    ParallelFor(parts, parts, [&](size_t chunk) {
      std::vector<size_t> mine = places[chunk];
      for (size_t i = n * chunk / parts; i < n * (chunk + 1) / parts; ++i) {
        body(i, mine[ShardOf(Keys::Hash(words[i])) * parts / kShards]);
      }
      places[chunk] = std::move(mine);
    });
  };
  for_each_key([](size_t, size_t& count) { ++count; });
  size_t place = 0;
  for (size_t part = 0; part < parts; ++part) {
    result.begin_[part] = place;
    for (auto& chunk : places) place += std::exchange(chunk[part], place);
    result.counts_[part] = place - result.begin_[part];
  }
  for_each_key([=](size_t i, size_t& next) { order[next++] = static_cast<uint32_t>(i); });
  return result;
}

}  // namespace tfra
