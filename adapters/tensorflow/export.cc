// Whole tables as tensors. Rows go straight into the result, a batch at a time, so that an export
// takes no more memory than its result.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "aligned.h"
#include "arguments.h"
#include "kernels.h"
#include "rule_text.h"
#include "tfra/thread_pool.h"

namespace tfra::tf {
namespace {

// Grows as rows come: others may insert while a table is exported.
class GrowingBuffer {
 public:
  GrowingBuffer() = default;
  ~GrowingBuffer() { std::free(data_); }
  GrowingBuffer(const GrowingBuffer&) = delete;
  GrowingBuffer& operator=(const GrowingBuffer&) = delete;

  void Reserve(size_t bytes) {
    if (bytes <= capacity_) return;
    const size_t capacity = AlignedSize(bytes);
    void* data = AlignedAllocate(capacity);
    if (size_ > 0) std::memcpy(data, data_, size_);
    std::free(data_);
    data_ = data;
    capacity_ = capacity;
  }

  void* Append(size_t bytes) {
    if (size_ + bytes > capacity_) Reserve((size_ + bytes) * 5 / 4);
    void* end = static_cast<char*>(data_) + size_;
    size_ += bytes;
    return end;
  }

  void Append(const void* bytes, size_t count) {
    if (count > 0) std::memcpy(Append(count), bytes, count);
  }

