// Reuses the memory of large output tensors.
//
// The C library maps and unmaps the memory of a large tensor in every call. Each page of four
// kilobytes then costs a page fault, and the faults take longer than the lookup. So the pool keeps
// the memory of tensors that TensorFlow has freed, up to kMaxKept bytes, for later tensors.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "runtime/op_context.h"

namespace tfra::tf {

class BufferPool {
 public:
  static BufferPool& Get();

  // TensorFlow allocates outputs that are smaller than this.
  static constexpr size_t kMinBytes = size_t{256} << 10;
  // The pool keeps at most this many bytes of free memory.
  static constexpr size_t kMaxKept = size_t{64} << 20;

  // Returns a tensor of uninitialized memory. REQUIRES: at least kMinBytes; not a tensor of
  // strings.
  Tensor NewTensor(TF_DataType type, const Dims& dims);

 private:
  void* Take(size_t bytes);
  void Give(void* data, size_t bytes);

  std::mutex mutex_;
  std::multimap<size_t, void*> free_;  // Free memory by its size. Guarded by mutex_.
  size_t kept_ = 0;                    // Bytes in free_. Guarded by mutex_.
};

// Makes output `index` of the op. Its memory is uninitialized. It is from the pool if the tensor
// has at least kMinBytes; TensorFlow allocates smaller tensors, and all tensors of strings.
Tensor LargeOutput(const OpContext& context, int index, TF_DataType type, const Dims& dims);

}  // namespace tfra::tf
