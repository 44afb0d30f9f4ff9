// The keys of a writing call, split over threads by shard: equal keys meet in one part, in their
// order, and no two parts write to the same shard. Within a part keys keep their order, so that the
// rows a call brings are read nearly in sequence.
//
// int64 keys are copied here, each read once, since another thread may change the caller's array (a
// data loader that reuses its buffer). Each position then stands for one key, old or new,
// throughout the call.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "batch.h"
#include "keys.h"
#include "new_keys.h"
#include "shard.h"

namespace tfra {

// Shards by bit.
using ShardSet = uint64_t;
static_assert(kShards <= 64);
inline constexpr ShardSet kAllShards = ~ShardSet{0} >> (64 - kShards);

class KeyParts {
 public:
  // words: the keys as they were read.
  template <typename Keys>
  static KeyParts Split(const KeyBatch& keys, Words* words);

  size_t parts() const { return shards_.size(); }
  // The shards that a part has keys of.
  ShardSet shards(size_t part) const { return shards_[part]; }
  // How many keys each shard has, repeated ones included.
  const std::array<uint64_t, kShards>& shard_keys() const { return shard_keys_; }

  // Calls body(keys, count) for the numbers of a part's keys, ascending, at most `most` at a time.
  template <typename Body>
  void ForEachRun(size_t part, size_t most, Body&& body) const;

  // Keeps of equal keys the first, and chains the others to it. Returns the chains: for each key
  // number the next equal one, or kEnd.
  static constexpr uint32_t kEnd = KeyChains::kEnd;
  std::unique_ptr<uint32_t[]> ExtractDuplicates(const Words& words);

 private:
  // The keys of one part in one chunk of the batch.
  struct Segment {
    uint32_t* keys;
    size_t count;
  };
  Segment* segments(size_t part) { return segments_.data() + part * parts(); }
  const Segment* segments(size_t part) const { return segments_.data() + part * parts(); }
  static size_t PartOf(uint32_t shard, size_t parts) { return shard * parts / kShards; }
  void ExtractDuplicates(const Words& words, size_t part, uint32_t* next);

  struct PartPlaces {
    std::array<uint8_t, kShards> part_of;
    std::array<uint32_t*, kShards> next;  // Where the next key of a part goes.
  };
  // Writes the numbers [begin, end) of keys of these shards to their parts.
  static void DealKeys(const uint8_t* shard_of, size_t begin, size_t end, size_t parts,
                       PartPlaces* places);

  std::unique_ptr<uint32_t[]> order_;  // Key numbers, by chunk and within a chunk by part.
  std::vector<Segment> segments_;      // By part and within a part by chunk.
  std::vector<ShardSet> shards_;
  std::array<uint64_t, kShards> shard_keys_{};
};

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
KeyParts KeyParts::Split(const KeyBatch& keys, Words* words) {
  const size_t n = keys.size;
  uint64_t* kept = nullptr;
  *words = Keys::kStrings ? Words(keys) : Words(n, &kept);
  // Each word is read once: what is kept is what the shard was chosen by.
  const auto read = [&](size_t i) TFRA_INLINE {
    if constexpr (Keys::kStrings) return (*words)[i];
    const int64_t key = __atomic_load_n(keys.ints + i, __ATOMIC_RELAXED);
    return kept[i] = static_cast<uint64_t>(key);
  };
  // Two per thread, so that one whose CPU is busy elsewhere does less.
  const size_t threads = ThreadsFor(n);
  const size_t parts = threads == 1 ? 1 : std::min<size_t>(2 * threads, kShards);
  KeyParts result;
  result.order_.reset(new uint32_t[n]);
  result.segments_.resize(parts * parts);
  result.shards_.assign(parts, 0);
  std::vector<std::array<uint64_t, kShards>> counts(parts);
  // As many chunks of the batch as parts; each is sorted by part on its own.
  ParallelFor(parts, parts, [&](size_t chunk) {
    const size_t begin = n * chunk / parts, end = n * (chunk + 1) / parts;
    std::array<uint64_t, kShards> count{};
    const std::unique_ptr<uint8_t[]> shard_of(new uint8_t[end - begin]);
    for (size_t i = begin; i < end; ++i) {
      const uint32_t shard = ShardOf(Keys::Hash(read(i)));
      shard_of[i - begin] = static_cast<uint8_t>(shard);
      ++count[shard];
    }
    PartPlaces places;
    uint32_t* place = result.order_.get() + begin;
    for (uint32_t s = 0, part = 0; part < parts; ++part) {
      places.next[part] = place;
      for (; s < kShards && PartOf(s, parts) == part; ++s) {
        places.part_of[s] = static_cast<uint8_t>(part);
        place += count[s];
      }
      const size_t keys = static_cast<size_t>(place - places.next[part]);
      result.segments(part)[chunk] = {places.next[part], keys};
    }
    DealKeys(shard_of.get(), begin, end, parts, &places);
    counts[chunk] = count;
  });
  for (uint32_t s = 0; s < kShards; ++s) {
    for (const auto& count : counts) result.shard_keys_[s] += count[s];
    if (result.shard_keys_[s] > 0) result.shards_[PartOf(s, parts)] |= ShardSet{1} << s;
  }
  return result;
}

template <typename Body>
void KeyParts::ForEachRun(size_t part, size_t most, Body&& body) const {
  for (size_t chunk = 0; chunk < parts(); ++chunk) {
    const Segment& segment = segments(part)[chunk];
    for (size_t k = 0; k < segment.count; k += most) {
      body(segment.keys + k, std::min(most, segment.count - k));
    }
  }
}

}  // namespace tfra
