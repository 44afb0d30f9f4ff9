#include "ops/kernels.h"
#include "runtime/arguments.h"
#include "runtime/attributes.h"
#include "runtime/buffer_pool.h"

namespace tfra::tf {

template <Missing kMissing, bool kExists>
void Lookup(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    constexpr const char* kName = kMissing == Missing::kOneRow      ? "default_value"
                                  : kMissing == Missing::kRowPerKey ? "default_values"
                                                                    : "like_row";
    const Values defaults(table.trained(), context.Input(2), kName);

    Defaults given{Defaults::kOneRow, defaults.data()};
    Dims dims = keys.dims();
    if (kMissing == Missing::kRowPerKey && !defaults.IsOneRow()) {
      defaults.RequireRowPerKey(keys);
      given.kind = Defaults::kRowPerKey;
      dims = defaults.dims();
    } else {
      defaults.RequireOneRow();
      if (kMissing == Missing::kInitial) given = Defaults();
      dims.insert(dims.end(), defaults.dims().begin(), defaults.dims().end());
    }
    const Tensor values = LargeOutput(context, 0, DataTypeOf(table->spec().value_type), dims);
    bool* exists = nullptr;
    if constexpr (kExists) exists = context.Output(1, TF_BOOL, keys.dims()).template data<bool>();
    StoreValues(values, [&](void* out) { return table->Lookup(keys.batch(), given, out, exists); });
  });
}

void Insert(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    const Values values(table.trained(), context.Input(2), "values");
    values.RequireRowPerKey(keys);
    const KeyScores scores(context, 3, table, keys);
    Check(table->Assign(keys.batch(), values.data(), nullptr, nullptr, scores.get()));
    table.CountStep();
  });
}

void* NewNewKeysKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<NewKeys>(construction,
                             [&](NewKeys& kernel) { kernel = NewKeysAttribute(construction); });
}

void DeleteNewKeysKernel(void* kernel) { delete static_cast<NewKeys*>(kernel); }

void Accumulate(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    const Values deltas(table.trained(), context.Input(2), "values_or_deltas");
    deltas.RequireRowPerKey(keys);
    const Tensor exists = context.Input(3);
    RequireShape(exists, keys.dims(), "exists");
    const KeyScores scores(context, 4, table, keys);
    Check(table->Accumulate(keys.batch(), deltas.data(), exists.data<const bool>(), scores.get(),
                            *static_cast<const NewKeys*>(kernel)));
  });
}

void Remove(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    size_t removed;
    Check(table->Remove(keys.batch(), &removed));
  });
}

void Clear(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) { Check(UseTable(context, 0)->Clear()); });
}

void Size(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const auto size = static_cast<int64_t>(UseTable(context, 0)->size());
    *context.Output(0, TF_INT64, {}).data<int64_t>() = size;
  });
}

void TableHandle(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const auto handle = static_cast<int64_t>(UseTable(context, 0).trained().handle());
    *context.Output(0, TF_INT64, {}).data<int64_t>() = handle;
  });
}

void CountTables(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    *context.Output(0, TF_INT64, {}).data<int64_t>() = static_cast<int64_t>(Registry::Get().size());
  });
}

template void Lookup<Missing::kOneRow, false>(void*, TF_OpKernelContext*);
template void Lookup<Missing::kOneRow, true>(void*, TF_OpKernelContext*);
template void Lookup<Missing::kRowPerKey, false>(void*, TF_OpKernelContext*);
template void Lookup<Missing::kRowPerKey, true>(void*, TF_OpKernelContext*);
template void Lookup<Missing::kInitial, false>(void*, TF_OpKernelContext*);
template void Lookup<Missing::kInitial, true>(void*, TF_OpKernelContext*);

}  // namespace tfra::tf
