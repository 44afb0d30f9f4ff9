// Memory for tensors, aligned as TensorFlow expects it: TensorFlow copies tensors with less
// alignment.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

#include "tfra/memory.h"

namespace tfra::tf {

inline constexpr size_t kTensorAlignment = 64;

// Rounds `bytes` up to a size that AlignedAllocate accepts.
inline size_t AlignedSize(size_t bytes) {
  const size_t unit = bytes < kHugePage ? kTensorAlignment : kHugePage;
  return (bytes + unit - 1) / unit * unit;
}

// Returns memory that std::free frees; large memory is on huge pages. Throws std::bad_alloc.
// REQUIRES: AlignedSize returned `bytes`.
inline void* AlignedAllocate(size_t bytes) {
  void* data = std::aligned_alloc(bytes < kHugePage ? kTensorAlignment : kHugePage, bytes);
  if (data == nullptr) throw std::bad_alloc();
  UseHugePages(data, bytes);
  return data;
}

}  // namespace tfra::tf
