// Metadata, restriction, expiry, counters and histograms of a table.
#include <algorithm>
#include <array>
#include <memory>

#include "ops/kernels.h"
#include "runtime/arguments.h"
#include "runtime/attributes.h"

namespace tfra::tf {
namespace {

struct RestrictKernel {
  Ranking ranking;
};

template <size_t kSize>
void SetVector(const OpContext& context, int output, const std::array<uint64_t, kSize>& numbers) {
  const Tensor tensor = context.Output(output, TF_INT64, {static_cast<int64_t>(kSize)});
  std::copy(numbers.begin(), numbers.end(), tensor.data<int64_t>());
}

}  // namespace

void KeepMetadata(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) { Check(FindTable(context, 0)->KeepMetadata()); });
}

void Touch(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    Check(table->upkeep().Touch(keys.batch(), *static_cast<const NewKeys*>(kernel)));
  });
}

void LookupMetadata(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    const std::unique_ptr<RowMetadata[]> metadata(new RowMetadata[keys.size()]);
    auto* time = context.Output(0, TF_INT64, keys.dims()).data<int64_t>();
    auto* count = context.Output(1, TF_INT64, keys.dims()).data<int64_t>();
    auto* exists = context.Output(2, TF_BOOL, keys.dims()).data<bool>();
    Check(table->upkeep().LookupMetadata(keys.batch(), metadata.get(), exists));
    for (size_t i = 0; i < keys.size(); ++i) {
      time[i] = metadata[i].time;
      count[i] = metadata[i].count;
    }
  });
}

void* NewRestrictKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<RestrictKernel>(construction, [&](RestrictKernel& kernel) {
    const bool newest = StringAttribute(construction, "ranking") == "newest";
    kernel.ranking = newest ? Ranking::kNewest : Ranking::kMostFrequent;
  });
}

void DeleteRestrictKernel(void* kernel) { delete static_cast<RestrictKernel*>(kernel); }

void Restrict(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const int64_t keep = context.InputInteger(1, "keep", 0);
    uint64_t evicted;
    Check(UseTable(context, 0)
              ->upkeep()
              .Restrict(static_cast<uint64_t>(keep),
                        static_cast<const RestrictKernel*>(kernel)->ranking, &evicted));
    SetScalar(context, 0, evicted);
  });
}

void Evict(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    size_t evicted;
    Check(table->upkeep().Evict(keys.batch(), &evicted));
    SetScalar(context, 0, evicted);
  });
}

void Shrink(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) { Check(UseTable(context, 0)->Shrink()); });
}

void Expire(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    const auto ttl = context.InputScalar<int64_t>(1, "ttl");
    const int64_t now = table->upkeep().clock();
    ExpiryRule rule;
    if (ttl >= 0) rule.written_before = static_cast<uint32_t>(std::max<int64_t>(0, now - ttl));
    rule.norm_below = context.InputScalar<double>(2, "min_norm");
    rule.norm_writes = static_cast<uint32_t>(context.InputInteger(3, "norm_writes", 0, UINT32_MAX));
    uint64_t expired;
    Check(table->upkeep().Expire(rule, &expired));
    SetScalar(context, 0, expired);
  });
}

void Stats(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableStats stats = UseTable(context, 0)->stats();
    std::array<uint64_t, kStatsFields.size()> figures;
    for (size_t i = 0; i < figures.size(); ++i) figures[i] = stats.*kStatsFields[i].field;
    SetVector(context, 0, figures);
  });
}

void Histograms(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    RowHistograms histograms;
    Check(UseTable(context, 0)->upkeep().Histograms(&histograms));
    SetVector(context, 0, histograms.age);
    SetVector(context, 1, histograms.writes);
    SetVector(context, 2, histograms.norm);
  });
}

void SetClock(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const int64_t now = context.InputInteger(1, "now", 0, UINT32_MAX);
    UseTable(context, 0)->upkeep().SetClock(static_cast<uint32_t>(now));
  });
}

}  // namespace tfra::tf
