// Exports a table by batches, while other threads may write. Contract: Store::Export.
#pragma once

#include <vector>

#include "reading/batch_rows.h"
#include "state/finder.h"

namespace tfra {

template <typename Keys>
class Exporter {
 public:
  explicit Exporter(const TableState& state) : state_(state), rows_(state) {}

  Status Export(size_t max_rows, ExportCursor* cursor, ExportBatch* batch) const;

 private:
  // What of a stripe is still to be exported: keys whose position under `seed` is at least `begin`,
  // and whose position in the current array is at least `from`. `reordered`: the current array has
  // another seed.
  struct Range {
    uint64_t from;
    uint64_t begin;
    uint64_t seed;
    bool reordered;
  };
  // Adds the rows of a range whose search starts in the bucket `home` of a stripe. Returns false,
  // with some of them added, if another thread interfered. Rows in the file are put on the list
  // `slow`, to be filled in later.
  bool ExportBucket(const Stripe& stripe, const BucketArray& array, uint64_t home,
                    const Range& range, ExportBatch* batch, std::vector<SlowRow>* slow) const;

  const TableState& state_;
  const BatchRows rows_;
};

}  // namespace tfra
