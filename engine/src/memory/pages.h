// Large blocks of zeroed memory from the operating system, which can be returned to it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tfra/memory.h"

namespace tfra {

// Returns `bytes` zeroed bytes, aligned to at least a cache line, or nullptr. The bytes from
// `huge_from` on use huge pages if the system has them: these halve the cost of a random access to
// a large table. If `huge_from` is 0, small blocks share huge pages (page_pool.h). Blocks that do
// not share pages take no memory before they are touched.
std::byte* AllocatePages(size_t bytes, size_t huge_from = 0);

// Makes the system provide the memory of a block now. Otherwise a page that is first read and then
// written costs two page faults, and the second one interrupts all CPUs. This affects speed only,
// so errors are not reported.
void PopulatePages(std::byte* pages, size_t bytes);

// Maps zeroed huge pages, which take memory when they are written; or returns nullptr. For
// allocators that divide them into blocks.
std::byte* MapHugePages(size_t bytes);
void UnmapPages(std::byte* pages, size_t bytes);

// Frees what AllocatePages returned. `bytes` is the size that was passed there.
void FreePages(std::byte* pages, size_t bytes);

// Returns the memory of the whole pages inside [start, start + bytes) to the system. The addresses
// stay valid: they read as zeros, and take memory again when they are written. Returns false if the
// system keeps the pages unchanged, for example because they are locked in memory. REQUIRES: the
// range is in a block of at least kHugePage bytes.
bool ReleasePages(std::byte* start, size_t bytes);

// Called around fork() by process/fork.cc.
void LockPagePool();
void UnlockPagePool();

// Makes all allocations fail after `successes` more of them. A negative number ends this.
void FailAllocationsForTesting(int64_t successes);

// True if a test wants this allocation, of pages or of a string, to fail.
bool AllocationFailsForTesting();

}  // namespace tfra
