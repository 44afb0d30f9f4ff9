#include "content/table_writer.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/errors.h"

namespace tfra {
namespace {

// How many rows are assigned at a time, if not all at once.
constexpr size_t kBatchRows = 16384;
// In tiered tables. The rows of one call are in memory together, and rows that were exported one
// after the other are of the same stripe.
constexpr size_t kTieredBatchRows = 1024;

bool IsMeant(const Partition& partition, size_t key) {
  return partition.of_key == nullptr || partition.of_key[key] == partition.number;
}

uint64_t CountMeant(const Partition& partition, size_t keys) {
  if (partition.of_key == nullptr) return keys;
  return static_cast<uint64_t>(
      std::count(partition.of_key, partition.of_key + keys, partition.number));
}

// Copies rows of one column, of which some are chosen.
class ChosenRows {
 public:
  ChosenRows(const void* column, size_t row_bytes)
      : column_(static_cast<const std::byte*>(column)), row_bytes_(row_bytes) {}

  void Add(size_t row) {
    if (column_ == nullptr) return;
    const std::byte* start = column_ + row * row_bytes_;
    chosen_.insert(chosen_.end(), start, start + row_bytes_);
  }
  // Null if there is no column.
  const void* data() const { return column_ == nullptr ? nullptr : chosen_.data(); }
  void Clear() { chosen_.clear(); }

 private:
  const std::byte* column_;
  size_t row_bytes_;
  std::vector<std::byte> chosen_;
};

Scores ExactScores(const void* scores) {
  if (scores == nullptr) return Scores();
  return Scores{Scores::kExact, static_cast<const uint64_t*>(scores)};
}

// The order of rows in which the highest scores come first. If there are more rows than the table
// takes, the best ones stay.
std::vector<uint32_t> BestFirst(const uint64_t* scores, size_t n) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  return order;
}

// Assigns the rows of the partition, at most kBatchRows (tiered tables: kTieredBatchRows) per call.
// order: the order in which to take all rows; if it is empty, they are taken as they come.
template <typename Key>
Status AssignChosen(Table* table, const Key* keys, const RowColumns& rows,
                    const Partition& partition, const std::vector<uint32_t>& order) {
  const TableSpec& spec = table->spec();
  const size_t element =
      spec.value_type == ValueType::kString ? sizeof(std::string_view) : SizeOf(spec.value_type);
  ChosenRows values(rows.values, static_cast<size_t>(spec.dim) * element);
  ChosenRows slots(rows.slots, table->slot_elements() * SizeOf(ComputeType(spec.value_type)));
  ChosenRows metadata(rows.metadata, sizeof(RowMetadata));
  ChosenRows scores(rows.scores, sizeof(uint64_t));
  ChosenRows* const columns[] = {&values, &slots, &metadata, &scores};
  const size_t batch_rows = spec.tiers.fast_bytes > 0 ? kTieredBatchRows : kBatchRows;
  std::vector<Key> chosen;
  const auto flush = [&] {
    const Status status =
        table->Assign(KeyBatch(chosen.data(), chosen.size()), values.data(), slots.data(),
                      static_cast<const RowMetadata*>(metadata.data()), ExactScores(scores.data()));
    chosen.clear();
    for (ChosenRows* column : columns) column->Clear();
    return status;
  };
  for (size_t k = 0; k < rows.keys.size; ++k) {
    const size_t i = order.empty() ? k : order[k];
    if (!IsMeant(partition, i)) continue;
    chosen.push_back(keys[i]);
    for (ChosenRows* column : columns) column->Add(i);
    if (chosen.size() == batch_rows) TFRA_RETURN_IF_ERROR(flush());
  }
  return flush();
}

// What is known of the waiting keys of a partition. The filters of all partitions stay: the table
// finds its own.
AdmissionState ChosenAdmission(const AdmissionState& all, const Partition& partition) {
  if (partition.of_key == nullptr) return all;
  AdmissionState chosen;
  for (size_t i = 0; i < all.seen.size(); ++i) {
    if (!IsMeant(partition, i)) continue;
    if (!all.int_keys.empty()) chosen.int_keys.push_back(all.int_keys[i]);
    if (!all.string_keys.empty()) chosen.string_keys.Append(all.string_keys[i]);
    chosen.seen.push_back(all.seen[i]);
  }
  chosen.filter = all.filter;
  return chosen;
}

}  // namespace

