// Tensors as the engine's batches, and back. Numbers are used where they are; only int32 keys and
// strings are converted.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "runtime/op_context.h"
#include "runtime/registry.h"
#include "tfra/table.h"

namespace tfra::tf {

// The table that a resource handle names. Throws if there is none.
std::shared_ptr<TrainedTable> FindTable(const OpContext& context, int input,
                                        const char* name = "table");
inline TableUse UseTable(const OpContext& context, int input, const char* name = "table") {
  return TableUse(FindTable(context, input, name));
}

// Throws unless rows of the two tables fit into the same arrays: types, dim, and, where asked for,
// whether there are metadata and scores.
void RequireAlike(const TableUse& first, const TableUse& table, bool metadata, bool scores);

// The keys of one call.
class Keys {
 public:
  // Throws if their type is not the table's.
  Keys(const TrainedTable& table, Tensor tensor);
  // Of no table. REQUIRES: keys of a type that tables have.
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

// The shape of a row for each key: keys.shape + row.
Dims RowsOf(const Keys& keys, const Dims& row);

// Rows of values, or one row. `name` is the op's name of the input. Throws if their type is not the
// table's.
class Values {
 public:
  Values(const TrainedTable& table, Tensor tensor, const char* name);

  const Dims& dims() const { return dims_; }
  const void* data() const { return views_.empty() ? tensor_.data<void>() : views_.data(); }
  // Throws unless this is one row.
  void RequireOneRow() const;
  // Throws unless this is a row for each key: keys.shape + [dim], or keys.shape for scalars.
  void RequireRowPerKey(const Keys& keys) const;
  // What missing keys get: this row if it is one, else the row of each key. Throws if it is
  // neither. REQUIRES: *this outlives the result.
  Defaults AsDefaults(const Keys& keys) const;

 private:
  Dims row_dims_;
  const char* name_;
  Tensor tensor_;
  Dims dims_;
  std::vector<std::string_view> views_;
};

// The scores of keys that a writing op may be given, as its last input: int64, from 0 on. Of a
// table that counts how often keys come, they are the numbers of times.
class KeyScores {
 public:
  // Throws unless there is a score for each key and the table's strategy has a use for them.
  KeyScores(const OpContext& context, int input, const TableUse& table, const Keys& keys);

  const Scores& get() const { return scores_; }

 private:
  Tensor tensor_;
  Scores scores_;
};

// TensorFlow's scores are int64: those beyond stay at the largest one.
inline void ClampScores(uint64_t* scores, size_t count) {
  std::transform(scores, scores + count, scores,
                 [](uint64_t score) { return std::min<uint64_t>(score, INT64_MAX); });
}

inline bool IsBounded(const Table& table) { return table.spec().bound.max_capacity > 0; }
// Throws unless keys of the table have scores.
void RequireBounded(const Table& table);
// Throws if one of the scores, int64, is negative.
void RequireNoNegative(const Tensor& scores);
// Throws if an input that may be left out, the last one and a list, has more than one tensor.
void RequireOneAtMost(const OpContext& context, int input, const char* name);

// Writes the strings to a fresh tensor of strings.
void StoreStrings(const std::vector<std::string>& strings, const Tensor& tensor);
void StoreStrings(const StringColumn& strings, const Tensor& tensor);

// Fills a fresh tensor with the values that call(values), of the engine, writes. Throws if that
// fails.
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
