// Moves the content of one table to another, whose rows may have other slots.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "rows/row_layout.h"
#include "table/table_base.h"

namespace tfra {
namespace {

// Where a slot of one layout is in another.
struct SlotMove {
  size_t from, to, bytes;
};

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

// The slots of a batch in the layout of the other table.
std::vector<std::byte> MoveSlots(const std::vector<SlotMove>& moves, const ExportBatch& batch,
                                 size_t from_bytes, const std::vector<std::byte>& initial) {
  std::vector<std::byte> slots(batch.size * initial.size());
  if (initial.empty()) return slots;
  for (size_t i = 0; i < batch.size; ++i) {
    std::byte* row = slots.data() + i * initial.size();
    std::memcpy(row, initial.data(), initial.size());
    for (const SlotMove& move : moves) {
      std::memcpy(row + move.to, batch.slots.data() + i * from_bytes + move.from, move.bytes);
    }
  }
  return slots;
}

}  // namespace

Status Store::Import(const ExportBatch& batch) try {
  const TableSpec& own = spec();
  const std::vector<std::string_view> keys(batch.string_keys.begin(), batch.string_keys.end());
  const std::vector<std::string_view> values(batch.string_values.begin(),
                                             batch.string_values.end());
  const KeyBatch key_batch = own.key_type == KeyType::kString
                                 ? KeyBatch(keys.data(), keys.size())
                                 : KeyBatch(batch.int_keys.data(), batch.int_keys.size());
  const void* rows = own.value_type == ValueType::kString
                         ? static_cast<const void*>(values.data())
                         : static_cast<const void*>(batch.values.data());
  return Assign(
      key_batch, rows, batch.slots.empty() ? nullptr : batch.slots.data(),
      own.metadata ? batch.metadata.data() : nullptr,
      own.bound.max_capacity > 0 ? Scores{Scores::kExact, batch.scores.data()} : Scores());
}
TFRA_CATCH_BAD_ALLOC

Status Table::CopyWithRule(const RuleSpec& rule, bool keep_slots,
                           std::unique_ptr<Table>* copy) try {
  TableSpec other_spec = spec();
  other_spec.rule = rule;
  other_spec.initial_capacity = std::max(other_spec.initial_capacity, static_cast<int64_t>(size()));
  std::unique_ptr<Table> other;
  TFRA_RETURN_IF_ERROR(Create(other_spec, &other));
  other->scores().SetEpoch(scores().epoch());
  const auto moves = keep_slots ? SharedSlots(*this, *other) : std::vector<SlotMove>();
  const size_t from_bytes = slot_elements() * SizeOf(ComputeType(other_spec.value_type));
  const std::vector<std::byte> initial = RowLayout(other_spec).initial_slots;

  // The rows of one call are in memory together, and a batch has rows of one or two stripes.
  const size_t batch_rows = other_spec.tiers.fast_bytes > 0 ? 1024 : 16384;
  ExportBatch batch;
  for (ExportCursor cursor; !cursor.done;) {
    TFRA_RETURN_IF_ERROR(Export(batch_rows, &cursor, &batch));
    batch.slots = MoveSlots(moves, batch, from_bytes, initial);
    TFRA_RETURN_IF_ERROR(other->Import(batch));
  }
  // Every table is a TableBase.
  static_cast<TableBase*>(other.get())
      ->state()
      .CopyHistory(static_cast<const TableBase*>(this)->state());
  *copy = std::move(other);
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

}  // namespace tfra
