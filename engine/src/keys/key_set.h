// The distinct keys of one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "keys/keys.h"

namespace tfra {

// A hash table of key positions for one call. Open addressing, at most half full.
// Entry has a member `uint32_t first = kNoKey`, the position of the first key that equals the
// entry's. It may have a member `uint64_t key_bits`: then a search compares them first, and reads
// the keys of the call only when they are equal.
inline constexpr uint32_t kNoKey = UINT32_MAX;

template <typename Entry>
class KeySet {
 public:
  // For `at_most` keys. The keys must outlive the set.
  KeySet(const KeyBits& bits, size_t at_most)
      : bits_(bits),
        mask_((size_t{1} << (64 - __builtin_clzll(at_most * 2 + 1))) - 1),
        entries_(mask_ + 1) {}

  // Call this some keys before Add.
  void Prefetch(uint32_t i) const { __builtin_prefetch(&entries_[PlaceOf(i)], 1); }

  // Returns the entry of the key at position i. is_new: whether Add made the entry now.
  [[gnu::always_inline]] Entry& Add(uint32_t i, bool* is_new) {
    size_t place = PlaceOf(i);
    while (entries_[place].first != kNoKey && !IsEntryOf(entries_[place], i)) {
      place = (place + 1) & mask_;
    }
    Entry& entry = entries_[place];
    *is_new = entry.first == kNoKey;
    if (*is_new) {
      entry.first = i;
      if constexpr (requires { entry.key_bits; }) entry.key_bits = bits_[i];
    }
    return entry;
  }

 private:
  size_t PlaceOf(uint32_t i) const { return Scramble(bits_[i], seed_) & mask_; }
  bool IsEntryOf(const Entry& entry, uint32_t i) const {
    if constexpr (requires { entry.key_bits; }) {
      if (entry.key_bits != bits_[i]) return false;
    }
    return bits_.Equal(entry.first, i);
  }

  const KeyBits& bits_;
  const uint64_t seed_ = kScrambleSeed;
  const size_t mask_;
  std::vector<Entry> entries_;
};

// Tells new keys from repeated ones.
class DistinctKeys {
 public:
  DistinctKeys(const KeyBits& bits, size_t at_most) : keys_(bits, at_most) {}

  // Returns whether the key at position i is new.
  bool Add(uint32_t i) {
    bool is_new;
    keys_.Add(i, &is_new);
    return is_new;
  }

 private:
  struct Entry {
    uint32_t first = kNoKey;
  };
  KeySet<Entry> keys_;
};

// Chains equal keys, in the order in which they are added.
class KeyChains {
 public:
  static constexpr uint32_t kEnd = UINT32_MAX;

  // next: for the position of each key that is added, the position of the next equal key, or kEnd.
  KeyChains(const KeyBits& bits, size_t at_most, uint32_t* next)
      : next_(next), keys_(bits, at_most) {}

  void Prefetch(uint32_t i) const { keys_.Prefetch(i); }

  // Returns whether the key at position i is the first of its chain.
  bool Add(uint32_t i) {
    next_[i] = kEnd;
    bool is_new;
    Entry& chain = keys_.Add(i, &is_new);
    if (!is_new) next_[chain.last] = i;
    chain.last = i;
    return is_new;
  }

 private:
  struct Entry {
    uint32_t first = kNoKey;
    uint32_t last;
  };
  uint32_t* const next_;
  KeySet<Entry> keys_;
};

}  // namespace tfra
