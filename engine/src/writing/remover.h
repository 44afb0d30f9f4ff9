// Removes keys.
#pragma once

#include "state/table_state.h"

namespace tfra {

// Removes the keys of a batch. removed: how many were in the table. They are added to `counter` of
// the table's counters.
template <typename Keys>
Status RemoveKeys(const TableState& state, const KeyBatch& keys, uint64_t Tally::* counter,
                  size_t* removed);

}  // namespace tfra
