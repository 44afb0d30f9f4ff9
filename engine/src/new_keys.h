// What inserting needs to know beforehand: which keys are new, how many distinct ones there are,
// and the memory for their bytes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "blob.h"
#include "keys.h"
#include "tfra/status.h"

namespace tfra {

// Strings allocated before the first row changes, to be taken one by one as rows are written. What
// is not taken is freed in the end.
class PendingBlobs {
 public:
  PendingBlobs() = default;
  ~PendingBlobs() {
    for (Blob* blob : blobs_) std::free(blob);
  }
  PendingBlobs(const PendingBlobs&) = delete;
  PendingBlobs& operator=(const PendingBlobs&) = delete;

  void Resize(size_t count) { blobs_.resize(count, nullptr); }

  // Makes string i, unless it is there.
  Status Make(size_t i, std::string_view text, const char* what) {
    if (blobs_[i] == nullptr) blobs_[i] = Blob::Make(text);
    if (blobs_[i] != nullptr) return Status::Ok();
    return Status::OutOfMemory("could not allocate " + std::to_string(text.size()) +
                               " bytes for a string " + what);
  }

  // Gives string i up to the caller; null if it was not made.
  Blob* Take(size_t i) { return std::exchange(blobs_[i], nullptr); }

 private:
  std::vector<Blob*> blobs_;
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
