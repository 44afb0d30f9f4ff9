// The calls that change rows in place. Contract: TableTraining in tfra/table.h.
#pragma once

#include "state/table_state.h"

namespace tfra {

template <typename Keys>
class TrainingOf final : public TableTraining {
 public:
  explicit TrainingOf(const TableState& state) : state_(state) {}

  Status ApplyGradients(const KeyBatch& keys, const void* gradients, ValueType gradient_type,
                        const UpdateParams& params, const Scores& scores,
                        NewKeys new_keys) override;
  Status AddToRows(const KeyBatch& keys, const void* deltas, const void* slots,
                   const Scores& scores, NewKeys new_keys) override;
  Status Accumulate(const KeyBatch& keys, const void* deltas, const bool* exists,
                    const Scores& scores, NewKeys new_keys) override;
  Status FindOrInsert(const KeyBatch& keys, const Defaults& defaults, void* values, bool* exists,
                      const Scores& scores) override;
  Status AssignExisting(const KeyBatch& keys, const void* values, const void* slots,
                        const RowMetadata* metadata, const Scores& scores) override;

 private:
  const TableState& state_;
};

}  // namespace tfra
