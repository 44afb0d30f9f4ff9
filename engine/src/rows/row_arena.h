// Rows by number. A row stays where it is from the day its number is handed out; memory comes in
// chunks of a power of two rows and is only touched, and so only takes memory, when rows are used.
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

  // Where rows are: good for the arena's life, and for rows handed out later too. Loops keep a
  // copy, which compilers can hold in registers.
  struct Map {
    std::atomic<std::byte*>* chunks;  // Room for every chunk there can be; grows in place.
    size_t stride;
    uint32_t chunk_shift;
    uint32_t chunk_mask;

    // REQUIRES: `row` was handed out. Any thread.
    std::byte* At(uint32_t row) const {
      return chunks[row >> chunk_shift].load(std::memory_order_acquire) +
             static_cast<size_t>(row & chunk_mask) * stride;
    }
  };
  const Map& map() const { return map_; }
  std::byte* At(uint32_t row) const { return map_.At(row); }

  // Hands out rows first, first + 1, .. first + count - 1. Any thread.
  Status Allocate(uint32_t count, uint32_t* first);

  // Maps memory so that the next `rows` rows can be handed out without failing. Any thread.
  Status Reserve(uint64_t rows);

  // Takes all rows from `rows` on back and gives their memory to the operating system, once no
  // reader can be looking at it. REQUIRES: nobody uses them or allocates meanwhile.
  void Truncate(uint32_t rows);

  // Around fork(), so that the child finds the arena in order (process/fork.cc).
  std::mutex& mutex() { return mutex_; }

  uint32_t rows() const { return rows_.load(std::memory_order_relaxed); }

 private:
  Status MapThrough(uint64_t rows);  // REQUIRES: mutex_ is held.
  size_t ChunkBytes() const { return (static_cast<size_t>(map_.chunk_mask) + 1) * map_.stride; }

  // Constant after construction.
  Map map_;
  uint64_t max_rows_;
  size_t directory_bytes_;

  std::atomic<uint32_t> rows_{0};  // Handed out so far. Changed under mutex_.
  std::mutex mutex_;
  uint64_t mapped_chunks_ = 0;  // Guarded by mutex_.
};

}  // namespace tfra
