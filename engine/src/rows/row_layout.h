// Where the parts of a row are: [value | optimizer slots | key].
//
// They are in one place in memory, so that an update touches it once. Only tables with string keys
// have `key`, a pointer to the key's bytes. Metadata are in the index (stripe.h), so that passes
// over the metadata of all keys read no rows.
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
  size_t stride;  // Bytes from one row to the next.
  std::vector<SlotSpec> slots;
  // The slots of a new row, slots_bytes bytes.
  std::vector<std::byte> initial_slots;
};

}  // namespace tfra
