// Adds rows of a table to an ExportBatch.
#pragma once

#include <vector>

#include "state/table_state.h"

namespace tfra {

class BatchRows {
 public:
  explicit BatchRows(const TableState& state) : state_(state) {}

  // Adds the key, value and slots of a row. REQUIRES: the strings of the row stay.
  void AppendRow(uint64_t key_bits, const std::byte* row, ExportBatch* batch) const;
  // Adds what the index has of an entry: score and metadata.
  void AppendColumns(const BucketArray& array, const Bucket* bucket, uint32_t index,
                     ExportBatch* batch) const;
  // Adds the row that a row id names. A row in the file is put on the list `slow`, and RowMover
  // fills it in later. REQUIRES: the stripe's mutex, and a ReadGuard that stays until the rows of
  // the list are filled in.
  void AppendEntry(uint64_t key_bits, uint32_t row_id, ExportBatch* batch,
                   std::vector<SlowRow>* slow) const;
  // Drops all but the first rows of a batch.
  void Truncate(size_t rows, ExportBatch* batch) const;

 private:
  const TableState& state_;
};

}  // namespace tfra
