// Keys that were seen but have not entered the table, with how often and when: a small hash table
// of one stripe. One thread at a time may use it, but any may ask for its size and bytes.
//
// Keys are in the order of their hashes. If searches get longer than chance makes them, because
// somebody chose keys that collide, the keys are put into a random order.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "memory/blob.h"
#include "tfra/table.h"

namespace tfra {

class WaitingKeys {
 public:
  explicit WaitingKeys(bool bits_are_hashes) : bits_are_hashes_(bits_are_hashes) {}
  ~WaitingKeys() { Clear(); }
  WaitingKeys(const WaitingKeys&) = delete;
  WaitingKeys& operator=(const WaitingKeys&) = delete;

  // Counts a key, `times` times, and returns how often it was seen. Throws std::bad_alloc.
  uint32_t Add(uint64_t key_bits, std::string_view bytes, uint32_t now, uint32_t times);
  // Takes a key out, if it is there.
  void Remove(uint64_t key_bits, std::string_view bytes);
  void RemoveBefore(uint32_t time);
  // Frees memory, if much more is allocated than the keys need.
  void Shrink();
  void Clear();
  // Replaces all keys by those of another set. Throws std::bad_alloc.
  void CopyFrom(const WaitingKeys& other);
  // Exchanges the keys. REQUIRES: both have the same kind of keys.
  void Swap(WaitingKeys* other);

  uint64_t size() const { return size_.load(std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  // Places looked at by all searches so far.
  uint64_t probes() const { return probes_; }

  // Calls body(key_bits, key bytes, metadata) for each.
  template <typename Body>
  void ForEach(Body&& body) const {
    for (size_t i = 0; i < places_.size(); ++i) {
      if (places_[i].seen.count == 0) continue;
      body(places_[i].key_bits, bits_are_hashes_ ? keys_[i]->view() : std::string_view(),
           places_[i].seen);
    }
  }

 private:
  struct Place {
    uint64_t key_bits;
    RowMetadata seen;  // A count of 0: the place is free.
  };

  // The key's place, or the free one where it would go. REQUIRES: a free place.
  size_t Find(uint64_t key_bits, std::string_view bytes);
  // Whether chance cannot be the reason for the length of the last searches.
  bool SearchesAreTooLong() const;
  size_t HomeOf(uint64_t key_bits) const;
  // Empties a place, and moves those behind it up so that they are found.
  void RemoveAt(size_t place);
  // Moves the keys to so many places, in the order of a seed. Throws std::bad_alloc.
  void Resize(size_t count, uint64_t seed);
  void NoteSize(uint64_t size);

  const bool bits_are_hashes_;
  std::vector<Place> places_;  // Open addressing, linear probing.
  std::vector<Blob*> keys_;    // Of string keys, by place.
  uint64_t seed_ = 0;          // Of the order of keys; 0: that of their hashes.
  uint64_t probes_ = 0;
  // Of the last searches, some thousand at most.
  uint64_t recent_searches_ = 0;
  uint64_t recent_probes_ = 0;
  uint64_t key_bytes_ = 0;
  std::atomic<uint64_t> size_{0};
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace tfra
