// Copies a table to one whose rows may have other slots.
#include <cstring>
#include <utility>
#include <vector>

#include "content/table_reader.h"
#include "content/table_writer.h"
#include "rows/row_layout.h"
#include "table/table_base.h"

namespace tfra {
namespace {

// Copies a slot: its offset among the slots of one layout, that of the other, and its length.
struct SlotMove {
  size_t from, to, bytes;
};

// The slots that both tables have, by name and length: what to copy from each row of `from` to the
// row of `to`.
std::vector<SlotMove> SharedSlots(const Table& from, const Table& to) {
  const size_t element = SizeOf(ComputeType(from.spec().value_type));
  std::vector<SlotMove> moves;
  size_t to_offset = 0;
  for (const SlotInfo& wanted : to.slots()) {
    size_t from_offset = 0;
    for (const SlotInfo& slot : from.slots()) {
      if (slot.name == wanted.name && slot.elements == wanted.elements) {
        moves.push_back({from_offset, to_offset, slot.elements * element});
        break;
      }
      from_offset += slot.elements * element;
    }
    to_offset += wanted.elements * element;
  }
  return moves;
}

// Reads a table, and gives the rows the slots of another.
class OtherSlots final : public ContentReader {
 public:
  // REQUIRES: both tables outlive the reader.
  OtherSlots(Table* from, const Table& to, bool keep_slots)
      : from_(from, {.state = false}),
        moves_(keep_slots ? SharedSlots(*from, to) : std::vector<SlotMove>()),
        from_bytes_(from->slot_elements() * SizeOf(ComputeType(from->spec().value_type))),
        initial_(RowLayout(to.spec()).initial_slots) {}

  const TableSpec& spec() const override { return from_.spec(); }
  Status Next(ContentBatch* batch) override {
    TFRA_RETURN_IF_ERROR(from_.Next(batch));
    if (batch->kind == ContentBatch::kRows) MoveSlots(&batch->rows);
    return Status::Ok();
  }

 private:
  void MoveSlots(ExportBatch* rows) const {
    std::vector<std::byte> slots(rows->size * initial_.size());
    for (size_t i = 0; i < rows->size && !initial_.empty(); ++i) {
      std::byte* row = slots.data() + i * initial_.size();
      std::memcpy(row, initial_.data(), initial_.size());
      for (const SlotMove& move : moves_) {
        std::memcpy(row + move.to, rows->slots.data() + i * from_bytes_ + move.from, move.bytes);
      }
    }
    rows->slots = std::move(slots);
  }

  TableReader from_;
  const std::vector<SlotMove> moves_;
  const size_t from_bytes_;
  const std::vector<std::byte> initial_;
};

// Every table is a TableBase.
TableState& StateOf(Table* table) { return static_cast<TableBase*>(table)->state(); }
const TableState& StateOf(const Table* table) {
  return static_cast<const TableBase*>(table)->state();
}

// An empty table of this spec with the clock and the epoch of another one.
Status MakeFrom(const Table& former, const TableSpec& spec, std::unique_ptr<Table>* table) {
  TFRA_RETURN_IF_ERROR(Table::Create(spec, table));
  StateOf(table->get()).CopyClock(StateOf(&former));
  const Bounds* bounds = StateOf(&former).bounds.get();
  if (bounds != nullptr) (*table)->scores().SetEpoch(bounds->epoch());
  return Status::Ok();
}

// A table of this spec with the content of another one.
Status CopyTo(Table* from, const TableSpec& spec, bool keep_slots, std::unique_ptr<Table>* copy) {
  std::unique_ptr<Table> other;
  TFRA_RETURN_IF_ERROR(MakeFrom(*from, spec, &other));
  OtherSlots reader(from, *other, keep_slots);
  TableWriter writer(other.get(), {.mode = WriteOptions::kChange, .expected_rows = from->size()});
  TFRA_RETURN_IF_ERROR(CopyContent(&reader, &writer));
  StateOf(other.get()).CopyHistory(StateOf(from));
  *copy = std::move(other);
  return Status::Ok();
}

}  // namespace

Status Table::CopyWithRule(const RuleSpec& rule, bool keep_slots,
                           std::unique_ptr<Table>* copy) try {
  TableSpec other_spec = spec();
  other_spec.rule = rule;
  return CopyTo(this, other_spec, keep_slots, copy);
}
TFRA_CATCH_BAD_ALLOC

Status Table::CopyWithMetadata(std::unique_ptr<Table>* copy) try {
  TableSpec other_spec = spec();
  other_spec.metadata = true;
  return CopyTo(this, other_spec, true, copy);
}
TFRA_CATCH_BAD_ALLOC

Status Table::MakeLike(const RuleSpec& rule, std::unique_ptr<Table>* table) const try {
  TableSpec other_spec = spec();
  other_spec.rule = rule;
  return MakeFrom(*this, other_spec, table);
}
TFRA_CATCH_BAD_ALLOC

void Table::AddHistory(const Table& former) {
  StateOf(this).CopyClock(StateOf(&former));
  StateOf(this).AddHistory(StateOf(&former));
}

}  // namespace tfra
