// The memory of rows, by row id. The memory of a row id never moves; Shrink gives some rows other
// ids. The arena maps chunks of a power of two rows, which take memory only when rows are written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "tfra/status.h"

namespace tfra {

class RowArena {
 public:
  explicit RowArena(size_t stride);
  ~RowArena();
  RowArena(const RowArena&) = delete;
  RowArena& operator=(const RowArena&) = delete;

  // Finds rows; valid as long as the arena exists, also for rows that are allocated later. Loops
  // use a copy of it, which compilers can keep in registers.
  struct Map {
    std::atomic<std::byte*>* chunks;  // Has room for the largest possible number of chunks.
    size_t stride;
    uint32_t chunk_shift;
    uint32_t chunk_mask;

    // REQUIRES: `row` was allocated. Any thread.
    std::byte* At(uint32_t row) const {
      return chunks[row >> chunk_shift].load(std::memory_order_acquire) +
             static_cast<size_t>(row & chunk_mask) * stride;
    }
  };
  const Map& map() const { return map_; }
  std::byte* At(uint32_t row) const { return map_.At(row); }

  // Allocates the rows first, first + 1, .. first + count - 1. Any thread.
  Status Allocate(uint32_t count, uint32_t* first);

  // Maps memory, so that allocating the next `rows` rows cannot fail. Any thread.
  Status Reserve(uint64_t rows);

  // Frees all rows from `rows` on. Whole chunks go to the operating system when no thread can be
  // reading them. The rest of the last chunk goes at once: readers then see zeros there. REQUIRES:
  // the index names none of these rows, and no thread allocates rows meanwhile.
  void Truncate(uint32_t rows);

  // Held during fork(), so that the child gets a consistent arena (process/fork.cc).
  std::mutex& mutex() { return mutex_; }

  uint32_t rows() const { return rows_.load(std::memory_order_relaxed); }

 private:
  Status MapThrough(uint64_t rows);  // REQUIRES: mutex_ is held.
  size_t ChunkBytes() const { return (static_cast<size_t>(map_.chunk_mask) + 1) * map_.stride; }

  // Constant after construction.
  Map map_;
  uint64_t max_rows_;
  size_t directory_bytes_;

  std::atomic<uint32_t> rows_{0};  // Allocated so far. Changed under mutex_.
  std::mutex mutex_;
  uint64_t mapped_chunks_ = 0;  // Guarded by mutex_.
};

}  // namespace tfra
