#include "runtime/buffer_pool.h"

#include <bit>
#include <cstdlib>

#include "runtime/aligned.h"

namespace tfra::tf {
namespace {

// Rounds a size up to a multiple of an eighth of its power of two, so that tensors of similar size
// can use the same memory.
size_t RoundUp(size_t bytes) {
  const size_t unit = std::bit_floor(bytes) / 8;
  return AlignedSize((bytes + unit - 1) / unit * unit);
}

}  // namespace

BufferPool& BufferPool::Get() {
  static BufferPool* pool = new BufferPool;  // Never deleted: TensorFlow may free tensors at exit.
  return *pool;
}

Tensor BufferPool::NewTensor(TF_DataType type, const Dims& dims) {
  const size_t bytes = static_cast<size_t>(ElementsIn(dims)) * SizeOfElement(type);
  void* data = Take(RoundUp(bytes));
  return Tensor(TF_NewTensor(
      type, dims.data(), static_cast<int>(dims.size()), data, bytes,
      [](void* memory, size_t size, void*) { Get().Give(memory, RoundUp(size)); }, nullptr));
}

void* BufferPool::Take(size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    const auto found = free_.find(bytes);
    if (found != free_.end()) {
      void* data = found->second;
      free_.erase(found);
      kept_ -= bytes;
      return data;
    }
  }
  return AlignedAllocate(bytes);
}

void BufferPool::Give(void* data, size_t bytes) {
  std::lock_guard lock(mutex_);
  if (kept_ + bytes > kMaxKept) {
    std::free(data);
    return;
  }
  free_.emplace(bytes, data);
  kept_ += bytes;
}

Tensor LargeOutput(const OpContext& context, int index, TF_DataType type, const Dims& dims) {
  const size_t bytes = static_cast<size_t>(ElementsIn(dims)) * SizeOfElement(type);
  if (bytes < BufferPool::kMinBytes || type == TF_STRING) return context.Output(index, type, dims);
  Tensor tensor = BufferPool::Get().NewTensor(type, dims);
  context.SetOutput(index, tensor);
  return tensor;
}

}  // namespace tfra::tf
