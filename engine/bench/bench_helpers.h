// What benchmarks of tables share: clocks, memory, checks of results, and keys and rows for these
// checks.
#pragma once

#include <unistd.h>

#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "memory/pages.h"
#include "tfra/status.h"
#include "tfra/thread_pool.h"

namespace tfra::bench {

// The CPU time of this process, on which other programs have little effect.
inline double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

inline double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The memory that this process uses now.
inline uint64_t ResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  unsigned long total = 0, resident = 0;
  if (file == nullptr || std::fscanf(file, "%lu %lu", &total, &resident) != 2) resident = 0;
  if (file != nullptr) std::fclose(file);
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Makes sure that the kernel has `bytes` bytes of free memory. A hypervisor may take free memory
// away, and getting it back would take much longer than what is measured. Uses all threads at the
// same time, because each CPU has its own list of free pages.
inline void ProvideMemory(size_t bytes) {
  const int threads = NumThreads();
  std::barrier together(threads);
  std::vector<std::jthread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&] {
      const size_t share = bytes / static_cast<size_t>(threads);
      std::byte* pages = AllocatePages(share);
      together.arrive_and_wait();
      PopulatePages(pages, share);
      together.arrive_and_wait();
      FreePages(pages, share);
    });
  }
}

// Ends the run if a result is wrong.
inline void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "wrong result: %s\n", what);
  std::exit(1);
}

inline void RequireOk(const Status& status) { Require(status.ok(), status.message().c_str()); }

// The key of a number. Different numbers have different keys.
inline int64_t KeyOf(uint64_t number) { return static_cast<int64_t>(MixInt64(number + 1)); }
// The value of every element of the key's row.
inline float ValueOf(int64_t key) { return static_cast<float>(key & 0xFFFF); }

}  // namespace tfra::bench
