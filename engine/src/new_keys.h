// What inserting needs to know beforehand: which keys are new, how many distinct ones there are,
// and the memory for their bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blob.h"
#include "keys.h"
#include "tfra/status.h"

namespace tfra {

// The bytes of new string keys, allocated before the first row changes. Empty for int64 keys.
class NewKeys {
 public:
  NewKeys() = default;
  ~NewKeys() {
    for (Blob* blob : blobs_) std::free(blob);
  }
  NewKeys(const NewKeys&) = delete;
  NewKeys& operator=(const NewKeys&) = delete;

  void Resize(size_t keys) { blobs_.resize(keys, nullptr); }

  Status Make(size_t i, std::string_view bytes) {
    if (blobs_[i] == nullptr) blobs_[i] = Blob::Make(bytes);
    if (blobs_[i] != nullptr) return Status::Ok();
    return Status::OutOfMemory("could not allocate " + std::to_string(bytes.size()) +
                               " bytes for a string key");
  }

  // Gives up the bytes of key i. REQUIRES: they were made.
  Blob* Take(size_t i) { return std::exchange(blobs_[i], nullptr); }

 private:
  std::vector<Blob*> blobs_;  // By key number; null where not made, or taken.
};

// Tells keys seen for the first time from repetitions.
class DistinctKeys {
 public:
  DistinctKeys(const Words& words, size_t at_most)
      : words_(words), mask_((size_t{2} << (64 - __builtin_clzll(at_most + 1))) - 1) {
    numbers_.resize(mask_ + 1, kNone);
  }

  // `i` is the key's number. Returns whether it is a new one.
  bool Add(uint32_t i) {
    size_t place = Scramble(words_[i]) & mask_;
    for (; numbers_[place] != kNone; place = (place + 1) & mask_) {
      if (words_.Equal(numbers_[place], i)) return false;
    }
    numbers_[place] = i;
    return true;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  const Words& words_;
  size_t mask_;
  std::vector<uint32_t> numbers_;  // An open-addressed table, at most half full.
};

}  // namespace tfra
