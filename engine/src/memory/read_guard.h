// Deferred freeing: memory that readers may still be looking at is retired, and freed once every
// reader that was inside a guard at that time has left it (epoch-based reclamation).
//
// Readers take no lock. A thread inside a Guard may follow any pointer it loaded inside the guard.
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

// Cheap (tens of nanoseconds) and nestable. Held for one batch at most, so that memory is not kept
// for long.
class ReadGuard {
 public:
  ReadGuard();
  ~ReadGuard();
  ReadGuard(const ReadGuard&) = delete;
  ReadGuard& operator=(const ReadGuard&) = delete;
};

// Frees `garbage` when it is safe. The pointers must be unreachable for readers that come later.
// Any thread, inside or outside a guard.
void Retire(std::vector<Retired> garbage);

// Around fork(): see process/fork.cc, the only caller. In the child, threads of the parent that
// were inside a guard no longer count as readers.
void LockRetired();
void UnlockRetired();
void ForgetOtherThreads();

}  // namespace tfra
