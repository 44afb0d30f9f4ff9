#include "runtime/arguments.h"

#include <string>

namespace tfra::tf {
namespace {

std::vector<std::string_view> ViewsOf(const Tensor& tensor) {
  const auto* strings = tensor.data<const TString>();
  std::vector<std::string_view> views(static_cast<size_t>(tensor.elements()));
  for (size_t i = 0; i < views.size(); ++i) views[i] = strings[i].view();
  return views;
}

}  // namespace

std::shared_ptr<TrainedTable> FindTable(const OpContext& context, int input, const char* name) {
  std::shared_ptr<TrainedTable> table = Registry::Get().Find(context.Resource(input, name));
  if (table == nullptr) {
    throw OpError(TF_FAILED_PRECONDITION,
                  "the table was not created in this process, or is gone. In a graph, the ops of "
                  "the table object create it; a handle alone does not.");
  }
  return table;
}

void RequireAlike(const TableUse& first, const TableUse& table, bool scores) {
  const TableSpec &expected = first->spec(), &spec = table->spec();
  if (KeyDtypeOf(table.trained()) == KeyDtypeOf(first.trained()) &&
      spec.value_type == expected.value_type && spec.dim == expected.dim &&
      (!scores || IsBounded(*table) == IsBounded(*first))) {
    return;
  }
  InvalidArgument(
      "expected `tables` of the same types and dim, all or none with scores. "
      "Received one of dim " +
      std::to_string(expected.dim) + " and " + NameOf(expected.value_type) +
      " values, and one of dim " + std::to_string(spec.dim) + " and " + NameOf(spec.value_type) +
      " values");
}

Keys::Keys(const TrainedTable& table, Tensor tensor) : Keys(std::move(tensor)) {
  RequireType(tensor_.type(), KeyDtypeOf(table), "keys");
}

Keys::Keys(Tensor tensor)
    : tensor_(std::move(tensor)),
      dims_(tensor_.dims()),
      batch_(static_cast<const int64_t*>(nullptr), 0) {
  const auto n = static_cast<size_t>(ElementsIn(dims_));
  switch (tensor_.type()) {
    case TF_INT64:
      batch_ = KeyBatch(tensor_.data<const int64_t>(), n);
      break;
    case TF_INT32: {
      const auto* narrow = tensor_.data<const int32_t>();
      widened_.assign(narrow, narrow + n);
      batch_ = KeyBatch(widened_.data(), n);
      break;
    }
    default:
      views_ = ViewsOf(tensor_);
      batch_ = KeyBatch(views_.data(), n);
  }
}

Dims RowsOf(const Keys& keys, const Dims& row) {
  Dims dims = keys.dims();
  dims.insert(dims.end(), row.begin(), row.end());
  return dims;
}

Values::Values(const TrainedTable& table, Tensor tensor, const char* name)
    : row_dims_(table.is_scalar() ? Dims() : Dims{table.dim()}),
      name_(name),
      tensor_(std::move(tensor)),
      dims_(tensor_.dims()) {
  RequireType(tensor_.type(), DataTypeOf(table.value_type()), name);
  if (tensor_.type() == TF_STRING) views_ = ViewsOf(tensor_);
}

void Values::RequireOneRow() const { RequireShape(dims_, row_dims_, name_); }

void Values::RequireRowPerKey(const Keys& keys) const {
  RequireShape(dims_, RowsOf(keys, row_dims_), name_);
}

Defaults Values::AsDefaults(const Keys& keys) const {
  if (dims_ == row_dims_) return {Defaults::kOneRow, data()};
  RequireRowPerKey(keys);
  return {Defaults::kRowPerKey, data()};
}

KeyScores::KeyScores(const OpContext& context, int input, const TableUse& table, const Keys& keys)
    : tensor_(context.inputs() > input ? context.Input(input) : Tensor(nullptr)) {
  if (tensor_.get() == nullptr) return;
  RequireOneAtMost(context, input, "scores");
  RequireShape(tensor_, keys.dims(), "scores");
  RequireNoNegative(tensor_);
  const EvictStrategy strategy = table->spec().bound.strategy;
  const bool counts = strategy == EvictStrategy::kLfu || strategy == EvictStrategy::kEpochLfu;
  if (!counts && strategy != EvictStrategy::kCustomized) {
    InvalidArgument(
        "expected no `scores`: the strategy of the table makes its own. Received scores");
  }
  scores_ = Scores{counts ? Scores::kCounts : Scores::kExact, tensor_.data<const uint64_t>()};
}

void RequireBounded(const Table& table) {
  if (!IsBounded(table)) InvalidArgument("expected a bounded table, received one without scores");
}

void RequireNoNegative(const Tensor& scores) {
  const auto* values = scores.data<const int64_t>();
  for (int64_t i = 0; i < scores.elements(); ++i) {
    if (values[i] < 0) {
      InvalidArgument("expected `scores` that are 0 or more, received " +
                      std::to_string(values[i]));
    }
  }
}

void RequireOneAtMost(const OpContext& context, int input, const char* name) {
  if (context.inputs() <= input + 1) return;
  InvalidArgument(std::string("expected one tensor at most as `") + name + "`, received " +
                  std::to_string(context.inputs() - input));
}

void StoreStrings(const std::vector<std::string>& strings, const Tensor& tensor) {
  auto* out = tensor.data<TString>();
  for (size_t i = 0; i < strings.size(); ++i) out[i].Set(strings[i]);
}

void StoreStrings(const StringColumn& strings, const Tensor& tensor) {
  auto* out = tensor.data<TString>();
  for (size_t i = 0; i < strings.size(); ++i) out[i].Set(strings[i]);
}

}  // namespace tfra::tf
