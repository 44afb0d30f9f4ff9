#include "rows/row_arena.h"

#include <algorithm>
#include <bit>
#include <new>
#include <string>
#include <vector>

#include "memory/pages.h"
#include "memory/read_guard.h"

namespace tfra {
namespace {

// Large enough that the directory of chunks stays in the first-level cache.
constexpr size_t kChunkBytes = size_t{32} << 20;
// The highest row ids stay unused, so that sums of row ids and counts do not overflow.
constexpr uint64_t kMaxRows = (uint64_t{1} << 32) - (uint64_t{1} << 20);
constexpr uint64_t kMaxBytes = uint64_t{1} << 46;

void FreeChunk(void* chunk, size_t bytes) { FreePages(static_cast<std::byte*>(chunk), bytes); }

}  // namespace

RowArena::RowArena(size_t stride) {
  map_.stride = stride;
  const size_t rows = kChunkBytes / stride;
  map_.chunk_shift = rows > 1 ? static_cast<uint32_t>(std::bit_width(rows) - 1) : 0;
  map_.chunk_mask = (uint32_t{1} << map_.chunk_shift) - 1;
  const uint64_t chunks =
      std::min((uint64_t{1} << 32) >> map_.chunk_shift, kMaxBytes / ChunkBytes());
  max_rows_ = std::min(kMaxRows, chunks << map_.chunk_shift);
  directory_bytes_ = chunks * sizeof(*map_.chunks);
  std::byte* pages = AllocatePages(directory_bytes_, directory_bytes_);
  if (pages == nullptr) throw std::bad_alloc();
  map_.chunks = reinterpret_cast<std::atomic<std::byte*>*>(pages);
}

RowArena::~RowArena() {
  for (uint64_t i = 0; i < mapped_chunks_; ++i) FreePages(map_.chunks[i].load(), ChunkBytes());
  FreePages(reinterpret_cast<std::byte*>(map_.chunks), directory_bytes_);
}

Status RowArena::MapThrough(uint64_t rows) {
  if (rows > max_rows_) {
    return Status::OutOfMemory("a table holds at most " + std::to_string(max_rows_) +
                               " keys, received room for " + std::to_string(rows));
  }
  while (mapped_chunks_ << map_.chunk_shift < rows) {
    // The first rows of a table are on small pages, because many tables are small.
    std::byte* chunk = AllocatePages(ChunkBytes(), mapped_chunks_ == 0 ? kHugePage : 0);
    if (chunk == nullptr) {
      return Status::OutOfMemory("could not allocate " + std::to_string(ChunkBytes()) +
                                 " bytes for rows; " + std::to_string(rows) + " rows of " +
                                 std::to_string(map_.stride) + " bytes are needed");
    }
    map_.chunks[mapped_chunks_++].store(chunk, std::memory_order_release);
  }
  return Status::Ok();
}

Status RowArena::Allocate(uint32_t count, uint32_t* first) {
  std::lock_guard lock(mutex_);
  const uint32_t begin = rows();
  TFRA_RETURN_IF_ERROR(MapThrough(uint64_t{begin} + count));
  rows_.store(begin + count, std::memory_order_relaxed);
  *first = begin;
  return Status::Ok();
}

Status RowArena::Reserve(uint64_t rows) {
  std::lock_guard lock(mutex_);
  return MapThrough(this->rows() + rows);
}

void RowArena::Truncate(uint32_t rows) {
  std::vector<Retired> garbage;
  {
    std::lock_guard lock(mutex_);
    rows_.store(rows, std::memory_order_relaxed);
    while (mapped_chunks_ > 0 && (mapped_chunks_ - 1) << map_.chunk_shift >= rows) {
      // Other threads may still read through the directory: keep the pointer, retire the memory.
      garbage.push_back({map_.chunks[--mapped_chunks_].load(), ChunkBytes(), FreeChunk});
    }
    if (const size_t used = static_cast<size_t>(rows & map_.chunk_mask) * map_.stride; used > 0) {
      ReleasePages(map_.chunks[mapped_chunks_ - 1].load() + used, ChunkBytes() - used);
    }
  }
  Retire(std::move(garbage));
}

}  // namespace tfra
