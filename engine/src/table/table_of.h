// The table for one kind of keys: it owns the state, and delegates each call to the part that does
// it.
#pragma once

#include "reading/exporter.h"
#include "reading/reader.h"
#include "reading/whole_exporter.h"
#include "table/table_base.h"
#include "table/table_scores.h"
#include "upkeep/upkeep.h"
#include "writing/assigner.h"
#include "writing/remover.h"
#include "writing/training.h"

namespace tfra {

template <typename Keys>
class TableOf : public TableBase {
 public:
  using TableBase::TableBase;

  Status Lookup(const KeyBatch& keys, const Defaults& defaults, void* values,
                bool* exists) override {
    return reader_.Lookup(keys, defaults, values, exists);
  }
  Status LookupRows(const KeyBatch& keys, void* values, void* slots) override {
    return reader_.LookupRows(keys, values, slots);
  }
  Status LookupPooled(const KeyBatch& keys, const Defaults& defaults, const Pooling& pooling,
                      void* out) override {
    return reader_.LookupPooled(keys, defaults, pooling, out);
  }
  Status Contains(const KeyBatch& keys, bool* exists) override {
    return reader_.Contains(keys, exists);
  }
  Status LookupMetadata(const KeyBatch& keys, RowMetadata* metadata, bool* exists) override {
    return upkeep_.LookupMetadata(keys, metadata, exists);
  }

  Status Assign(const KeyBatch& keys, const void* values, const void* slots,
                const RowMetadata* metadata, const Scores& scores, NewKeys new_keys) override {
    return AssignRows<Keys>(state_, keys, {values, slots, metadata, scores}, new_keys);
  }
  Status AssignAndEvict(const KeyBatch& keys, const void* values, const void* slots,
                        const RowMetadata* metadata, const Scores& scores, ExportBatch* evicted,
                        bool* rejected) override {
    return scores_.AssignAndEvict(keys, values, slots, metadata, scores, evicted, rejected);
  }
  Status AssignExisting(const KeyBatch& keys, const void* values, const void* slots,
                        const RowMetadata* metadata, const Scores& scores) override {
    return training_.AssignExisting(keys, values, slots, metadata, scores);
  }
  Status FindOrInsert(const KeyBatch& keys, const Defaults& defaults, void* values, bool* exists,
                      const Scores& scores) override {
    return training_.FindOrInsert(keys, defaults, values, exists, scores);
  }
  Status Accumulate(const KeyBatch& keys, const void* deltas, const bool* exists,
                    const Scores& scores, NewKeys new_keys) override {
    return training_.Accumulate(keys, deltas, exists, scores, new_keys);
  }
  Status AddToRows(const KeyBatch& keys, const void* deltas, const void* slots,
                   const Scores& scores, NewKeys new_keys) override {
    return training_.AddToRows(keys, deltas, slots, scores, new_keys);
  }
  Status ApplyGradients(const KeyBatch& keys, const void* gradients, ValueType gradient_type,
                        const UpdateParams& params, const Scores& scores,
                        NewKeys new_keys) override {
    return training_.ApplyGradients(keys, gradients, gradient_type, params, scores, new_keys);
  }
  Status Touch(const KeyBatch& keys, NewKeys new_keys) override {
    return upkeep_.Touch(keys, new_keys);
  }
  Status Remove(const KeyBatch& keys, size_t* removed) override {
    return RemoveKeys<Keys>(state_, keys, &Tally::removals, removed);
  }
  Status Evict(const KeyBatch& keys, size_t* evicted) override {
    return upkeep_.Evict(keys, evicted);
  }

  Status Export(size_t max_rows, ExportCursor* cursor, ExportBatch* batch) override {
    return Exporter<Keys>(state_).Export(max_rows, cursor, batch);
  }
  Status ExportAll(ExportBatch* batch) override {
    if (ExportsAsWhole()) return WholeExporter(state_).ExportAll(batch);
    ExportCursor cursor;
    return Export(SIZE_MAX, &cursor, batch);
  }
  bool ExportsAsWhole() const override { return WholeExporter::Handles(state_); }
  Status ExportInto(const RowArrays& arrays, size_t* rows, ExportBatch* rest) override {
    return WholeExporter(state_).ExportInto(arrays, rows, rest);
  }
  Status CountIf(const MetadataPredicate& predicate, uint64_t* count) override {
    return upkeep_.CountIf(predicate, count);
  }
  Status RemoveIf(const MetadataPredicate& predicate, uint64_t* removed) override {
    return upkeep_.RemoveIf(predicate, removed);
  }
  Status SelectIf(const MetadataPredicate& predicate, ExportBatch* batch) override {
    return upkeep_.SelectIf(predicate, batch);
  }

  Status Restrict(uint64_t keep, Ranking ranking, uint64_t* evicted) override {
    return upkeep_.Restrict(keep, ranking, evicted);
  }
  Status Expire(const ExpiryRule& rule, uint64_t* expired) override {
    return upkeep_.Expire(rule, expired);
  }
  Status Histograms(RowHistograms* histograms) override { return upkeep_.Histograms(histograms); }

  Status LookupScores(const KeyBatch& keys, uint64_t* scores, bool* exists) override {
    return scores_.LookupScores(keys, scores, exists);
  }
  Status AssignScores(const KeyBatch& keys, const uint64_t* scores) override {
    return scores_.AssignScores(keys, scores);
  }
  Status CountIfScore(const ScorePredicate& predicate, uint64_t* count) override {
    return scores_.CountIfScore(predicate, count);
  }
  Status RemoveIfScore(const ScorePredicate& predicate, uint64_t* removed) override {
    return scores_.RemoveIfScore(predicate, removed);
  }
  Status ExportIfScore(const ScorePredicate& predicate, ExportBatch* batch) override {
    return scores_.ExportIfScore(predicate, batch);
  }
  void SetEpoch(uint32_t epoch) override { scores_.SetEpoch(epoch); }
  uint32_t epoch() const override { return scores_.epoch(); }

 private:
  const Reader<Keys> reader_{state_};
  TrainingOf<Keys> training_{state_};
  ScoresOf<Keys> scores_{state_};
  UpkeepOf<Keys> upkeep_{&state_};
};

}  // namespace tfra
