// Optimistic reading. Writers mark a bucket while they change it or its rows. Readers copy a row
// without a lock, and then check that its bucket has not changed meanwhile.
//
// So a reader may read a row while another thread writes it; it then discards the copy. Hardware
// allows this, but it is a data race for the language and for ThreadSanitizer. Only under the
// sanitizer, rows are therefore copied by atomic loads and stores of 4 bytes, and edited in a copy.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#define TFRA_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TFRA_TSAN 1
#endif
#endif

namespace tfra {

inline constexpr size_t kCacheLine = 64;

inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits for another thread: first spins, later yields the CPU, which the other thread may need.
class Backoff {
 public:
  void Wait() {
    if (++rounds_ < 64) {
      CpuRelax();
    } else {
      std::this_thread::yield();
    }
  }

 private:
  int rounds_ = 0;
};

// Copies without calling memcpy if it can: most rows are one to eight cache lines.
[[gnu::always_inline]] inline void CopyBytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes % 64 != 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  for (size_t i = 0; i < bytes; i += 64) {
    std::memcpy(to + i, from + i, 64);
    // Without the fence, the compiler would turn the loop into a call of memcpy.
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
}

#ifdef TFRA_TSAN

inline void LoadRow(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 4) {
    const uint32_t piece =
        __atomic_load_n(reinterpret_cast<const uint32_t*>(from + i), __ATOMIC_RELAXED);
    std::memcpy(to + i, &piece, bytes - i < 4 ? bytes - i : 4);
  }
}

inline void AcquireFence() {}
inline void ReleaseFence() {}

// Runs edit(row) without a data race with readers of the row. REQUIRES: the call is between
// BeginWrite and EndWrite of the row's bucket, or the row is not in the index.
template <typename Edit>
void EditRow(std::byte* row, size_t stride, Edit&& edit) {
  thread_local std::vector<uint64_t> buffer;
  buffer.resize((stride + 7) / 8);
  std::byte* copy = reinterpret_cast<std::byte*>(buffer.data());
  LoadRow(copy, row, stride);
  edit(copy);
  for (size_t i = 0; i < stride; i += 4) {
    uint32_t piece;
    std::memcpy(&piece, copy + i, 4);
    __atomic_store_n(reinterpret_cast<uint32_t*>(row + i), piece, __ATOMIC_RELAXED);
  }
}

#else

inline void LoadRow(std::byte* to, const std::byte* from, size_t bytes) {
  CopyBytes(to, from, bytes);
}

inline void AcquireFence() { std::atomic_thread_fence(std::memory_order_acquire); }
inline void ReleaseFence() { std::atomic_thread_fence(std::memory_order_release); }

template <typename Edit>
[[gnu::always_inline]] inline void EditRow(std::byte* row, size_t, Edit&& edit) {
  edit(row);
}

#endif

}  // namespace tfra
