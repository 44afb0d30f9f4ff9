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

// For hash tables that live as long as one call, and whose order nobody sees. The seed is drawn
// once for the process: nobody can choose keys that collide.
extern const uint64_t kScrambleSeed;
[[gnu::always_inline]] inline uint64_t Scramble(uint64_t word, uint64_t seed) {
  return FoldMultiply(word ^ seed, std::rotl(seed, 32) | 1);
}

// Whether keys of a call can be numbered by 32 bits, with a number to spare.
Status CheckBatchSize(const KeyBatch& keys);

// The keys of one call with their words. Points to the strings of the KeyBatch it was made from.
class Words {
 public:
  Words() = default;
  // int64 keys are read where the caller has them, each time anew. Other threads may write to that
  // array meanwhile: calls that change the table use KeyParts::Split, which reads each key once.
  explicit Words(const KeyBatch& keys);
  // Memory for n words of int64 keys, which the caller fills through `words` before anything else.
  Words(size_t n, uint64_t** words);

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

  size_t size_ = 0;
  const uint64_t* words_ = nullptr;
  const std::string_view* strings_ = nullptr;
  std::unique_ptr<uint64_t[]> own_;
};

}  // namespace tfra
