// Immutable byte strings outside the rows: string keys, and the elements of string values.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "memory/pages.h"
#include "memory/read_guard.h"

namespace tfra {

struct Blob {
  uint32_t size;
  char data[];

  static constexpr size_t kMaxSize = UINT32_MAX - sizeof(uint32_t);

  // Returns nullptr when out of memory. REQUIRES: text.size() <= kMaxSize.
  static Blob* Make(std::string_view text) {
    if (AllocationFailsForTesting()) return nullptr;
    auto* blob = static_cast<Blob*>(std::malloc(sizeof(Blob) + text.size()));
    if (blob == nullptr) return nullptr;
    blob->size = static_cast<uint32_t>(text.size());
    if (!text.empty()) std::memcpy(blob->data, text.data(), text.size());
    return blob;
  }

  std::string_view view() const { return {data, size}; }

  // The memory that malloc uses for a string: it adds a header of 8 bytes and rounds up to 16.
  static size_t AllocatedBytes(size_t text_size) {
    const size_t bytes = (sizeof(Blob) + text_size + 8 + 15) / 16 * 16;
    return bytes < 32 ? 32 : bytes;
  }
  size_t allocated_bytes() const { return AllocatedBytes(size); }

  // For Retire.
  static Retired AsRetired(Blob* blob) {
    return {blob, 0, [](void* pointer, size_t) { std::free(pointer); }};
  }
};

// Read and write a Blob* in a row. Null stands for the empty string.
inline Blob* LoadBlob(const std::byte* place) {
  return __atomic_load_n(reinterpret_cast<Blob* const*>(place), __ATOMIC_RELAXED);
}
inline void StoreBlob(std::byte* place, Blob* blob) {
  __atomic_store_n(reinterpret_cast<Blob**>(place), blob, __ATOMIC_RELAXED);
}
inline std::string_view ViewOf(const Blob* blob) {
  return blob == nullptr ? std::string_view() : blob->view();
}

}  // namespace tfra
