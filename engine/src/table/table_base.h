// What a table of the engine has whatever its keys: the state, and the calls that need only that.
#pragma once

#include <vector>

#include "state/table_state.h"
#include "tfra/table.h"

namespace tfra {

class TableBase : public Table {
 public:
  TableBase(const TableSpec& spec, Initializer initializer)
      : Table(spec), state_(spec, std::move(initializer)) {}

  TableState& state() { return state_; }
  const TableState& state() const { return state_; }

  std::vector<SlotInfo> slots() const override {
    std::vector<SlotInfo> slots;
    for (const SlotSpec& slot : state_.layout.slots) {
      slots.push_back({slot.name, slot.scalar ? 1 : static_cast<size_t>(spec_.dim)});
    }
    return slots;
  }
  size_t slot_elements() const override {
    return state_.layout.slots_bytes / SizeOf(ComputeType(spec_.value_type));
  }
  uint64_t size() const override { return state_.size(); }
  Status Clear() override { return state_.Clear(); }
  Status Reserve(int64_t keys) override { return state_.Reserve(keys); }
  Status Shrink() override { return state_.Shrink(); }
  Status ExportAdmission(AdmissionState* to) override { return state_.ExportAdmission(to); }
  Status RestoreAdmission(const AdmissionState& from, uint32_t part, uint32_t parts) override {
    return state_.RestoreAdmission(from, part, parts);
  }
  uint32_t clock() const override { return state_.clock(); }
  void SetClock(uint32_t now) override { state_.SetClock(now); }
  TableStats stats() const override { return state_.stats(); }

 protected:
  TableState state_;
};

}  // namespace tfra
