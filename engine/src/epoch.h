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
class EpochGuard {
 public:
  EpochGuard();
  ~EpochGuard();
  EpochGuard(const EpochGuard&) = delete;
  EpochGuard& operator=(const EpochGuard&) = delete;
};

// Frees `garbage` when it is safe. The pointers must be unreachable for readers that come later.
// Any thread, inside or outside a guard.
void Retire(std::vector<Retired> garbage);

}  // namespace tfra