Status TableWriter::WriteState(const ContentState& state, const Partition& partition) try {
  // A table that every key may enter has no use for those that waited.
  has_admission_ = table_->spec().admission.kind != AdmissionKind::kAll;
  state_ = ContentState();
  state_.epoch = state.epoch;
  state_partition_ = {.number = partition.number, .count = partition.count};
  if (!has_admission_) return Status::Ok();
  TFRA_RETURN_IF_ERROR(table_->upkeep().CheckAdmission(state.admission));
  state_.admission = ChosenAdmission(state.admission, partition);
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status TableWriter::Begin() {
  if (begun_) return Status::Ok();
  if (options_.mode == WriteOptions::kReplace) TFRA_RETURN_IF_ERROR(table_->Clear());
  // Before the rows come, whose scores belong to the epoch.
  if (state_.epoch && table_->spec().bound.max_capacity > 0)
    table_->scores().SetEpoch(*state_.epoch);
  begun_ = true;
  return Status::Ok();
}

// Rows come in the order of hashes, batch by batch: in a table that grows meanwhile, all keys are
// in the first part of each stripe until it has grown.
Status TableWriter::MakeRoom(uint64_t rows) {
  if (has_room_) return Status::Ok();
  has_room_ = true;
  rows = std::max(rows, options_.expected_rows);
  return table_->Reserve(static_cast<int64_t>(table_->size() + rows));
}

Status TableWriter::WriteRemoved(const KeyBatch& keys, const Partition& partition) try {
  TFRA_RETURN_IF_ERROR(Begin());
  const auto remove = [&](const auto* all) {
    std::vector<std::decay_t<decltype(*all)>> chosen;
    for (size_t i = 0; i < keys.size; ++i) {
      if (IsMeant(partition, i)) chosen.push_back(all[i]);
    }
    size_t removed;
    return table_->Remove(KeyBatch(chosen.data(), chosen.size()), &removed);
  };
  return keys.type == KeyType::kString ? remove(keys.strings) : remove(keys.ints);
}
TFRA_CATCH_BAD_ALLOC

Status TableWriter::WriteRows(const RowColumns& all, const Partition& partition) try {
  TFRA_RETURN_IF_ERROR(Begin());
  const TableSpec& spec = table_->spec();
  RowColumns rows = all;
  if (!spec.metadata) rows.metadata = nullptr;
  if (spec.bound.max_capacity == 0) rows.scores = nullptr;
  std::vector<uint32_t> order;
  if (rows.scores != nullptr && static_cast<int64_t>(rows.keys.size) > spec.bound.max_capacity) {
    order = BestFirst(rows.scores, rows.keys.size);
  }
  if (partition.of_key == nullptr && spec.tiers.fast_bytes == 0 && order.empty()) {
    // One call makes room for all of its rows itself.
    if (options_.expected_rows > rows.keys.size) TFRA_RETURN_IF_ERROR(MakeRoom(0));
    return table_->Assign(rows.keys, rows.values, rows.slots, rows.metadata,
                          ExactScores(rows.scores));
  }
  TFRA_RETURN_IF_ERROR(MakeRoom(CountMeant(partition, rows.keys.size)));
  return rows.keys.type == KeyType::kString
             ? AssignChosen(table_, rows.keys.strings, rows, partition, order)
             : AssignChosen(table_, rows.keys.ints, rows, partition, order);
}
TFRA_CATCH_BAD_ALLOC

Status TableWriter::Finish() {
  TFRA_RETURN_IF_ERROR(Begin());
  if (!has_admission_) return Status::Ok();
  return table_->upkeep().RestoreAdmission(state_.admission,
                                           static_cast<uint32_t>(state_partition_.number),
                                           static_cast<uint32_t>(state_partition_.count));
}

}  // namespace tfra
