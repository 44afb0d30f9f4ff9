// Lookups that combine the rows of each segment, and sums of the gradients of equal keys.
#include <algorithm>
#include <string>

#include "ops/kernels.h"
#include "runtime/arguments.h"
#include "runtime/attributes.h"
#include "runtime/buffer_pool.h"
#include "tfra/unique_keys.h"

namespace tfra::tf {
namespace {

// The attributes of an op. Each op reads those that it has.
struct PoolingKernel {
  Pooling::Combiner combiner = Pooling::kMean;
  double max_norm = 0;
  bool initial = false;
  TF_DataType result_type = TF_FLOAT;  // Ts

  // Throws unless Ts is the type in which values or gradients of `type` are summed.
  void RequireResultOf(ValueType type) const {
    const TF_DataType expected = DataTypeOf(ComputeType(type));
    if (result_type == expected) return;
    InvalidArgument(std::string("expected Ts to be ") + NameOf(expected) + " for the type " +
                    NameOf(type) + ", received " + NameOf(result_type));
  }
};

Pooling::Combiner CombinerOf(const std::string& name) {
  if (name == "sum") return Pooling::kSum;
  if (name == "mean") return Pooling::kMean;
  if (name == "sqrtn") return Pooling::kSqrtN;
  InvalidArgument("expected the combiner sum, mean or sqrtn, received " + name);
}

// Returns the number of segments. Throws unless the shapes of the row splits and the weights fit to
// `keys` keys.
int64_t SegmentsOf(int64_t keys, const Tensor& splits, const Tensor& weights) {
  const Dims dims = splits.dims();
  RequireRank(dims, 1, "row_splits");
  if (dims[0] == 0) {
    InvalidArgument("expected `row_splits` of at least one element, received shape " +
                    ToString(dims));
  }
  if (weights.elements() > 0) RequireShape(weights, {keys}, "weights");
  return dims[0] - 1;
}

// Converts the row splits and weights of a batch of keys to the engine's Pooling.
class Segments {
 public:
  Segments(const PoolingKernel& kernel, const Keys& keys, Tensor splits, Tensor weights)
      : Segments(kernel, static_cast<int64_t>(keys.size()), std::move(splits), std::move(weights)) {
    RequireRank(keys.dims(), 1, "keys");
  }
  Segments(const PoolingKernel& kernel, int64_t keys, Tensor splits, Tensor weights)
      : splits_(std::move(splits)), weights_(std::move(weights)) {
    const int64_t segments = SegmentsOf(keys, splits_, weights_);
    pooling_.combiner = kernel.combiner;
    pooling_.max_norm = kernel.max_norm;
    pooling_.splits = splits_.data<const int64_t>();
    pooling_.segments = static_cast<size_t>(segments);
    if (weights_.elements() > 0) pooling_.weights = weights_.data<const float>();
    const Status status = CheckPooling(pooling_, static_cast<size_t>(keys));
    if (!status.ok()) InvalidArgument("`row_splits`: " + status.message());
  }

  const Pooling& pooling() const { return pooling_; }
  int64_t size() const { return static_cast<int64_t>(pooling_.segments); }

 private:
  const Tensor splits_, weights_;
  Pooling pooling_;
};

// Copies the distinct keys.
template <typename Key>
void CopyKeys(const UniqueKeys& unique, const Tensor& from, const Tensor& to) {
  const Key* keys = from.data<const Key>();
  Key* out = to.data<Key>();
  for (size_t k = 0; k < unique.size(); ++k) out[k] = keys[unique.first()[k]];
}

// Makes output 0: the distinct keys.
void OutputKeys(const OpContext& context, const UniqueKeys& unique, const Tensor& keys) {
  const Tensor out = LargeOutput(context, 0, keys.type(), {static_cast<int64_t>(unique.size())});
  switch (keys.type()) {
    case TF_STRING: {
      const auto* strings = keys.data<const TString>();
      auto* to = out.data<TString>();
      for (size_t k = 0; k < unique.size(); ++k) to[k].Set(strings[unique.first()[k]].view());
      return;
    }
    case TF_INT32:
      return CopyKeys<int32_t>(unique, keys, out);
    default:
      return CopyKeys<int64_t>(unique, keys, out);
  }
}

// Makes output 1, for the sums of the distinct keys, uninitialized.
Tensor OutputSums(const OpContext& context, const UniqueKeys& unique, ValueType gradient_type,
                  int64_t dim) {
  return LargeOutput(context, 1, DataTypeOf(ComputeType(gradient_type)),
                     {static_cast<int64_t>(unique.size()), dim});
}

}  // namespace

void* NewLookupPooledKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<PoolingKernel>(construction, [&](PoolingKernel& kernel) {
    kernel.combiner = CombinerOf(StringAttribute(construction, "combiner"));
    kernel.max_norm = FloatAttribute(construction, "max_norm");
    kernel.initial = BoolAttribute(construction, "initial");
    kernel.result_type = TypeAttribute(construction, "Ts");
  });
}

void* NewSumGradientsKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<PoolingKernel>(construction, [&](PoolingKernel& kernel) {
    kernel.result_type = TypeAttribute(construction, "Ts");
  });
}

void* NewPooledGradientKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<PoolingKernel>(construction, [&](PoolingKernel& kernel) {
    kernel.combiner = CombinerOf(StringAttribute(construction, "combiner"));
  });
}

void* NewPoolRowsKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<PoolingKernel>(construction, [&](PoolingKernel& kernel) {
    kernel.combiner = CombinerOf(StringAttribute(construction, "combiner"));
    kernel.result_type = TypeAttribute(construction, "Ts");
  });
}

void DeletePoolingKernel(void* kernel) { delete static_cast<PoolingKernel*>(kernel); }

void LookupPooled(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [&](const OpContext& context) {
    const auto& wanted = *static_cast<const PoolingKernel*>(kernel);
    const TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    const Segments segments(wanted, keys, context.Input(2), context.Input(3));
    const Values row(table.trained(), context.Input(4), "row");
    row.RequireOneRow();
    wanted.RequireResultOf(table->spec().value_type);
    Dims dims = {segments.size()};
    dims.insert(dims.end(), row.dims().begin(), row.dims().end());
    const Tensor out = LargeOutput(context, 0, wanted.result_type, dims);
    const Defaults defaults = wanted.initial ? Defaults() : Defaults{Defaults::kOneRow, row.data()};
    Check(table->LookupPooled(keys.batch(), defaults, segments.pooling(), out.data<void>()));
  });
}

void PoolRows(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [&](const OpContext& context) {
    const auto& wanted = *static_cast<const PoolingKernel*>(kernel);
    const Tensor rows = context.Input(0);
    const Dims dims = rows.dims();
    RequireRank(dims, 2, "rows");
    const Segments segments(wanted, dims[0], context.Input(1), context.Input(2));
    const ValueType type = ValueTypeOf(rows.type());
    wanted.RequireResultOf(type);
    const Tensor out = LargeOutput(context, 0, wanted.result_type, {segments.size(), dims[1]});
    Check(Pool(segments.pooling(), rows.data<void>(), static_cast<size_t>(dims[0]), type,
               static_cast<size_t>(dims[1]), out.data<void>()));
  });
}

void TrainablePooled(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    RequireShape(context.Input(0), {}, "shadow");
    const Dims keys = context.Input(1).dims();
    RequireRank(keys, 1, "keys");
    const int64_t segments = SegmentsOf(keys[0], context.Input(2), context.Input(3));
    const Tensor values = context.Input(4);
    const Dims dims = values.dims();
    RequireRank(dims, 2, "values");
    RequireShape(dims, {segments, dims[1]}, "values");
    context.SetOutput(0, values);
  });
}

void SumGradients(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [&](const OpContext& context) {
    const Keys keys(context.Input(0));
    const Tensor gradients = context.Input(1);
    const ValueType type = ValueTypeOf(gradients.type());
    static_cast<const PoolingKernel*>(kernel)->RequireResultOf(type);
    const Dims dims = gradients.dims();
    Dims expected = keys.dims();
    expected.push_back(dims.empty() ? 1 : dims.back());
    RequireShape(dims, expected, "gradients");
    UniqueKeys unique;
    Check(UniqueKeys::Find(keys.batch(), &unique));
    OutputKeys(context, unique, keys.tensor());
    const Tensor sums = OutputSums(context, unique, type, dims.back());
    Check(unique.Sum(gradients.data<void>(), type, static_cast<size_t>(dims.back()), nullptr,
                     nullptr, sums.data<void>()));
  });
}

void PooledGradient(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [&](const OpContext& context) {
    const Keys keys(context.Input(0));
    const Segments segments(*static_cast<const PoolingKernel*>(kernel), keys, context.Input(1),
                            context.Input(2));
    const Tensor gradients = context.Input(3);
    const Dims dims = gradients.dims();
    RequireRank(dims, 2, "gradients");
    RequireShape(dims, {segments.size(), dims[1]}, "gradients");
    UniqueKeys unique;
    Check(UniqueKeys::Find(keys.batch(), &unique));
    OutputKeys(context, unique, keys.tensor());
    const ValueType type = ValueTypeOf(gradients.type());
    const Tensor sums = OutputSums(context, unique, type, dims[1]);
    Check(unique.SumPooled(gradients.data<void>(), type, static_cast<size_t>(dims[1]),
                           segments.pooling(), sums.data<void>()));
  });
}

}  // namespace tfra::tf
