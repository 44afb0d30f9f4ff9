// Memory blocks that are smaller than a few huge pages. Several blocks share a huge page.
//
// The index of a table of a million keys is 16 arrays of about one huge page each, and each array
// grows on its own. If each array were mapped by itself, most of it would be on small pages, and
// each mmap and munmap would block all threads that ask for memory.
#pragma once

#include <bitset>
#include <cstddef>
#include <mutex>
#include <vector>

#include "memory/pages.h"

namespace tfra {

class PagePool {
 public:
  // The pool is meant for blocks of [kSmallest, kLimit) bytes.
  static constexpr size_t kSmallest = size_t{64} << 10;
  static constexpr size_t kLimit = size_t{8} << 20;

  PagePool() = default;
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Returns zeroed memory, or nullptr. REQUIRES: bytes <= kLimit. Any thread.
  std::byte* Allocate(size_t bytes);

  // Frees a block; returns false if the block is not of this pool. Huge pages without blocks go
  // back to the operating system. Any thread.
  bool Free(std::byte* block, size_t bytes);

  // Called around fork(), so that the child gets a consistent pool (process/fork.cc).
  void Lock() { mutex_.lock(); }
  void Unlock() { mutex_.unlock(); }

 private:
  static constexpr size_t kUnit = size_t{16} << 10;
  static constexpr size_t kRegion = size_t{64} << 20;
  static constexpr size_t kUnits = kRegion / kUnit;
  static constexpr size_t kUnitsPerPage = kHugePage / kUnit;

  struct Region {
    std::byte* start;
    std::bitset<kUnits> used;
    std::bitset<kUnits> dirty;  // Used since the operating system provided the page: not zeroed.
  };

  static size_t UnitsOf(size_t bytes) { return (bytes + kUnit - 1) / kUnit; }
  // The first of `count` free units in a row, or kUnits if there are none.
  static size_t FindRun(const Region& region, size_t count);
  // Finds or maps a region with `count` free units in a row; sets `first` to the first of them.
  // REQUIRES: mutex_ is held.
  Region* FindRoom(size_t count, size_t* first);

  std::mutex mutex_;
  std::vector<Region> regions_;
};

}  // namespace tfra
