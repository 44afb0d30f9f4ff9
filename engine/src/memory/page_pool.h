// Blocks that are smaller than a few huge pages, several of which share one.
//
// The index of a table of a million keys is 16 arrays of about one huge page each, which grow one
// after the other. Mapped one by one they would be on small pages for the most part, and each would
// stop all threads that want memory while it comes and goes.
#pragma once

#include <bitset>
#include <cstddef>
#include <mutex>
#include <vector>

#include "memory/pages.h"

namespace tfra {

class PagePool {
 public:
  // Blocks of [kSmallest, kLimit) bytes are worth it.
  static constexpr size_t kSmallest = size_t{64} << 10;
  static constexpr size_t kLimit = size_t{8} << 20;

  PagePool() = default;
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Returns zeroed bytes, or nullptr. REQUIRES: at most kLimit. Any thread.
  std::byte* Allocate(size_t bytes);

  // Takes a block back, or returns false if it is not of this pool. Huge pages that none is in any
  // more go to the operating system. Any thread.
  bool Free(std::byte* block, size_t bytes);

  // Around fork(), so that the child finds the pool in order (process/fork.cc).
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
    std::bitset<kUnits> dirty;  // Was used since its page came from the operating system.
  };

  static size_t UnitsOf(size_t bytes) { return (bytes + kUnit - 1) / kUnit; }
  // The first of `count` units that are free, or kUnits.
  static size_t FindRun(const Region& region, size_t count);
  // The region with so many free units in a row, and the first of them. REQUIRES: mutex_.
  Region* FindRoom(size_t count, size_t* first);

  std::mutex mutex_;
  std::vector<Region> regions_;
};

}  // namespace tfra
