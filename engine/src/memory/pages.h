// Large blocks of zeroed memory, straight from the operating system so that they can be given back.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tfra {

inline constexpr size_t kHugePage = size_t{2} << 20;

// Returns `bytes` zeroed bytes aligned to at least a cache line, or nullptr. From `huge_from` on
// they ask for huge pages, which halve the cost of a random access to a large table; blocks of a
// few huge pages share them with others (page_pool.h), unless some is to be on small ones. Pages
// that nobody shares take no memory before they are touched.
std::byte* AllocatePages(size_t bytes, size_t huge_from = 0);

// Gives a block its memory at once. A page that is first read and then written costs two faults,
// the second of which interrupts all CPUs. Only a matter of speed: reports no errors.
void PopulatePages(std::byte* pages, size_t bytes);

// Addresses on huge pages, zeroed, that take memory when they are written; or nullptr. And the end
// of them. For those who hand out parts.
std::byte* MapHugePages(size_t bytes);
void UnmapPages(std::byte* pages, size_t bytes);

// `bytes` is the size that was asked for.
void FreePages(std::byte* pages, size_t bytes);

// Gives the whole pages inside [start, start + bytes) back, keeping the addresses: they read as
// zeros, and take memory again when written. Returns false if the system keeps them as they are, as
// those that are locked in memory. REQUIRES: a part of a block of kHugePage or more.
bool ReleasePages(std::byte* start, size_t bytes);

// Around fork(): see process/fork.cc, the only caller.
void LockPagePool();
void UnlockPagePool();

// Makes the next allocations after `successes` more of them fail; a negative number ends that.
void FailAllocationsForTesting(int64_t successes);

// True if a test wants this allocation, of pages or of a string, to fail.
bool AllocationFailsForTesting();

}  // namespace tfra
