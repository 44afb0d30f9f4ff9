// Memory of the system, for adapters that allocate large results.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tfra {

inline constexpr size_t kHugePage = size_t{2} << 20;

// Asks the system for huge pages in all aligned blocks of kHugePage bytes inside
// [data, data + bytes). Call it before the memory is touched: it then takes fewer page faults. Only
// a hint: errors are not reported.
void UseHugePages(void* data, size_t bytes);

// How many bytes this process may still allocate, as far as the system tells: what is free in the
// machine, in the control groups of the process, and below the limit of its addresses. Others may
// take them at any time.
uint64_t AvailableMemory();

}  // namespace tfra
