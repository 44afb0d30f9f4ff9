// Writes a content to a table. Contract: tfra/content.h.
#pragma once

#include "tfra/content.h"
#include "tfra/table.h"

namespace tfra {

class TableWriter final : public ContentWriter {
 public:
  // REQUIRES: the table outlives the writer.
  TableWriter(Table* table, const WriteOptions& options) : table_(table), options_(options) {}

  // Goes on with a copy of the table. REQUIRES: no row was written yet.
  void MoveTo(Table* table) { table_ = table; }

  Status WriteState(const ContentState& state, const Partition& partition) override;
  Status WriteRemoved(const KeyBatch& keys, const Partition& partition) override;
  Status WriteRows(const RowColumns& rows, const Partition& partition) override;
  Status Finish() override;

 private:
  // Before the first change: removes what the content replaces.
  Status Begin();
  // Before the first rows: makes room for them all.
  Status MakeRoom(uint64_t rows);

  Table* table_;
  const WriteOptions options_;
  bool begun_ = false;
  bool has_room_ = false;
  // What was written as the state, the part of this partition.
  ContentState state_;
  Partition state_partition_;
  bool has_admission_ = false;
};

}  // namespace tfra
