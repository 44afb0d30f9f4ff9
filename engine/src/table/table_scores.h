// The calls that only bounded tables serve. Contract: TableScores in tfra/table.h.
#pragma once

#include "state/table_state.h"

namespace tfra {

template <typename Keys>
class ScoresOf final : public TableScores {
 public:
  explicit ScoresOf(const TableState& state) : state_(state) {}

  Status AssignAndEvict(const KeyBatch& keys, const void* values, const void* slots,
                        const RowMetadata* metadata, const Scores& scores, ExportBatch* evicted,
                        bool* rejected) override;
  Status Lookup(const KeyBatch& keys, uint64_t* scores, bool* exists) override;
  Status Assign(const KeyBatch& keys, const uint64_t* scores) override;
  Status CountIf(const ScorePredicate& predicate, uint64_t* count) override;
  Status RemoveIf(const ScorePredicate& predicate, uint64_t* removed) override;
  Status ExportIf(const ScorePredicate& predicate, ExportBatch* batch) override;
  void SetEpoch(uint32_t epoch) override {
    if (state_.bounds != nullptr) state_.bounds->SetEpoch(epoch);
  }
  uint32_t epoch() const override { return state_.bounds == nullptr ? 0 : state_.bounds->epoch(); }

 private:
  // Calls visit(stripe number, entry, score) for every key, a stripe at a time, with its mutex.
  template <typename Visit>
  Status VisitScores(Visit&& visit) const;

  const TableState& state_;
};

}  // namespace tfra
