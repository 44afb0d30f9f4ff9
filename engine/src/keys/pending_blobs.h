// Strings that a call allocates before it changes the first row.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "keys/keys.h"
#include "memory/blob.h"
#include "tfra/status.h"

namespace tfra {

// Strings that are taken one by one while rows are written. The destructor frees the others.
class PendingBlobs {
 public:
  PendingBlobs() = default;
  ~PendingBlobs() {
    for (Blob* blob : blobs_) std::free(blob);
  }
  PendingBlobs(const PendingBlobs&) = delete;
  PendingBlobs& operator=(const PendingBlobs&) = delete;

  void Resize(size_t count) { blobs_.resize(count, nullptr); }

  // Allocates string i, unless it was allocated before.
  Status Make(size_t i, std::string_view text, const char* what) {
    if (blobs_[i] == nullptr) blobs_[i] = Blob::Make(text);
    if (blobs_[i] != nullptr) return Status::Ok();
    return Status::OutOfMemory("could not allocate " + std::to_string(text.size()) +
                               " bytes for a string " + what);
  }

  // Passes the ownership of string i to the caller; null if it was not allocated.
  Blob* Take(size_t i) { return std::exchange(blobs_[i], nullptr); }

 private:
  std::vector<Blob*> blobs_;
};

}  // namespace tfra
