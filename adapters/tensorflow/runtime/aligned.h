// Memory for tensors: aligned as TensorFlow wants it (it copies what is aligned to less), and on
// huge pages where it is large, which saves most of the faults of touching it for the first time.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace tfra::tf {

inline constexpr size_t kTensorAlignment = 64;
inline constexpr size_t kHugePage = size_t{2} << 20;

// Rounds up to what AlignedAllocate takes.
inline size_t AlignedSize(size_t bytes) {
  const size_t unit = bytes < kHugePage ? kTensorAlignment : kHugePage;
  return (bytes + unit - 1) / unit * unit;
}

// Asks for huge pages in memory that is not touched yet. A hint.
inline void UseHugePages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  const auto start = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) / kHugePage * kHugePage;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / kHugePage * kHugePage;
  if (start < end) (void)madvise(reinterpret_cast<void*>(start), end - start, MADV_HUGEPAGE);
#endif
}

// To be freed with std::free. REQUIRES: bytes is an AlignedSize.
inline void* AlignedAllocate(size_t bytes) {
  const bool large = bytes >= kHugePage;
  void* data = std::aligned_alloc(large ? kHugePage : kTensorAlignment, bytes);
  if (data == nullptr) throw std::bad_alloc();
  UseHugePages(data, bytes);
  return data;
}

}  // namespace tfra::tf
