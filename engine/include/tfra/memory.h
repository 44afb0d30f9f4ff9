// Huge pages, for adapters that allocate large results.
#pragma once

#include <cstddef>

namespace tfra {

inline constexpr size_t kHugePage = size_t{2} << 20;

// Asks the system for huge pages in all aligned blocks of kHugePage bytes inside
// [data, data + bytes). Call it before the memory is touched: it then takes fewer page faults. Only
// a hint: errors are not reported.
void UseHugePages(void* data, size_t bytes);

}  // namespace tfra
