#include "table/table_base.h"

#include "reading/whole_exporter.h"

namespace tfra {

std::vector<SlotInfo> TableBase::slots() const {
  std::vector<SlotInfo> slots;
  for (const SlotSpec& slot : state_.layout.slots) {
    slots.push_back({slot.name, slot.scalar ? 1 : static_cast<size_t>(spec().dim)});
  }
  return slots;
}

size_t TableBase::slot_elements() const {
  return state_.layout.slots_bytes / SizeOf(ComputeType(spec().value_type));
}

bool TableBase::ExportsAsWhole() const { return WholeExporter::Handles(state_); }

Status TableBase::ExportAll(ExportBatch* batch) {
  if (ExportsAsWhole()) return WholeExporter(state_).ExportAll(batch);
  ExportCursor cursor;
  return Export(SIZE_MAX, &cursor, batch);
}

Status TableBase::ExportInto(const RowArrays& arrays, size_t* rows, ExportBatch* rest) {
  return WholeExporter(state_).ExportInto(arrays, rows, rest);
}

}  // namespace tfra
