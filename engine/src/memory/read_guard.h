// Deferred freeing (epoch-based reclamation): memory that other threads may still read is retired.
// It is freed when every thread that was inside a ReadGuard at that time has left the guard.
//
// Readers take no lock. A thread inside a ReadGuard may follow any pointer that it loaded there.
#pragma once

#include <cstddef>
#include <vector>

namespace tfra {

// Something to be freed later by free(pointer, bytes).
struct Retired {
  void* pointer;
  size_t bytes;
  void (*free)(void* pointer, size_t bytes);
};

// Takes some ten nanoseconds, and may be nested. Hold it for one batch at most, so that retired
// memory is freed soon.
class ReadGuard {
 public:
  ReadGuard();
  ~ReadGuard();
  ReadGuard(const ReadGuard&) = delete;
  ReadGuard& operator=(const ReadGuard&) = delete;
};

// Frees `garbage` when no reader can use it any more. REQUIRES: threads that enter a guard from now
// on cannot reach the pointers. Any thread, inside or outside of a guard.
void Retire(std::vector<Retired> garbage);

// Called around fork() by process/fork.cc. ForgetOtherThreads is for the child: threads of the
// parent that were inside a guard do not count as readers there.
void LockRetired();
void UnlockRetired();
void ForgetOtherThreads();

}  // namespace tfra
