#include "memory/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "base/sync.h"
#include "memory/page_pool.h"

namespace tfra {
namespace {

// For blocks below this size, malloc wastes less memory than whole pages.
constexpr size_t kSmallBlock = PagePool::kSmallest;

// Sanitizers find uses of freed memory better if every block is mapped by itself.
#ifdef TFRA_SANITIZED
constexpr bool kPools = false;
#else
constexpr bool kPools = true;
#endif

bool MayBePooled(size_t bytes) {
  return kPools && bytes >= kSmallBlock && bytes < PagePool::kLimit;
}

// Never destroyed: tables may be destroyed later than static objects.
PagePool& ThePagePool() {
  static PagePool* const pool = new PagePool();
  return *pool;
}

std::atomic<int64_t> successes_left{-1};

size_t RoundUp(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// 4 KiB on x86, 16 KiB on Apple CPUs, up to 64 KiB on other ARM CPUs.
size_t PageSize() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

std::byte* Map(size_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return pages == MAP_FAILED ? nullptr : static_cast<std::byte*>(pages);
}

// Maps one huge page more than needed, then unmaps what is before and after the aligned block.
std::byte* MapAligned(size_t bytes) {
  const size_t whole = RoundUp(bytes, PageSize());
  std::byte* raw = Map(whole + kHugePage);
  if (raw == nullptr) return nullptr;
  const uintptr_t address = reinterpret_cast<uintptr_t>(raw);
  const size_t head = RoundUp(address, kHugePage) - address;
  const size_t tail = kHugePage - head;
  if (head > 0) munmap(raw, head);
  if (tail > 0) munmap(raw + head + whole, tail);
  return raw + head;
}

// Only a hint: if huge pages are disabled, the memory works too, but is slower.
void AskForHugePages([[maybe_unused]] std::byte* pages, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  (void)madvise(pages, bytes, MADV_HUGEPAGE);
#endif
}

}  // namespace

void UseHugePages(void* data, size_t bytes) {
  auto* start = static_cast<std::byte*>(data);
  const size_t head =
      RoundUp(reinterpret_cast<uintptr_t>(start), kHugePage) - reinterpret_cast<uintptr_t>(start);
  if (bytes < head + kHugePage) return;
  AskForHugePages(start + head, (bytes - head) / kHugePage * kHugePage);
}

void LockPagePool() { ThePagePool().Lock(); }

void UnlockPagePool() { ThePagePool().Unlock(); }

std::byte* MapHugePages(size_t bytes) {
  std::byte* pages = MapAligned(bytes);
  if (pages != nullptr) AskForHugePages(pages, bytes);
  return pages;
}

void UnmapPages(std::byte* pages, size_t bytes) { munmap(pages, bytes); }

void FailAllocationsForTesting(int64_t successes) { successes_left = successes; }

bool AllocationFailsForTesting() {
  if (successes_left.load(std::memory_order_relaxed) < 0) return false;
  int64_t left = successes_left.load();
  while (left > 0 && !successes_left.compare_exchange_weak(left, left - 1)) {
  }
  return left == 0;
}

std::byte* AllocatePages(size_t bytes, size_t huge_from) {
  // Refuse sizes that overflowed, or that no address space can hold.
  if (bytes > (size_t{1} << 46) || AllocationFailsForTesting()) return nullptr;
  if (bytes < kSmallBlock) {
    const size_t rounded = RoundUp(bytes > 0 ? bytes : 1, kCacheLine);
    void* block = std::aligned_alloc(kCacheLine, rounded);
    if (block != nullptr) std::memset(block, 0, rounded);
    return static_cast<std::byte*>(block);
  }
  if (MayBePooled(bytes) && huge_from == 0) {
    // If the pool cannot map a whole region, mapping this block alone may still succeed.
    if (std::byte* block = ThePagePool().Allocate(bytes)) return block;
  }
  if (bytes < kHugePage) return Map(bytes);
  std::byte* pages = MapAligned(bytes);
  if (pages != nullptr && huge_from < bytes) AskForHugePages(pages + huge_from, bytes - huge_from);
  return pages;
}

void PopulatePages([[maybe_unused]] std::byte* pages, [[maybe_unused]] size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (bytes < kSmallBlock) return;
  // In steps, because no other thread of the process can map or unmap memory during a step.
  constexpr size_t kStep = 2 * kHugePage;
  for (size_t done = 0; done < bytes; done += kStep) {
    const size_t step = std::min(kStep, RoundUp(bytes - done, PageSize()));
    (void)madvise(pages + done, step, MADV_POPULATE_WRITE);
  }
#endif
}

void FreePages(std::byte* pages, size_t bytes) {
  if (bytes < kSmallBlock) {
    std::free(pages);
  } else if (pages != nullptr && !(MayBePooled(bytes) && ThePagePool().Free(pages, bytes))) {
    UnmapPages(pages, bytes);
  }
}

bool ReleasePages(std::byte* start, size_t bytes) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(start);
  const size_t head = RoundUp(address, PageSize()) - address;
  if (bytes < head + PageSize()) return true;
  const size_t whole = (bytes - head) / PageSize() * PageSize();
#ifdef __linux__
  return madvise(start + head, whole, MADV_DONTNEED) == 0;
#else
  // Other systems need not clear the pages on that hint, so map new pages over them.
  return mmap(start + head, whole, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
#endif
}

}  // namespace tfra
