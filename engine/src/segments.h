// Combining rows by segments, a block of rows at a time, whatever they come from.
#pragma once

#include <cstddef>
#include <functional>

#include "tfra/pooling.h"
#include "tfra/types.h"

namespace tfra {

// Calls body(first, last) for consecutive ranges of segments, on several threads. A segment is
// never divided: how rows are combined does not depend on threads.
void ForEachSegments(const Pooling& pooling, const std::function<void(size_t, size_t)>& body);

// Fills `rows` with those of the keys [begin, end).
using ReadRows = std::function<void(size_t begin, size_t end, std::byte* rows)>;

// Combines the rows of the segments [first, last), which `read` brings in some blocks.
// out: (segments, dim) of ComputeType(type). REQUIRES: the pooling is checked, the type floating.
void PoolRows(const Pooling& pooling, size_t first, size_t last, ValueType type, size_t dim,
              const ReadRows& read, void* out);

// What a segment's sum is divided by; 0 if the result is to be zero. Compute: float or double.
template <typename Compute>
Compute DivisorOf(const Pooling& pooling, size_t segment);

}  // namespace tfra
