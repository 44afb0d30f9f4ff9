// Where the parts of a row are: [value | optimizer slots | key].
//
// One place in memory per key, so that an update touches it once. `key` is there only in tables
// with string keys (a pointer to the key's bytes). Metadata are in the index (stripe.h): what is
// looked at in all rows at once is found without touching any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/update_rule.h"
#include "tfra/spec.h"

namespace tfra {

struct RowLayout {
  explicit RowLayout(const TableSpec& spec);

  size_t value_bytes;
  size_t slots_offset;
  size_t slots_bytes;
  size_t key_offset;
  size_t stride;  // From one row to the next.
  std::vector<SlotSpec> slots;
  // The slots of a fresh row, slots_bytes of them.
  std::vector<std::byte> initial_slots;
};

}  // namespace tfra
