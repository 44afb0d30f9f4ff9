// Combines rows by segments, a block of rows at a time. The rows may come from any source.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "tfra/pooling.h"
#include "tfra/types.h"

namespace tfra {

// A Pooling with a copy of the caller's splits. Another thread may change the caller's splits after
// they were checked, and wrong splits would lead to reads outside of the arrays.
class KeptPooling {
 public:
  explicit KeptPooling(const Pooling& pooling)
      : splits_(pooling.splits, pooling.splits + pooling.segments + 1), pooling_(pooling) {
    pooling_.splits = splits_.data();
  }
  KeptPooling(const KeptPooling&) = delete;
  KeptPooling& operator=(const KeptPooling&) = delete;
  const Pooling& get() const { return pooling_; }

 private:
  const std::vector<int64_t> splits_;
  Pooling pooling_;
};

// Calls body(first, last) for consecutive ranges of segments, on several threads. A segment is
// never divided, so the result does not depend on the number of threads.
void ForEachSegments(const Pooling& pooling, const std::function<void(size_t, size_t)>& body);

// Fills `rows` with the rows of the keys [begin, end).
using ReadRows = std::function<void(size_t begin, size_t end, std::byte* rows)>;

// Combines the rows of the segments [first, last). Calls `read` for one block of keys after
// another. out: (segments, dim) of ComputeType(type). REQUIRES: the pooling is checked, the type
// floating.
void PoolRows(const Pooling& pooling, size_t first, size_t last, ValueType type, size_t dim,
              const ReadRows& read, void* out);

// What a segment's sum is divided by; 0 if the result is to be zero. Compute: float or double.
template <typename Compute>
Compute DivisorOf(const Pooling& pooling, size_t segment);

}  // namespace tfra
