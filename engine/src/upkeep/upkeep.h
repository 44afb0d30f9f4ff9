// Metadata of rows, and the rows that leave: by rank, or because they expired. Contract:
// TableUpkeep in tfra/table.h.
#pragma once

#include "state/table_state.h"
#include "upkeep/visitor.h"

namespace tfra {

class RankSearch;

template <typename Keys>
class UpkeepOf final : public TableUpkeep {
 public:
  explicit UpkeepOf(TableState* state) : state_(*state), visitor_(*state) {}

  Status LookupMetadata(const KeyBatch& keys, RowMetadata* metadata, bool* exists) override;
  Status Touch(const KeyBatch& keys, NewKeys new_keys) override;
  Status CountIf(const MetadataPredicate& predicate, uint64_t* count) override;
  Status RemoveIf(const MetadataPredicate& predicate, uint64_t* removed) override;
  Status SelectIf(const MetadataPredicate& predicate, ExportBatch* batch) override;
  Status Restrict(uint64_t keep, Ranking ranking, uint64_t* evicted) override;
  Status Evict(const KeyBatch& keys, size_t* evicted) override;
  Status Expire(const ExpiryRule& rule, uint64_t* expired) override;
  Status Histograms(RowHistograms* histograms) override;
  Status ExportAdmission(AdmissionState* to) override { return state_.ExportAdmission(to); }
  Status CheckAdmission(const AdmissionState& from) override { return state_.CheckAdmission(from); }
  Status RestoreAdmission(const AdmissionState& from, uint32_t partition,
                          uint32_t partitions) override {
    return state_.RestoreAdmission(from, partition, partitions);
  }
  uint32_t clock() const override { return state_.clock(); }
  void SetClock(uint32_t now) override { state_.SetClock(now); }

 private:
  // Finds the boundary among `size` numbers. sample(array, bucket number, list) adds the numbers of
  // a bucket to a list; look(stripe, part) adds the numbers of a stripe to a part of the search.
  template <typename Sample, typename Look>
  void FindBoundary(RankSearch* search, uint64_t size, Sample&& sample, Look&& look) const;

  TableState& state_;
  const Visitor<Keys> visitor_;
};

}  // namespace tfra
