// How calls of the engine report that memory ran out, and which failure they report if several
// threads fail.
#pragma once

#include <mutex>
#include <new>
#include <utility>

#include "tfra/status.h"

namespace tfra {

// Follows the body of every public call, as a function-try-block: running out of memory is a
// Status.
#define TFRA_CATCH_BAD_ALLOC                                               \
  catch (const std::bad_alloc&) {                                          \
    return Status::OutOfMemory("out of memory for the needs of one call"); \
  }

// Returns the result of body(), or kOutOfMemory if body() ran out of memory.
template <typename Body>
Status CatchBadAlloc(Body&& body) try {
  return body();
}
TFRA_CATCH_BAD_ALLOC

// Collects the results of the threads of one call, and keeps the first failure.
class SharedStatus {
 public:
  void Set(Status status) {
    if (status.ok()) return;
    std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }
  Status Get() {
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  std::mutex mutex_;
  Status status_;
};

}  // namespace tfra
