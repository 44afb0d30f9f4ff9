// Reads and writes rows: lookup, insert, accumulate, remove, clear and size.
#include <optional>

#include "ops/kernels.h"
#include "runtime/arguments.h"
#include "runtime/attributes.h"
#include "runtime/buffer_pool.h"

namespace tfra::tf {

namespace {

struct LookupKernel {
  bool initial;
  bool with_exists;
};

}  // namespace

void* NewLookupKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<LookupKernel>(construction, [&](LookupKernel& kernel) {
    kernel.initial = BoolAttribute(construction, "initial");
    const int64_t with_exists = IntAttribute(construction, "with_exists");
    RequireRange(with_exists, 0, 1, "with_exists");
    kernel.with_exists = with_exists == 1;
  });
}

void DeleteLookupKernel(void* kernel) { delete static_cast<LookupKernel*>(kernel); }

void Lookup(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const auto& wanted = *static_cast<const LookupKernel*>(kernel);
    const TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    const Values row(table.trained(), context.Input(2), "row");
    row.RequireOneRow();
    Defaults missing = wanted.initial ? Defaults() : Defaults{Defaults::kOneRow, row.data()};
    std::optional<Values> defaults;
    if (context.inputs() > 3) {
      RequireOneAtMost(context, 3, "defaults");
      defaults.emplace(table.trained(), context.Input(3), "defaults");
      missing = defaults->AsDefaults(keys);
    }
    const Tensor values =
        LargeOutput(context, 0, DataTypeOf(table->spec().value_type), RowsOf(keys, row.dims()));
    bool* exists = nullptr;
    if (wanted.with_exists) exists = context.Output(1, TF_BOOL, keys.dims()).data<bool>();
    StoreValues(values,
                [&](void* out) { return table->Lookup(keys.batch(), missing, out, exists); });
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
    Check(table->training().Accumulate(keys.batch(), deltas.data(), exists.data<const bool>(),
                                       scores.get(), *static_cast<const NewKeys*>(kernel)));
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
  RunKernel(op,
            [](const OpContext& context) { SetScalar(context, 0, UseTable(context, 0)->size()); });
}

void TableHandle(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    SetScalar(context, 0, UseTable(context, 0).trained().handle());
  });
}

void CountTables(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) { SetScalar(context, 0, Registry::Get().size()); });
}

}  // namespace tfra::tf
