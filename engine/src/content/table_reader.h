// Reads the content of a table. Contract: tfra/content.h.
#pragma once

#include "tfra/content.h"
#include "tfra/table.h"

namespace tfra {

class TableReader final : public ContentReader {
 public:
  // REQUIRES: the table outlives the reader.
  TableReader(Table* table, const ReadOptions& options)
      : table_(table), batch_rows_(options.batch_rows), state_is_next_(options.state) {}

  const TableSpec& spec() const override { return table_->spec(); }
  Status Next(ContentBatch* batch) override;
  Status NextInto(const RowArrays& arrays, size_t* rows, ContentBatch* batch) override;

 private:
  Table* const table_;
  const size_t batch_rows_;
  bool state_is_next_;
  ExportCursor cursor_;
};

}  // namespace tfra
