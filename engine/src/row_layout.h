// Where the parts of a row are: [value | optimizer slots | metadata | key].
//
// One place in memory per key, so that an update touches it once. `metadata` and `key` are there
// only in tables that ask for metadata, or have string keys (a pointer to the key's bytes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tfra/options.h"
#include "update_rule.h"

namespace tfra {

struct RowLayout {
  explicit RowLayout(const TableOptions& options);

  size_t value_bytes;
  size_t slots_offset;
  size_t slots_bytes;
  size_t metadata_offset;
  size_t key_offset;
  size_t stride;  // From one row to the next.
  std::vector<SlotSpec> slots;
  // The slots of a fresh row, slots_bytes of them.
  std::vector<std::byte> initial_slots;
};

}  // namespace tfra
