// The table for one kind of keys: it owns the state, and delegates each call to the part that does
// it.
#pragma once

#include "reading/exporter.h"
#include "reading/reader.h"
#include "table/table_base.h"
#include "table/table_scores.h"
#include "upkeep/upkeep.h"
#include "writing/assigner.h"
#include "writing/remover.h"
#include "writing/training.h"

namespace tfra {

template <typename Keys>
class TableOf final : public TableBase {
 public:
  using TableBase::TableBase;

  TableTraining& training() override { return training_; }
  TableScores& scores() override { return scores_; }
  TableUpkeep& upkeep() override { return upkeep_; }

  Status Lookup(const KeyBatch& keys, const Defaults& defaults, void* values, bool* exists,
                void* slots) override {
    return reader_.Lookup(keys, defaults, values, exists, slots);
  }
  Status LookupPooled(const KeyBatch& keys, const Defaults& defaults, const Pooling& pooling,
                      void* out) override {
    return reader_.LookupPooled(keys, defaults, pooling, out);
  }
  Status Contains(const KeyBatch& keys, bool* exists) override {
    return reader_.Contains(keys, exists);
  }
  Status Assign(const KeyBatch& keys, const void* values, const void* slots,
                const RowMetadata* metadata, const Scores& scores, NewKeys new_keys) override {
    return AssignRows<Keys>(state_, keys, {values, slots, metadata, scores}, new_keys);
  }
  Status Remove(const KeyBatch& keys, size_t* removed) override {
    return RemoveKeys<Keys>(state_, keys, &Tally::removals, removed);
  }
  Status Export(size_t max_rows, ExportCursor* cursor, ExportBatch* batch) override {
    return Exporter<Keys>(state_).Export(max_rows, cursor, batch);
  }

 private:
  const Reader<Keys> reader_{state_};
  TrainingOf<Keys> training_{state_};
  ScoresOf<Keys> scores_{state_};
  UpkeepOf<Keys> upkeep_{&state_};
};

}  // namespace tfra
