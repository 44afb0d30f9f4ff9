// All ways of assigning rows.
#pragma once

#include "state/row_writer.h"
#include "state/table_state.h"

namespace tfra {

// The rows that a call assigns. See Store::Assign.
struct AssignedRows {
  const void* values;
  const void* slots = nullptr;
  const RowMetadata* metadata = nullptr;
  Scores scores = {};
  bool insert_missing = true;  // False: keys that are not in the table are left alone.
};

template <typename Keys>
Status AssignRows(const TableState& state, const KeyBatch& keys, const AssignedRows& rows,
                  NewKeys new_keys = NewKeys::kInsert, const WriteReport& report = {});

}  // namespace tfra
