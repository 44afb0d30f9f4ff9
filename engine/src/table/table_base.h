// What a table of the engine has whatever its keys: the state, and the calls that need only that.
#pragma once

#include <utility>
#include <vector>

#include "state/table_state.h"
#include "tfra/table.h"

namespace tfra {

class TableBase : public Table {
 public:
  TableBase(const TableSpec& spec, Initializer initializer)
      : state_(spec, std::move(initializer)) {}

  TableState& state() { return state_; }
  const TableState& state() const { return state_; }

  const TableSpec& spec() const override { return state_.spec; }
  uint64_t size() const override { return state_.size(); }
  Status Clear() override { return state_.Clear(); }
  std::vector<SlotInfo> slots() const override;
  size_t slot_elements() const override;
  bool ExportsAsWhole() const override;
  Status ExportAll(ExportBatch* batch) override;
  Status ExportInto(const RowArrays& arrays, size_t* rows, ExportBatch* rest) override;
  Status Reserve(int64_t keys) override { return state_.Reserve(keys); }
  Status Shrink() override { return state_.Shrink(); }
  TableStats stats() const override { return state_.stats(); }

 protected:
  TableState state_;
};

}  // namespace tfra
