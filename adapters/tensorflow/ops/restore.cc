// Restores a content into any number of tables. Each table takes the keys of its partition.
#include "ops/content.h"
#include "ops/kernels.h"
#include "runtime/attributes.h"

namespace tfra::tf {
namespace {

struct RestoreKernel {
  int64_t first_partition;  // The number of the first table,
  int64_t partition_count;  // among so many, of which others may be on other devices.
};

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

// What the tables knew besides their rows.
ContentState StateOf(const Content& content) {
  ContentState state;
  if (content.epoch() != nullptr) {
    state.epoch = static_cast<uint32_t>(content.epoch()[0]);
    state.epoch_steps = content.epoch()[1];
  }
  AdmissionState& admission = state.admission;
  const KeyBatch& keys = content.waiting_keys().batch();
  if (keys.type == KeyType::kString) {
    for (size_t i = 0; i < keys.size; ++i) admission.string_keys.Append(keys.strings[i]);
  } else {
    admission.int_keys.assign(keys.ints, keys.ints + keys.size);
  }
  admission.seen.assign(content.waiting_seen(), content.waiting_seen() + keys.size);
  const auto* filter = content.waiting_filter().data<const std::byte>();
  admission.filter.assign(filter, filter + content.waiting_filter().elements());
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

    const ContentState state = StateOf(content);
    const RowColumns rows{.keys = content.keys().batch(),
                          .values = content.values(),
                          .slots = content.slots(),
                          .metadata = content.metadata(),
                          .scores = content.scores()};
    for (int i = 0; i < tables; ++i) {
      TableUse table = UseTable(context, i, "tables");
      // Trained rows keep their slots, although no optimizer is known here yet.
      const auto writer = table.NewWriter({.rule = content.rule()});
      Partition partition{.number = static_cast<int32_t>(split.first_partition) + i,
                          .count = static_cast<int32_t>(split.partition_count)};
      partition.of_key = waiting_partition_of;
      // The tables are alike: if the first one takes the state, the others do, too. Nothing else
      // can be wrong with the content, so rows may change from here on.
      Check(writer->WriteState(state, partition));
      partition.of_key = partition_of;
      Check(writer->WriteRows(rows, partition));
      Check(writer->Finish());
    }
  });
}

}  // namespace tfra::tf
