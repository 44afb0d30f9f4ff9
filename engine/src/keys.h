// The two kinds of keys, as the index sees them: a word of 64 bits per key and its hash.
//
// For an int64 key the word is the key. For a string it is a hash of the bytes, and whoever finds
// the word must still compare the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "hash.h"
#include "tfra/table.h"

namespace tfra {

struct IntKeys {
  static constexpr bool kStrings = false;
  [[gnu::always_inline]] static uint64_t Hash(uint64_t word) { return MixInt64(word); }
};

struct StringKeys {
  static constexpr bool kStrings = true;
  static uint64_t Hash(uint64_t word) { return word; }
};

// For small tables of the keys of one part. Not the index's hash, whose top bits they share.
inline uint64_t Scramble(uint64_t word) {
  const uint64_t mixed = word * 0x9E3779B97F4A7C15u;
  return mixed ^ mixed >> 32;
}

// Whether keys of a call can be numbered by 32 bits, with a number to spare.
Status CheckBatchSize(const KeyBatch& keys);

// The keys of one call with their words. Points into the KeyBatch it was made from.
class Words {
 public:
  explicit Words(const KeyBatch& keys);

  size_t size() const { return size_; }
  uint64_t operator[](size_t i) const { return words_[i]; }
  const uint64_t* data() const { return words_; }
  // The bytes of key i; empty for int64 keys.
  std::string_view bytes(size_t i) const {
    return strings_ == nullptr ? std::string_view() : strings_[i];
  }

  // The keys [begin, end) with numbers from 0 on. Points to what these Words hold.
  Words Part(size_t begin, size_t end) const {
    return Words(end - begin, words_ + begin, strings_ == nullptr ? nullptr : strings_ + begin);
  }

  bool Equal(size_t i, size_t j) const {
    return words_[i] == words_[j] && (strings_ == nullptr || strings_[i] == strings_[j]);
  }

 private:
  Words(size_t size, const uint64_t* words, const std::string_view* strings)
      : size_(size), words_(words), strings_(strings) {}

  size_t size_;
  const uint64_t* words_;
  const std::string_view* strings_;
  std::unique_ptr<uint64_t[]> hashes_;
};

}  // namespace tfra
