// Memory for large results, used again.
//
// A result of some megabytes that the C library maps and unmaps for every call costs a page fault
// for every four kilobytes, which takes longer than a lookup. So the memory of results that
// TensorFlow has dropped is kept for the next ones, up to a bound.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "runtime/op_context.h"

namespace tfra::tf {

class BufferPool {
 public:
  static BufferPool& Get();

  // Results smaller than this are TensorFlow's own to allocate.
  static constexpr size_t kMinBytes = size_t{256} << 10;
  // At most so many bytes are kept for later.
  static constexpr size_t kMaxKept = size_t{64} << 20;

  // A tensor of uninitialized memory.
  Tensor NewTensor(TF_DataType type, const Dims& dims);

 private:
  void* Take(size_t bytes);
  void Give(void* data, size_t bytes);

  std::mutex mutex_;
  std::multimap<size_t, void*> free_;  // By size. Guarded by mutex_.
  size_t kept_ = 0;                    // Guarded by mutex_.
};

// An output, from the pool if it is large.
Tensor LargeOutput(const OpContext& context, int index, TF_DataType type, const Dims& dims);

}  // namespace tfra::tf
