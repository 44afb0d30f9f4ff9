// Removes keys.
#pragma once

#include "state/table_state.h"

namespace tfra {

// Removes the keys of a batch. removed: how many of them were in the table. This number is also
// added to the table's counter `counter`.
template <typename Keys>
Status RemoveKeys(const TableState& state, const KeyBatch& keys, uint64_t Tally::* counter,
                  size_t* removed);

}  // namespace tfra
