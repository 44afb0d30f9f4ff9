// Whole tables as tensors. Rows go straight into the result, or a batch at a time, so that an
// export takes no more memory than its result.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "ops/kernels.h"
#include "ops/outputs.h"
#include "runtime/arguments.h"
#include "runtime/content_text.h"
#include "tfra/memory.h"
#include "tfra/unique_keys.h"

namespace tfra::tf {
namespace {

// Memory of TensorFlow's, which on some machines keeps what it had before: then it need not be
// cleared again.
class Buffer {
 public:
  // Keeps what is there.
  void Resize(size_t bytes) {
    bytes = std::max<size_t>(bytes, 1);  // A tensor wants some memory.
    const auto elements = static_cast<int64_t>(bytes);
    Tensor memory(TF_AllocateTensor(TF_INT8, &elements, 1, bytes));
    if (memory.get() == nullptr) throw std::bad_alloc();
    UseHugePages(memory.data<char>(), bytes);
    if (bytes_ > 0) std::memcpy(memory.data<char>(), memory_.data<char>(), std::min(bytes, bytes_));
    memory_ = std::move(memory);
    bytes_ = bytes;
  }

  template <typename T>
  void Write(size_t offset, const std::vector<T>& elements) {
    if (elements.empty()) return;
    std::memcpy(memory_.data<char>() + offset, elements.data(), elements.size() * sizeof(T));
  }
  // The element with this number.
  template <typename T>
  T* at(size_t i) {
    return reinterpret_cast<T*>(memory_.data<char>()) + i;
  }

  // Gives the first bytes up to a tensor.
  Tensor Take(TF_DataType type, const Dims& dims) {
    const size_t bytes = static_cast<size_t>(ElementsIn(dims)) * SizeOfElement(type);
    void* data = memory_.data<void>();
    return Tensor(TF_NewTensor(
        type, dims.data(), static_cast<int>(dims.size()), data, bytes,
        [](void*, size_t, void* memory) { TF_DeleteTensor(static_cast<TF_Tensor*>(memory)); },
        memory_.Release()));
  }

 private:
  Tensor memory_{nullptr};
  size_t bytes_ = 0;
};

// Makes int32 keys of int64 ones, in the same place.
void Narrow(char* keys, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    int64_t wide;
    std::memcpy(&wide, keys + i * sizeof(wide), sizeof(wide));
    const auto key = static_cast<int32_t>(wide);
    std::memcpy(keys + i * sizeof(key), &key, sizeof(key));
  }
}

// What is exported beside the keys.
struct Columns {
  bool each_key_once = false;  // Also of keys that left and came back meanwhile.
  bool values = false;
  bool slots_and_metadata = false;
  bool scores = false;
  bool state = false;
};

constexpr size_t kRowsAtATime = 16384;

class Exporter {
 public:
  Exporter(const OpContext& context, std::vector<TableUse> tables)
      : context_(context), tables_(std::move(tables)) {
    const Table& first = *tables_[0];
    type_ = first.spec().value_type;
    dim_ = first.spec().dim;
    slot_elements_ = first.slot_elements();
  }

  const TableUse& first() const { return tables_[0]; }
  // What the tables know besides their rows: of admission, all; of the rest, the first table.
  const ContentState& state() const { return state_; }

  // Goes through the tables and sets the outputs: the keys and the columns, in their order. Of
  // tables that are not copied as a whole, so many rows at a time are in memory beside them.
  void Run(const Columns& columns, size_t rows_at_a_time = kRowsAtATime) {
    for (const TableUse& table : tables_) {
      RequireAlike(first(), table, columns.scores);
    }
    for (const TableUse& table : tables_) room_ += table->size();
    Resize(room_, columns);
    for (const TableUse& table : tables_) {
      const auto reader = table.NewReader({.state = columns.state, .batch_rows = rows_at_a_time});
      ContentBatch batch;
      do {
        size_t rows;
        Check(reader->NextInto(ArraysFrom(next_, columns), &rows, &batch));
        next_ += rows;
        if (batch.kind == ContentBatch::kState) AddState(batch.state);
        if (batch.kind == ContentBatch::kRows) Add(batch.rows, columns);
      } while (batch.kind != ContentBatch::kEnd);
    }
    if (columns.each_key_once) KeepFirst(columns);
    SetOutputs(static_cast<int64_t>(next_), columns);
  }

 private:
  TF_DataType key_dtype() const { return KeyDtypeOf(tables_[0].trained()); }
  size_t RowBytes() const { return static_cast<size_t>(dim_) * SizeOf(type_); }
  size_t SlotsBytes() const { return slot_elements_ * SizeOf(ComputeType(type_)); }
  // Rows get metadata table by table: it is complete when all have some.
  bool has_metadata() const {
    return std::all_of(tables_.begin(), tables_.end(),
                       [](const TableUse& table) { return table->spec().metadata; });
  }

