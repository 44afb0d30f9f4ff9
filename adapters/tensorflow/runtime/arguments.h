// Converts tensors to the engine's batches, and back. Batches of numbers point to the memory of the
// tensor. Only int32 keys and strings are converted.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "runtime/op_context.h"
#include "runtime/registry.h"
#include "tfra/table.h"

namespace tfra::tf {

// Returns the table that a resource handle names. Throws if there is no such table.
std::shared_ptr<TrainedTable> FindTable(const OpContext& context, int input,
                                        const char* name = "table");
// Like FindTable; the rows of the table keep their slots until the result is destroyed.
inline TableUse UseTable(const OpContext& context, int input, const char* name = "table") {
  return TableUse(FindTable(context, input, name));
}

// Throws unless rows of the two tables fit into the same arrays: their types and dim must be equal.
// With `scores`, both tables or none must have scores.
void RequireAlike(const TableUse& first, const TableUse& table, bool scores);

// The keys of one call.
class Keys {
 public:
  // Throws unless the tensor has the key type of the table.
  Keys(const TrainedTable& table, Tensor tensor);
  // For ops without a table. REQUIRES: the tensor is int32, int64 or string.
  explicit Keys(Tensor tensor);

  const Tensor& tensor() const { return tensor_; }
  const Dims& dims() const { return dims_; }
  size_t size() const { return batch_.size; }
  const KeyBatch& batch() const { return batch_; }

 private:
  Tensor tensor_;
  Dims dims_;
  std::vector<int64_t> widened_;
  std::vector<std::string_view> views_;
  KeyBatch batch_;
};

// Returns keys.shape + row: the shape of one row for each key.
Dims RowsOf(const Keys& keys, const Dims& row);

// One row of values, or a row for each key.
class Values {
 public:
  // `name` is the name of the input in ops.cc. Throws unless the tensor has the value type of the
  // table.
  Values(const TrainedTable& table, Tensor tensor, const char* name);

  const Dims& dims() const { return dims_; }
  const void* data() const { return views_.empty() ? tensor_.data<void>() : views_.data(); }
  // Throws unless the shape is that of one row.
  void RequireOneRow() const;
  // Throws unless the shape is that of a row for each key: keys.shape + [dim], or keys.shape for a
  // table of scalars.
  void RequireRowPerKey(const Keys& keys) const;
  // Returns these values as the rows that missing keys get: one row for all, or a row for each key.
  // Throws if the shape is neither. REQUIRES: *this outlives the result.
  Defaults AsDefaults(const Keys& keys) const;

 private:
  Dims row_dims_;
  const char* name_;
  Tensor tensor_;
  Dims dims_;
  std::vector<std::string_view> views_;
};

// The scores of the keys of a writing op: its last input, which is optional; int64, 0 or more. If
// the table counts how often keys occur (LFU), each score is a number of occurrences.
class KeyScores {
 public:
  // Throws if the input is given, but does not have one score for each key, or the strategy of the
  // table makes its own scores.
  KeyScores(const OpContext& context, int input, const TableUse& table, const Keys& keys);

  const Scores& get() const { return scores_; }

 private:
  Tensor tensor_;
  Scores scores_;
};

// Replaces scores above INT64_MAX by INT64_MAX: TensorFlow shows scores as int64.
inline void ClampScores(uint64_t* scores, size_t count) {
  std::transform(scores, scores + count, scores,
                 [](uint64_t score) { return std::min<uint64_t>(score, INT64_MAX); });
}

inline bool IsBounded(const Table& table) { return table.spec().bound.max_capacity > 0; }
// Throws unless the table is bounded, so that its keys have scores.
void RequireBounded(const Table& table);
// Throws if a score is negative. REQUIRES: an int64 tensor.
void RequireNoNegative(const Tensor& scores);
// Throws if an optional input has more than one tensor. An optional input is declared as a list,
// and is the last input of its op.
void RequireOneAtMost(const OpContext& context, int input, const char* name);

// Writes strings to a new tensor of empty strings.
void StoreStrings(const std::vector<std::string>& strings, const Tensor& tensor);
void StoreStrings(const StringColumn& strings, const Tensor& tensor);

// Fills a new tensor by call(memory), which calls the engine with the memory for its results.
// Throws if that call fails.
template <typename Call>
void StoreValues(const Tensor& tensor, Call&& call) {
  if (tensor.type() != TF_STRING) {
    Check(call(tensor.data<void>()));
    return;
  }
  std::vector<std::string> strings(static_cast<size_t>(tensor.elements()));
  Check(call(strings.data()));
  StoreStrings(strings, tensor);
}

}  // namespace tfra::tf
