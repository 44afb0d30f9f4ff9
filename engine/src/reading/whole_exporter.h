// Exports a whole table of int64 keys and numbers in memory, on several threads, straight into the
// caller's memory. Contract: Table::ExportInto.
//
// Each stripe has its place in the output before any row is copied, so the order of the rows does
// not depend on which thread is first.
#pragma once

#include "reading/batch_rows.h"
#include "state/table_state.h"

namespace tfra {

class WholeExporter {
 public:
  explicit WholeExporter(const TableState& state) : state_(state), rows_(state) {}

  // Whether the table can be exported so: int64 keys, and all values are numbers in memory.
  static bool Handles(const TableState& state) {
    return state.StringsPerRow() == 0 && state.tiers == nullptr;
  }

  // REQUIRES: Handles().
  Status ExportAll(ExportBatch* batch) const;
  Status ExportInto(const RowArrays& arrays, size_t* rows, ExportBatch* rest) const;

 private:
  // Copies the rows of a stripe to the places [begin, end), sets `rows` to their number, and adds
  // rows that find no place to `rest`. Returns false if the stripe grew meanwhile: then the copy is
  // not complete.
  bool ExportStripe(const Stripe& stripe, const RowArrays& arrays, size_t begin, size_t end,
                    size_t* rows, ExportBatch* rest) const;
  // Does so for one bucket, from place `at` on. Returns false, with nothing added, if another
  // thread interfered.
  bool ExportBucket(const BucketArray& array, const Bucket* bucket, const RowArrays& arrays,
                    size_t end, size_t* at, ExportBatch* rest) const;

  const TableState& state_;
  const BatchRows rows_;
};

}  // namespace tfra
