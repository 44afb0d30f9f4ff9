// The keys of a call, split into groups by stripe. One thread handles a group: equal keys are in
// the same group, and no two groups write to the same stripe. Within a group keys keep their order,
// so that the caller's rows are read nearly in sequence.
//
// int64 keys are copied here, and each is read only once: another thread may change the caller's
// array meanwhile (a data loader that reuses its buffer). So throughout the call, each position has
// one key.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/batch.h"
#include "keys/key_set.h"
#include "keys/keys.h"
#include "keys/stripes.h"

namespace tfra {

class KeyGroups {
 public:
  // Splits a batch into groups: a small batch into one, a large batch into two for each thread, but
  // at most one for each stripe. A group may be empty. bits: set to the keys in batch order, as
  // they were read; string keys still refer to the caller's strings.
  template <typename Keys>
  static KeyGroups Split(const KeyBatch& keys, KeyBits* bits);

  size_t groups() const { return stripes_.size(); }
  // The stripes that a group has keys of.
  StripeSet stripes(size_t group) const { return stripes_[group]; }
  // The number of keys of each stripe, with repeated keys.
  const std::array<uint64_t, kStripes>& stripe_keys() const { return stripe_keys_; }

  // Calls body(positions, count) for the positions of a group's keys, ascending, at most `most` at
  // a time.
  template <typename Body>
  void ForEachRun(size_t group, size_t most, Body&& body) const;

  // Keeps the first of equal keys, and chains the others to it. Returns the chains: for the
  // position of each key, the position of the next equal key, or kEnd.
  static constexpr uint32_t kEnd = KeyChains::kEnd;
  std::unique_ptr<uint32_t[]> ExtractDuplicates(const KeyBits& bits);

 private:
  // The keys of one group in one chunk of the batch.
  struct Segment {
    uint32_t* keys;
    size_t count;
  };
  Segment* segments(size_t group) { return segments_.data() + group * groups(); }
  const Segment* segments(size_t group) const { return segments_.data() + group * groups(); }
  static size_t GroupOf(uint32_t stripe, size_t groups) { return stripe * groups / kStripes; }
  void ExtractDuplicates(const KeyBits& bits, size_t group, uint32_t* next);

  struct GroupPlaces {
    std::array<uint8_t, kStripes> group_of;
    std::array<uint32_t*, kStripes> next;  // Where the next key of a group goes.
  };
  // Writes each position of [begin, end) to the group of its key. stripe_of: the keys' stripes.
  static void DealKeys(const uint8_t* stripe_of, size_t begin, size_t end, size_t groups,
                       GroupPlaces* places);

  std::unique_ptr<uint32_t[]> order_;  // Positions of keys, by chunk and within a chunk by group.
  std::vector<Segment> segments_;      // By group and within a group by chunk.
  std::vector<StripeSet> stripes_;
  std::array<uint64_t, kStripes> stripe_keys_{};
};

template <typename Keys>
KeyGroups KeyGroups::Split(const KeyBatch& keys, KeyBits* bits) {
  const size_t n = keys.size;
  uint64_t* kept = nullptr;
  *bits = Keys::kStrings ? KeyBits(keys) : KeyBits(n, &kept);
  // Each key is read once, so that its stripe is chosen by the same key that is kept.
  const auto read = [&](size_t i) TFRA_INLINE {
    if constexpr (Keys::kStrings) return (*bits)[i];
    const int64_t key = __atomic_load_n(keys.ints + i, __ATOMIC_RELAXED);
    return kept[i] = static_cast<uint64_t>(key);
  };
  // Two groups per thread, so that a thread on a busy CPU does fewer of them.
  const size_t threads = ThreadsFor(n);
  const size_t groups = threads == 1 ? 1 : std::min<size_t>(2 * threads, kStripes);
  KeyGroups result;
  result.order_.reset(new uint32_t[n]);
  result.segments_.resize(groups * groups);
  result.stripes_.assign(groups, 0);
  std::vector<std::array<uint64_t, kStripes>> counts(groups);
  // As many chunks of the batch as groups; each is sorted by group on its own.
  ParallelFor(groups, groups, [&](size_t chunk) {
    const size_t begin = n * chunk / groups, end = n * (chunk + 1) / groups;
    std::array<uint64_t, kStripes> count{};
    const std::unique_ptr<uint8_t[]> stripe_of(new uint8_t[end - begin]);
    for (size_t i = begin; i < end; ++i) {
      const uint32_t stripe = StripeOf(Keys::Hash(read(i)));
      stripe_of[i - begin] = static_cast<uint8_t>(stripe);
      ++count[stripe];
    }
    GroupPlaces places;
    uint32_t* place = result.order_.get() + begin;
    for (uint32_t s = 0, group = 0; group < groups; ++group) {
      places.next[group] = place;
      for (; s < kStripes && GroupOf(s, groups) == group; ++s) {
        places.group_of[s] = static_cast<uint8_t>(group);
        place += count[s];
      }
      const size_t count_of_group = static_cast<size_t>(place - places.next[group]);
      result.segments(group)[chunk] = {places.next[group], count_of_group};
    }
    DealKeys(stripe_of.get(), begin, end, groups, &places);
    counts[chunk] = count;
  });
  for (uint32_t s = 0; s < kStripes; ++s) {
    for (const auto& count : counts) result.stripe_keys_[s] += count[s];
    if (result.stripe_keys_[s] > 0) result.stripes_[GroupOf(s, groups)] |= StripeSet{1} << s;
  }
  return result;
}

template <typename Body>
void KeyGroups::ForEachRun(size_t group, size_t most, Body&& body) const {
  for (size_t chunk = 0; chunk < groups(); ++chunk) {
    const Segment& segment = segments(group)[chunk];
    for (size_t k = 0; k < segment.count; k += most) {
      body(segment.keys + k, std::min(most, segment.count - k));
    }
  }
}

}  // namespace tfra