  // Makes room for so many rows.
  void Resize(size_t rows, const Columns& columns) {
    if (key_dtype() != TF_STRING) keys_.Resize(rows * sizeof(int64_t));
    if (columns.values && type_ != ValueType::kString) values_.Resize(rows * RowBytes());
    if (columns.slots_and_metadata) {
      slots_.Resize(rows * SlotsBytes());
      metadata_.Resize(has_metadata() ? rows * sizeof(RowMetadata) : 0);
    }
    if (columns.scores) scores_.Resize(IsBounded(*first()) ? rows * sizeof(uint64_t) : 0);
  }

  // The memory from a row on. Strings have none.
  RowArrays ArraysFrom(size_t row, const Columns& columns) {
    if (key_dtype() == TF_STRING || type_ == ValueType::kString) return RowArrays();
    RowArrays arrays{.room = room_ - row, .keys = keys_.at<int64_t>(row)};
    if (columns.values) arrays.values = values_.at<std::byte>(row * RowBytes());
    if (columns.slots_and_metadata) {
      arrays.slots = slots_.at<std::byte>(row * SlotsBytes());
      if (has_metadata()) arrays.metadata = metadata_.at<RowMetadata>(row);
    }
    if (columns.scores && IsBounded(*first())) arrays.scores = scores_.at<uint64_t>(row);
    return arrays;
  }

  void AddState(const ContentState& state) {
    state_.admission.Append(state.admission);
    if (state_.epoch) return;
    state_.epoch = state.epoch;
    state_.epoch_steps = state.epoch_steps;
  }

  // Adds a batch. Other threads may have inserted more rows than there is room for.
  void Add(const ExportBatch& batch, const Columns& columns) {
    if (next_ + batch.size > room_) {
      room_ = next_ + batch.size + room_ / 8;
      Resize(room_, columns);
    }
    const size_t row = next_;
    next_ += batch.size;
    keys_.Write(row * sizeof(int64_t), batch.int_keys);
    string_keys_.Append(batch.string_keys);
    if (columns.values) {
      values_.Write(row * RowBytes(), batch.values);
      string_values_.Append(batch.string_values);
    }
    if (columns.slots_and_metadata) {
      slots_.Write(row * SlotsBytes(), batch.slots);
      if (has_metadata()) metadata_.Write(row * sizeof(RowMetadata), batch.metadata);
    }
    if (columns.scores) scores_.Write(row * sizeof(uint64_t), batch.scores);
  }

  // Leaves the first row of each key.
  void KeepFirst(const Columns& columns) {
    const std::vector<std::string_view> views = string_keys_.views();
    const KeyBatch keys = key_dtype() == TF_STRING ? KeyBatch(views.data(), next_)
                                                   : KeyBatch(keys_.at<int64_t>(0), next_);
    size_t duplicate;
    Check(FindDuplicate(keys, &duplicate));
    if (duplicate == next_) return;
    UniqueKeys unique;
    Check(UniqueKeys::Find(keys, &unique));
    const auto keep = [&](auto* rows, size_t row_elements) {
      for (size_t i = 0; i < unique.size(); ++i) {
        const size_t from = unique.first()[i];
        if (from == i) continue;
        std::move(rows + from * row_elements, rows + (from + 1) * row_elements,
                  rows + i * row_elements);
      }
    };
    const auto keep_strings = [&](StringColumn* strings, size_t row_elements) {
      StringColumn kept;
      for (size_t i = 0; i < unique.size(); ++i) {
        for (size_t j = 0; j < row_elements; ++j) {
          kept.Append((*strings)[unique.first()[i] * row_elements + j]);
        }
      }
      *strings = std::move(kept);
    };
    if (key_dtype() == TF_STRING) {
      keep_strings(&string_keys_, 1);
    } else {
      keep(keys_.at<int64_t>(0), 1);
    }
    if (columns.values && type_ == ValueType::kString) {
      keep_strings(&string_values_, static_cast<size_t>(dim_));
    } else if (columns.values) {
      keep(values_.at<std::byte>(0), RowBytes());
    }
    if (columns.slots_and_metadata) {
      keep(slots_.at<std::byte>(0), SlotsBytes());
      if (has_metadata()) keep(metadata_.at<RowMetadata>(0), 1);
    }
    if (columns.scores && IsBounded(*first())) keep(scores_.at<uint64_t>(0), 1);
    next_ = unique.size();
  }

  void SetOutputs(int64_t rows, const Columns& columns) {
    int output = 0;
    if (key_dtype() == TF_STRING) {
      StoreStrings(string_keys_, context_.Output(output++, TF_STRING, {rows}));
    } else {
      if (key_dtype() == TF_INT32) {
        Narrow(keys_.at<char>(0), static_cast<size_t>(rows));
        keys_.Resize(static_cast<size_t>(rows) * sizeof(int32_t));
      }
      context_.SetOutput(output++, keys_.Take(key_dtype(), {rows}));
    }
    if (columns.values && type_ == ValueType::kString) {
      StoreStrings(string_values_, context_.Output(output++, TF_STRING, {rows, dim_}));
    } else if (columns.values) {
      context_.SetOutput(output++, values_.Take(DataTypeOf(type_), {rows, dim_}));
    }
    if (columns.slots_and_metadata) {
      context_.SetOutput(output++, slots_.Take(DataTypeOf(ComputeType(type_)),
                                               {rows, static_cast<int64_t>(slot_elements_)}));
      context_.SetOutput(output++, metadata_.Take(TF_INT32, {rows, has_metadata() ? 2 : 0}));
    }
    if (columns.scores) {
      if (IsBounded(*first())) ClampScores(scores_.at<uint64_t>(0), static_cast<size_t>(rows));
      context_.SetOutput(output, scores_.Take(TF_INT64, {IsBounded(*first()) ? rows : 0}));
    }
  }

