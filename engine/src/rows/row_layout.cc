#include "rows/row_layout.h"

#include <cstring>

#include "kernels/dispatch.h"
#include "tfra/table.h"

namespace tfra {
namespace {

size_t AlignUp(size_t offset, size_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

template <typename Compute>
std::vector<std::byte> InitialSlots(const std::vector<SlotSpec>& slots, size_t dim) {
  std::vector<Compute> elements;
  for (const SlotSpec& slot : slots) {
    elements.insert(elements.end(), slot.scalar ? 1 : dim, static_cast<Compute>(slot.initial));
  }
  std::vector<std::byte> bytes(elements.size() * sizeof(Compute));
  if (!bytes.empty()) std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

}  // namespace

RowLayout::RowLayout(const TableSpec& spec) : slots(SlotLayout(spec.rule)) {
  const size_t dim = static_cast<size_t>(spec.dim);
  // A multiple of four bytes: ThreadSanitizer builds copy rows by atomic loads of four bytes.
  size_t alignment = 4;
  value_bytes = dim * SizeOf(spec.value_type);
  if (SizeOf(spec.value_type) == 8) alignment = 8;

  initial_slots = ComputeType(spec.value_type) == ValueType::kFloat64
                      ? InitialSlots<double>(slots, dim)
                      : InitialSlots<float>(slots, dim);
  slots_offset = AlignUp(value_bytes, alignment);
  slots_bytes = initial_slots.size();
  size_t end = AlignUp(slots_offset + slots_bytes, 4);
  key_offset = end;
  if (spec.key_type == KeyType::kString) {
    alignment = 8;
    key_offset = AlignUp(end, 8);
    end = key_offset + sizeof(void*);
  }
  stride = AlignUp(end, alignment);
}

}  // namespace tfra
