// Restores a content into any number of tables. Each table takes the keys of its partition.
//
// All or nothing, for any number of ops: TfraRestore fills a table beside each of its tables, and
// TfraCommitRestore, which runs when all such ops have succeeded, puts those in their places.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ops/content.h"
#include "ops/kernels.h"
#include "runtime/attributes.h"
#include "tfra/memory.h"

namespace tfra::tf {
namespace {

struct RestoreKernel {
  int64_t first_partition;  // The number of the first table,
  int64_t partition_count;  // among so many, of which others may be on other devices.
  bool in_place;            // Whether the tables change at once, one after the other.
};

struct CommitKernel {
  bool drop;  // Whether the tables stay as they are.
};

// Throws unless one content fits all tables. No table is in use afterwards: a change of its rule
// waits until nobody uses it.
void RequireTablesAlike(const OpContext& context, int tables) {
  const TableUse first = UseTable(context, 0, "tables");
  for (int i = 1; i < tables; ++i) {
    const TableUse table = UseTable(context, i, "tables");
    RequireAlike(first, table, true);
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

// The bytes that strings take, together.
uint64_t BytesOfStrings(const std::string_view* strings, size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) bytes += strings[i].size();
  return bytes;
}

// Throws unless there seems to be memory for the restored rows beside those of the tables.
void RequireMemory(const OpContext& context, int tables, const Content& content,
                   const RestoreKernel& split, const Partition& partition) {
  uint64_t held = 0, needed = 0;
  for (int i = 0; i < tables; ++i) {
    const TableUse table = UseTable(context, i, "tables");
    held += table->size();
    TableSpec spec = table->spec();
    if (content.rule()) spec.rule = *content.rule();
    const KeyBatch& keys = content.keys().batch();
    uint64_t rows = keys.size;
    if (partition.of_key != nullptr) {
      rows = static_cast<uint64_t>(std::count(partition.of_key, partition.of_key + keys.size,
                                              static_cast<int32_t>(split.first_partition) + i));
    }
    // The strings of the average key and row.
    const double each = static_cast<double>(std::max<size_t>(keys.size, 1));
    double key_bytes = 0, value_bytes = 0;
    if (keys.type == KeyType::kString) {
      key_bytes = static_cast<double>(BytesOfStrings(keys.strings, keys.size)) / each;
    }
    if (spec.value_type == ValueType::kString) {
      const size_t values = keys.size * static_cast<size_t>(spec.dim);
      value_bytes = static_cast<double>(BytesOfStrings(
                        static_cast<const std::string_view*>(content.values()), values)) /
                    each;
    }
    TableStats estimate;
    Check(EstimateMemory(spec, static_cast<int64_t>(rows), key_bytes, &estimate));
    needed += estimate.index_bytes + estimate.row_bytes + estimate.string_bytes +
              estimate.admission_bytes +
              static_cast<uint64_t>(value_bytes * static_cast<double>(rows));
  }
  const uint64_t available = AvailableMemory();
  if (held == 0 || needed <= available) return;
  Check(Status::OutOfMemory(
      "the restored rows are brought into memory beside the present ones, which stay if something "
      "fails. Expected " +
      std::to_string(needed >> 20) + " MiB of free memory, received " +
      std::to_string(available >> 20) +
      " MiB. Nothing has changed. Restore into a new table, or inside of "
      "`with tfra.dynamic_embedding.restore_in_place():`, which removes the present rows first"));
}

}  // namespace

void* NewRestoreKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<RestoreKernel>(construction, [&](RestoreKernel& kernel) {
    kernel.first_partition = IntAttribute(construction, "first_partition");
    kernel.partition_count = IntAttribute(construction, "partition_count");
    kernel.in_place = BoolAttribute(construction, "in_place");
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
    std::vector<std::shared_ptr<TrainedTable>> replaced;
    for (int i = 0; i < tables; ++i) {
      replaced.push_back(FindTable(context, i, "tables"));
      replaced.back()->TakeReplacement();  // In a graph, a restore that failed left it.
    }
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
    // Trained rows keep their slots, although no optimizer is known here yet.
    const WriteOptions options{.rule = content.rule()};
    Partition partition{.of_key = partition_of,
                        .count = static_cast<int32_t>(split.partition_count)};
    if (!split.in_place) RequireMemory(context, tables, content, split, partition);
    const auto write = [&](ContentWriter* writer, int table) {
      partition.number = static_cast<int32_t>(split.first_partition) + table;
      partition.of_key = waiting_partition_of;
      // The tables are alike: if the first one takes the state, the others do, too. Nothing else
      // can be wrong with the content, so rows may change from here on.
      Check(writer->WriteState(state, partition));
      partition.of_key = partition_of;
      Check(writer->WriteRows(rows, partition));
    };
    if (split.in_place) {
      for (int i = 0; i < tables; ++i) {
        TableUse table = UseTable(context, i, "tables");
        const auto writer = table.NewWriter(options);
        write(writer.get(), i);
        Check(writer->Finish());
      }
      return;
    }
    std::vector<std::unique_ptr<ContentWriter>> filled(static_cast<size_t>(tables));
    for (int i = 0; i < tables; ++i) {
      auto& writer = filled[static_cast<size_t>(i)];
      Check(replaced[static_cast<size_t>(i)]->NewReplacement(options, &writer));
      write(writer.get(), i);
    }
    for (size_t i = 0; i < filled.size(); ++i) {
      Check(replaced[i]->KeepReplacement(std::move(filled[i])));
    }
  });
}

void* NewCommitRestoreKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<CommitKernel>(construction, [&](CommitKernel& kernel) {
    kernel.drop = BoolAttribute(construction, "drop");
  });
}

void DeleteCommitRestoreKernel(void* kernel) { delete static_cast<CommitKernel*>(kernel); }

void CommitRestore(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const Tensor handles = context.Input(0);
    const Dims dims = handles.dims();
    RequireShape(dims, {dims.empty() ? 0 : dims[0]}, "handles");
    std::vector<std::shared_ptr<TrainedTable>> tables;
    for (int64_t i = 0; i < handles.elements(); ++i) {
      const auto handle = static_cast<uint64_t>(handles.data<const int64_t>()[i]);
      tables.push_back(TrainedTable::Find(handle));
      if (tables.back() == nullptr) {
        Check(Status::FailedPrecondition(
            "expected `handles` of tables of this process, received one whose table is gone"));
      }
    }
    if (static_cast<const CommitKernel*>(kernel)->drop) {
      for (const auto& table : tables) table->TakeReplacement();
      return;
    }
    Check(TrainedTable::FinishReplacements(tables));
  });
}

}  // namespace tfra::tf