  const OpContext& context_;
  std::vector<TableUse> tables_;
  ValueType type_;
  int64_t dim_;
  size_t slot_elements_;
  size_t room_ = 0;  // Rows that there is room for,
  size_t next_ = 0;  // and those that are there.

  Buffer keys_, values_, slots_, metadata_, scores_;
  StringColumn string_keys_, string_values_;
  ContentState state_;
};

// others: inputs after the tables.
std::vector<TableUse> UseTables(const OpContext& context, int others) {
  std::vector<TableUse> tables;
  for (int i = 0; i < context.inputs() - others; ++i) {
    tables.push_back(UseTable(context, i, "tables"));
  }
  return tables;
}

// Uses all tables, once they have the slots of one rule: that of the first table that has a rule.
// Tables without slots, or with those of another rule, are copied.
std::vector<TableUse> UseTablesOfOneRule(const OpContext& context) {
  for (;;) {
    RuleSpec rule;
    {
      std::vector<TableUse> tables = UseTables(context, 0);
      for (const TableUse& table : tables) {
        if (rule.kind == RuleKind::kNone) rule = table->spec().rule;
      }
      const auto fits = [&](const TableUse& table) { return table->spec().rule == rule; };
      if (std::all_of(tables.begin(), tables.end(), fits)) return tables;
    }
    for (int i = 0; i < context.inputs(); ++i) {
      Check(UseTable(context, i, "tables").UseRule(rule));
    }
  }
}

}  // namespace

void Export(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    Exporter(context, UseTables(context, 0)).Run({.values = true});
  });
}

void ExportBatchOfRows(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    // An ExportCursor: position, seed, and whether it is done.
    const Tensor from = context.Input(1);
    RequireShape(from, {3}, "cursor");
    const auto* place = from.data<const int64_t>();
    const int64_t max_rows = context.InputInteger(2, "max_rows", 1);
    ExportCursor cursor{static_cast<uint64_t>(place[0]), static_cast<uint64_t>(place[1]),
                        place[2] != 0};
    ExportBatch batch;
    Check(table->Export(static_cast<size_t>(max_rows), &cursor, &batch));
    const auto rows = static_cast<int64_t>(batch.size);
    SetKeys(context, 0, table.trained(), batch.int_keys, batch.string_keys);
    SetValues(context, 1, table.trained(), batch);
    const bool has_metadata = table->spec().metadata;
    auto* metadata =
        context.Output(2, TF_INT64, {rows, has_metadata ? 2 : 0}).template data<int64_t>();
    for (const RowMetadata& each : batch.metadata) {
      *metadata++ = each.time;
      *metadata++ = each.count;
    }
    auto* next = context.Output(3, TF_INT64, {3}).template data<int64_t>();
    next[0] = static_cast<int64_t>(cursor.position);
    next[1] = static_cast<int64_t>(cursor.seed);
    next[2] = cursor.done;
  });
}

void ExportContent(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    Exporter exporter(context, UseTablesOfOneRule(context));
    exporter.Run({.each_key_once = true,
                  .values = true,
                  .slots_and_metadata = true,
                  .scores = true,
                  .state = true});
    const TableUse& table = exporter.first();
    StoreStrings(std::vector<std::string>{SpecTextOf(table->spec())},
                 context.Output(5, TF_STRING, {1}));
    const ContentState& state = exporter.state();
    auto* epoch = context.Output(6, TF_INT64, {2}).data<int64_t>();
    epoch[0] = *state.epoch;
    epoch[1] = *state.epoch_steps;
    const AdmissionState& admission = state.admission;
    SetKeys(context, 7, table.trained(), admission.int_keys, admission.string_keys);
    const auto waiting = static_cast<int64_t>(admission.seen.size());
    std::copy(admission.seen.begin(), admission.seen.end(),
              context.Output(8, TF_INT32, {waiting, 2}).data<RowMetadata>());
    const auto filter_bytes = static_cast<int64_t>(admission.filter.size());
    std::copy(admission.filter.begin(), admission.filter.end(),
              context.Output(9, TF_INT8, {filter_bytes}).data<std::byte>());
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
    const int64_t split_size = context.InputInteger(context.inputs() - 1, "split_size", 1);
    Exporter exporter(context, UseTables(context, 1));
    RequireBounded(*exporter.first());
    exporter.Run({.scores = true}, static_cast<size_t>(split_size));
  });
}

}  // namespace tfra::tf