  // Gives the memory up to a tensor.
  Tensor Take(TF_DataType type, const Dims& dims) {
    Reserve(1);
    return Tensor(TF_NewTensor(
        type, dims.data(), static_cast<int>(dims.size()), std::exchange(data_, nullptr),
        std::exchange(size_, 0), [](void* data, size_t, void*) { std::free(data); }, nullptr));
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

// What is exported beside the keys.
struct Parts {
  bool values = false;
  bool slots_and_metadata = false;
  bool scores = false;
};

constexpr size_t kRowsAtATime = 16384;

class Exporter {
 public:
  Exporter(const OpContext& context, std::vector<TableUse> tables)
      : context_(context), tables_(std::move(tables)) {
    for (const TableUse& table : tables_) expected_rows_ += table->size();
    const Table& first = *tables_[0];
    type_ = first.options().value_type;
    dim_ = first.options().dim;
    slot_elements_ = first.slot_elements();
    key_bytes_ = key_dtype() == TF_INT32 ? sizeof(int32_t) : sizeof(int64_t);
    if (key_dtype() != TF_STRING) keys_.Reserve(expected_rows_ * key_bytes_);
  }

  const TableUse& first() const { return tables_[0]; }

  // Goes through the tables, so many rows at a time, and sets the outputs: the keys and the parts,
  // in their order.
  void Run(const Parts& parts, size_t rows_at_a_time = kRowsAtATime) {
    if (parts.values && type_ != ValueType::kString) values_.Reserve(expected_rows_ * RowBytes());
    // One thread reads the table while another one copies what was read before: to memory that is
    // new, which takes as long.
    ExportBatch read, kept;
    for (const TableUse& table : tables_) {
      for (ExportCursor cursor; !cursor.done; std::swap(read, kept)) {
        ParallelFor(2, 2, [&](size_t part) {
          if (part == 0) {
            Check(table->Export(rows_at_a_time, &cursor, &read));
          } else {
            Append(&kept, parts);
          }
        });
      }
    }
    Append(&kept, parts);
    int output = 0;
    if (key_dtype() == TF_STRING) {
      StoreStrings(string_keys_, context_.Output(output++, TF_STRING, {rows_}));
    } else {
      context_.SetOutput(output++, keys_.Take(key_dtype(), {rows_}));
    }
    if (parts.values && type_ == ValueType::kString) {
      StoreStrings(string_values_, context_.Output(output++, TF_STRING, {rows_, dim_}));
    } else if (parts.values) {
      context_.SetOutput(output++, values_.Take(DataTypeOf(type_), {rows_, dim_}));
    }
    if (parts.slots_and_metadata) {
      context_.SetOutput(output++, slots_.Take(DataTypeOf(ComputeType(type_)),
                                               {rows_, static_cast<int64_t>(slot_elements_)}));
      const bool metadata = tables_[0]->options().metadata;
      context_.SetOutput(output++, metadata_.Take(TF_INT32, {rows_, metadata ? 2 : 0}));
    }
    if (parts.scores) {
      context_.SetOutput(output, scores_.Take(TF_INT64, {IsBounded(*first()) ? rows_ : 0}));
    }
  }

 private:
  TF_DataType key_dtype() const { return tables_[0].named().key_dtype; }
  size_t RowBytes() const { return static_cast<size_t>(dim_) * SizeOf(type_); }

  // Adds a batch to the outputs.
  void Append(ExportBatch* batch, const Parts& parts) {
    rows_ += static_cast<int64_t>(batch->size);
    if (key_bytes_ == sizeof(int32_t)) {
      auto* out = static_cast<int32_t*>(keys_.Append(batch->size * key_bytes_));
      for (size_t i = 0; i < batch->size; ++i) out[i] = static_cast<int32_t>(batch->int_keys[i]);
    } else {
      keys_.Append(batch->int_keys.data(), batch->int_keys.size() * key_bytes_);
    }
    std::move(batch->string_keys.begin(), batch->string_keys.end(),
              std::back_inserter(string_keys_));
    if (parts.values) {
      values_.Append(batch->values.data(), batch->values.size());
      std::move(batch->string_values.begin(), batch->string_values.end(),
                std::back_inserter(string_values_));
    }
    if (parts.slots_and_metadata) {
      slots_.Append(batch->slots.data(), batch->slots.size());
      metadata_.Append(batch->metadata.data(), batch->metadata.size() * sizeof(RowMetadata));
    }
    if (parts.scores) {
      ClampScores(batch->scores.data(), batch->scores.size());
      scores_.Append(batch->scores.data(), batch->scores.size() * sizeof(uint64_t));
    }
  }

  const OpContext& context_;
  std::vector<TableUse> tables_;
  ValueType type_;
  int64_t dim_;
  size_t slot_elements_;
  size_t key_bytes_;

  size_t expected_rows_ = 0;
  int64_t rows_ = 0;
  GrowingBuffer keys_, values_, slots_, metadata_, scores_;
  std::vector<std::string> string_keys_, string_values_;
};

// others: inputs after the tables.
std::vector<TableUse> UseTables(const OpContext& context, int others) {
  std::vector<TableUse> tables;
  for (int i = 0; i < context.inputs() - others; ++i) tables.push_back(UseTable(context, i));
  return tables;
}

// Tables with the slots of one rule: those that were not trained yet get them, and those that are
// to start anew do.
std::vector<TableUse> UseTablesOfOneRule(const OpContext& context) {
  for (;;) {
    RuleSpec rule;
    {
      std::vector<TableUse> tables = UseTables(context, 0);
      for (const TableUse& table : tables) {
        if (rule.kind == RuleKind::kNone) rule = table->options().rule;
      }
      const auto fits = [&](const TableUse& table) {
        return table->options().rule == rule && !table.named().slots_start_anew;
      };
      if (std::all_of(tables.begin(), tables.end(), fits)) return tables;
    }
    for (int i = 0; i < context.inputs(); ++i) {
      TableUse(FindTable(context, i), rule);
    }
  }
}

}  // namespace

void Export(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    Exporter(context, UseTables(context, 0)).Run({.values = true});
  });
}

void ExportPart(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    const int64_t position = *context.Input(1).data<const int64_t>();
    const int64_t max_rows = *context.Input(2).data<const int64_t>();
    if (max_rows < 1) {
      InvalidArgument("expected a part of 1 row or more, received " + std::to_string(max_rows));
    }
    ExportCursor cursor{static_cast<uint64_t>(position), false};
    ExportBatch batch;
    Check(table->Export(static_cast<size_t>(max_rows), &cursor, &batch));
    const auto rows = static_cast<int64_t>(batch.size);
    const ValueType type = table->options().value_type;
    const TF_DataType key_dtype = table.named().key_dtype;
    const Tensor keys = context.Output(0, key_dtype, {rows});
    if (key_dtype == TF_STRING) {
      StoreStrings(batch.string_keys, keys);
    } else if (key_dtype == TF_INT32) {
      std::copy(batch.int_keys.begin(), batch.int_keys.end(), keys.data<int32_t>());
    } else {
      std::copy(batch.int_keys.begin(), batch.int_keys.end(), keys.data<int64_t>());
    }
    const Tensor values = context.Output(1, DataTypeOf(type), {rows, table->options().dim});
    if (type == ValueType::kString) {
      StoreStrings(batch.string_values, values);
    } else if (rows > 0) {
      std::memcpy(values.data<void>(), batch.values.data(), batch.values.size());
    }
    const bool has_metadata = table->options().metadata;
    auto* metadata =
        context.Output(2, TF_INT64, {rows, has_metadata ? 2 : 0}).template data<int64_t>();
    for (const RowMetadata& each : batch.metadata) {
      *metadata++ = each.time;
      *metadata++ = each.count;
    }
    // Positions are hashes, which may be any number: the last one is never a start.
    *context.Output(3, TF_INT64, {}).template data<int64_t>() =
        cursor.done ? -1 : static_cast<int64_t>(cursor.position);
  });
}

void Snapshot(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    Exporter exporter(context, UseTablesOfOneRule(context));
    exporter.Run({.values = true, .slots_and_metadata = true, .scores = true});
    const TableUse& table = exporter.first();
    StoreStrings({TextOf(table->options().rule)}, context.Output(5, TF_STRING, {1}));
    auto* epoch = context.Output(6, TF_INT64, {2}).data<int64_t>();
    epoch[0] = table->epoch();
    epoch[1] = table.named().steps;
  });
}

void ExportScores(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    Exporter exporter(context, UseTables(context, 0));
    RequireBounded(*exporter.first());
    exporter.Run({.values = true, .scores = true});
  });
}

void ExportKeysAndScores(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const int64_t split_size = *context.Input(context.inputs() - 1).data<const int64_t>();
    if (split_size < 1) {
      InvalidArgument("expected a split_size of 1 or more, received " + std::to_string(split_size));
    }
    Exporter exporter(context, UseTables(context, 1));
    RequireBounded(*exporter.first());
    exporter.Run({.scores = true}, static_cast<size_t>(split_size));
  });
}

}  // namespace tfra::tf
