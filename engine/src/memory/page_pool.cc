#include "memory/page_pool.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace tfra {

size_t PagePool::FindRun(const Region& region, size_t count) {
  size_t run = 0;
  for (size_t unit = 0; unit < kUnits; ++unit) {
    run = region.used[unit] ? 0 : run + 1;
    if (run == count) return unit + 1 - count;
  }
  return kUnits;
}

PagePool::Region* PagePool::FindRoom(size_t count, size_t* first) {
  for (Region& region : regions_) {
    *first = FindRun(region, count);
    if (*first < kUnits) return &region;
  }
  std::byte* start = MapHugePages(kRegion);
  if (start == nullptr) return nullptr;
  try {
    regions_.push_back({start, {}, {}});
  } catch (const std::bad_alloc&) {
    UnmapPages(start, kRegion);
    return nullptr;
  }
  *first = 0;
  return &regions_.back();
}

std::byte* PagePool::Allocate(size_t bytes) {
  const size_t count = UnitsOf(bytes);
  std::byte* block;
  std::bitset<kUnits> dirty;  // Bit k: unit k of the block is dirty.
  {
    std::lock_guard lock(mutex_);
    size_t first;
    Region* const region = FindRoom(count, &first);
    if (region == nullptr) return nullptr;
    for (size_t k = 0; k < count; ++k) {
      dirty[k] = region->dirty[first + k];
      region->used.set(first + k);
      region->dirty.set(first + k);
    }
    block = region->start + first * kUnit;
  }
  for (size_t k = 0; k < count; ++k) {
    if (dirty[k]) std::memset(block + k * kUnit, 0, kUnit);
  }
  return block;
}

bool PagePool::Free(std::byte* block, size_t bytes) {
  std::lock_guard lock(mutex_);
  const auto region = std::find_if(regions_.begin(), regions_.end(), [&](const Region& r) {
    return block >= r.start && block < r.start + kRegion;
  });
  if (region == regions_.end()) return false;
  const size_t first = static_cast<size_t>(block - region->start) / kUnit, count = UnitsOf(bytes);
  for (size_t unit = first; unit < first + count; ++unit) region->used.reset(unit);
  if (region->used.none()) {
    UnmapPages(region->start, kRegion);
    regions_.erase(region);
    return true;
  }
  const size_t last = first + count - 1;
  for (size_t page = first / kUnitsPerPage; page <= last / kUnitsPerPage; ++page) {
    const size_t begin = page * kUnitsPerPage, end = begin + kUnitsPerPage;
    bool in_use = false;
    for (size_t unit = begin; unit < end; ++unit) in_use |= region->used[unit];
    if (in_use) continue;
    if (!ReleasePages(region->start + page * kHugePage, kHugePage)) continue;
    for (size_t unit = begin; unit < end; ++unit) region->dirty.reset(unit);
  }
  return true;
}

}  // namespace tfra
