// The content of a checkpoint, into any number of tables: each picks its own keys, a batch at a
// time, so that restoring takes no copy of the whole.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "ops/content.h"
#include "ops/kernels.h"
#include "runtime/attributes.h"

namespace tfra::tf {
namespace {

struct RestoreKernel {
  int64_t first_partition;  // The number of the first table,
  int64_t partition_count;  // among so many, of which others may be on other devices.
};

constexpr size_t kBatch = 16384;
// Of tables with a budget. The rows of one call are in memory together, and rows that were exported
// one after the other are of the same stripe.
constexpr size_t kTieredBatch = 1024;

// Rows of fixed size, of which some are picked.
class Picker {
 public:
  Picker(const void* rows, size_t row_bytes)
      : rows_(static_cast<const char*>(rows)), row_bytes_(row_bytes) {}

  void Add(size_t row) {
    if (rows_ == nullptr) return;
    const char* start = rows_ + row * row_bytes_;
    picked_.insert(picked_.end(), start, start + row_bytes_);
  }
  // Null if there are no rows to pick from.
  const void* picked() const { return rows_ == nullptr ? nullptr : picked_.data(); }
  void Clear() { picked_.clear(); }

 private:
  const char* rows_;
  size_t row_bytes_;
  std::vector<char> picked_;
};

Scores ExactScores(const void* scores) {
  if (scores == nullptr) return Scores();
  return Scores{Scores::kExact, static_cast<const uint64_t*>(scores)};
}

// The numbers of rows, those of the highest scores first: if there are more than the table takes,
// the best stay.
std::vector<uint32_t> BestFirst(const uint64_t* scores, size_t n) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  return order;
}

// partitions: the partition of each key, or null if all of them are of this one. order: of the
// rows; empty, as they are.
template <typename Key>
void RestorePartition(Table* table, const Key* keys, const int32_t* partitions, int32_t partition,
                      size_t n, const std::vector<uint32_t>& order, std::vector<Picker> rows) {
  const size_t batch = table->spec().tiers.fast_bytes > 0 ? kTieredBatch : kBatch;
  std::vector<Key> picked;
  const auto flush = [&] {
    Check(table->Assign(KeyBatch(picked.data(), picked.size()), rows[0].picked(), rows[1].picked(),
                        static_cast<const RowMetadata*>(rows[2].picked()),
                        ExactScores(rows[3].picked())));
    picked.clear();
    for (Picker& picker : rows) picker.Clear();
  };
  for (size_t k = 0; k < n; ++k) {
    const size_t i = order.empty() ? k : order[k];
    if (partitions != nullptr && partitions[i] != partition) continue;
    picked.push_back(keys[i]);
    for (Picker& picker : rows) picker.Add(i);
    if (picked.size() == batch) flush();
  }
  flush();
}

// Throws unless one content fits all tables. No table is in use afterwards: a change of its rule
// waits until nobody uses it.
void RequireTablesAlike(const OpContext& context, int tables) {
  const TableUse first = UseTable(context, 0, "tables");
  for (int i = 1; i < tables; ++i) {
    const TableUse table = UseTable(context, i, "tables");
    RequireAlike(first, table, true, true);
    if (!(table->spec().admission == first->spec().admission)) {
      InvalidArgument("expected `tables` of one rule of admission, received others");
    }
  }
}

// The number of the table that each key belongs to; null if there is one table only. Throws, naming
// the input, unless there is a number for each key.
const int32_t* PartitionsOf(const Tensor& partitions, const char* name, const Keys& keys,
                            const RestoreKernel& kernel) {
  if (kernel.partition_count <= 1) return nullptr;
  RequireShape(partitions, {static_cast<int64_t>(keys.size())}, name);
  const auto* partition_of = partitions.data<const int32_t>();
  for (size_t i = 0; i < keys.size(); ++i) {
    RequireRange(partition_of[i], 0, kernel.partition_count - 1, name);
  }
  return partition_of;
}

// In place of what is in the table.
void RestoreRows(const TableUse& table, const Content& content, const int32_t* partition_of,
                 int32_t partition) {
  const TableSpec& spec = table->spec();
  Check(table->Clear());
  table.trained().Unbind();
  if (IsBounded(*table) && content.epoch() != nullptr) {
    // Before the rows come: their scores belong to it.
    table->scores().SetEpoch(static_cast<uint32_t>(content.epoch()[0]));
    table.trained().set_epoch_steps(content.epoch()[1]);
  }
  // What was saved without slots, metadata or scores is restored with initial ones.
  const void* slots = content.slots();
  const RowMetadata* metadata = spec.metadata ? content.metadata() : nullptr;
  const uint64_t* scores = IsBounded(*table) ? content.scores() : nullptr;
  std::vector<uint32_t> order;
  if (scores != nullptr && static_cast<int64_t>(content.size()) > spec.bound.max_capacity) {
    order = BestFirst(scores, content.size());
  }
  const KeyBatch& keys = content.keys().batch();
  if (partition_of == nullptr && spec.tiers.fast_bytes == 0 && order.empty()) {
    Check(table->Assign(keys, content.values(), slots, metadata, ExactScores(scores)));
    return;
  }
  // Rows come in the order of an export, batch by batch: a table that grew meanwhile would have all
  // keys in the first part of each stripe.
  const int64_t of_partition = partition_of == nullptr
                                   ? static_cast<int64_t>(keys.size)
                                   : std::count(partition_of, partition_of + keys.size, partition);
  Check(table->Reserve(of_partition));
  const size_t element =
      spec.value_type == ValueType::kString ? sizeof(std::string_view) : SizeOf(spec.value_type);
  const std::vector<Picker> rows = {
      Picker(content.values(), static_cast<size_t>(spec.dim) * element),
      Picker(slots, table->slot_elements() * SizeOf(ComputeType(spec.value_type))),
      Picker(metadata, sizeof(RowMetadata)), Picker(scores, sizeof(uint64_t))};
  if (keys.type == KeyType::kString) {
    RestorePartition(&*table, keys.strings, partition_of, partition, keys.size, order, rows);
  } else {
    RestorePartition(&*table, keys.ints, partition_of, partition, keys.size, order, rows);
  }
}

// What is known of the keys of one table that have not entered it.
AdmissionState WaitingOf(const Content& content, const int32_t* partition_of, int32_t partition) {
  AdmissionState state;
  const KeyBatch& keys = content.waiting_keys().batch();
  for (size_t i = 0; i < keys.size; ++i) {
    if (partition_of != nullptr && partition_of[i] != partition) continue;
    if (keys.type == KeyType::kString) {
      state.string_keys.emplace_back(keys.strings[i]);
    } else {
      state.int_keys.push_back(keys.ints[i]);
    }
    state.seen.push_back(content.waiting_seen()[i]);
  }
  const auto* filter = content.waiting_filter().data<const std::byte>();
  state.filter.assign(filter, filter + content.waiting_filter().elements());
  return state;
}

}  // namespace

void* NewRestoreKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<RestoreKernel>(construction, [&](RestoreKernel& kernel) {
    kernel.first_partition = IntAttribute(construction, "first_partition");
    kernel.partition_count = IntAttribute(construction, "partition_count");
  });
}

void DeleteRestoreKernel(void* kernel) { delete static_cast<RestoreKernel*>(kernel); }

void Restore(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const auto& split = *static_cast<const RestoreKernel*>(kernel);
    constexpr int kPartitionInputs =
        2;  // Inputs after the content: `partitions` and `waiting_partitions`.
    const int tables = context.inputs() - Content::kInputs - kPartitionInputs;
    if (split.first_partition + tables > split.partition_count) {
      InvalidArgument("expected `first_partition` and `partition_count` of " +
                      std::to_string(tables) + " tables, received " +
                      std::to_string(split.first_partition) + " and " +
                      std::to_string(split.partition_count));
    }
    RequireTablesAlike(context, tables);
    const Content content(context, tables, UseTable(context, 0, "tables"));
    const Tensor row_partitions = context.Input(tables + Content::kInputs);
    const Tensor waiting_partitions = context.Input(tables + Content::kInputs + 1);
    const int32_t* partition_of = PartitionsOf(row_partitions, "partitions", content.keys(), split);
    const int32_t* waiting_partition_of =
        PartitionsOf(waiting_partitions, "waiting_partitions", content.waiting_keys(), split);

    const auto restore_admission = [&](const TableUse& table, int i) {
      // Where every key may enter, nothing need be known of those that waited.
      if (table->spec().admission.kind == AdmissionKind::kAll) return;
      const auto partition = static_cast<int32_t>(split.first_partition) + i;
      Check(table->upkeep().RestoreAdmission(WaitingOf(content, waiting_partition_of, partition),
                                             static_cast<uint32_t>(partition),
                                             static_cast<uint32_t>(split.partition_count)));
    };
    // The tables are alike, and a state that does not fit the first one's rule changes nothing.
    restore_admission(UseTable(context, 0, "tables"), 0);
    // Everything is checked: now rows may change.
    for (int i = 0; i < tables; ++i) {
      TableUse table = UseTable(context, i, "tables");
      // What was trained goes on with its slots, before an optimizer is known here too.
      if (content.rule()) Check(table.UseRule(*content.rule()));
      RestoreRows(table, content, partition_of, static_cast<int32_t>(split.first_partition) + i);
      restore_admission(table, i);  // After the rows, which clear it.
    }
  });
}

}  // namespace tfra::tf
