// Scores of keys, and what only bounded tables do.
#include <algorithm>
#include <cstring>
#include <memory>

#include "ops/kernels.h"
#include "ops/outputs.h"
#include "runtime/arguments.h"
#include "runtime/buffer_pool.h"

namespace tfra::tf {
namespace {

// Scores from input 1 on and, if there is a third input, below that.
ScorePredicate RangeOf(const OpContext& context) {
  const auto low = static_cast<uint64_t>(context.InputInteger(1, "at_least", 0));
  if (context.inputs() < 3) return [low](uint64_t score) { return score >= low; };
  RequireOneAtMost(context, 2, "below");
  const auto high = static_cast<uint64_t>(context.InputInteger(2, "below", 0));
  return [low, high](uint64_t score) { return score >= low && score < high; };
}

// Outputs 0 to 2: keys, values, scores.
void SetRows(const OpContext& context, const TableUse& table, const ExportBatch& batch) {
  const auto rows = static_cast<int64_t>(batch.size);
  SetKeys(context, 0, table.trained(), batch.int_keys, batch.string_keys);
  SetValues(context, 1, table.trained(), batch);
  auto* scores = context.Output(2, TF_INT64, {rows}).data<uint64_t>();
  std::copy(batch.scores.begin(), batch.scores.end(), scores);
  ClampScores(scores, batch.scores.size());
}

}  // namespace

void InsertAndEvict(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    const Values values(table.trained(), context.Input(2), "values");
    values.RequireRowPerKey(keys);
    const KeyScores scores(context, 3, table, keys);
    bool* rejected = context.Output(3, TF_BOOL, keys.dims()).data<bool>();
    ExportBatch evicted;
    Check(table->scores().AssignAndEvict(keys.batch(), values.data(), nullptr, nullptr,
                                         scores.get(), &evicted, rejected));
    table.CountStep();
    SetRows(context, table, evicted);
  });
}

void FindOrInsert(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    const Values rows(table.trained(), context.Input(2), "defaults");
    const bool initial = context.InputScalar<bool>(3, "initial");
    const KeyScores scores(context, 4, table, keys);
    Defaults defaults = rows.AsDefaults(keys);
    const bool is_row = defaults.kind == Defaults::kOneRow;
    if (initial && is_row) defaults = Defaults();
    const Tensor values = LargeOutput(context, 0, DataTypeOf(table->spec().value_type),
                                      is_row ? RowsOf(keys, rows.dims()) : rows.dims());
    bool* exists = context.Output(1, TF_BOOL, keys.dims()).data<bool>();
    StoreValues(values, [&](void* out) {
      return table->training().FindOrInsert(keys.batch(), defaults, out, exists, scores.get());
    });
    table.CountStep();
  });
}

void AssignExisting(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    const Values values(table.trained(), context.Input(2), "values");
    values.RequireRowPerKey(keys);
    const KeyScores scores(context, 3, table, keys);
    Check(table->training().AssignExisting(keys.batch(), values.data(), nullptr, nullptr,
                                           scores.get()));
  });
}

void AssignScores(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    const Tensor scores = context.Input(2);
    RequireShape(scores, keys.dims(), "scores");
    RequireNoNegative(scores);
    Check(table->scores().Assign(keys.batch(), scores.data<const uint64_t>()));
  });
}

void LookupScores(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    auto* scores = context.Output(0, TF_INT64, keys.dims()).data<uint64_t>();
    bool* exists = context.Output(1, TF_BOOL, keys.dims()).data<bool>();
    Check(table->scores().Lookup(keys.batch(), scores, exists));
    ClampScores(scores, keys.size());
  });
}

void Contains(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    bool* exists = context.Output(0, TF_BOOL, keys.dims()).data<bool>();
    Check(table->Contains(keys.batch(), exists));
  });
}

void SizeIf(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    uint64_t count;
    Check(UseTable(context, 0)->scores().CountIf(RangeOf(context), &count));
    SetScalar(context, 0, count);
  });
}

void EraseIf(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    uint64_t count;
    Check(UseTable(context, 0)->scores().RemoveIf(RangeOf(context), &count));
    SetScalar(context, 0, count);
  });
}

void ExportIf(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const TableUse table = UseTable(context, 0);
    ExportBatch batch;
    Check(table->scores().ExportIf(RangeOf(context), &batch));
    SetRows(context, table, batch);
  });
}

void Reserve(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    Check(UseTable(context, 0)->Reserve(context.InputInteger(1, "keys", 0, kMaxKeys)));
  });
}

void SetEpoch(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const int64_t epoch = context.InputInteger(1, "epoch", 0, kMaxEpoch);
    const TableUse table = UseTable(context, 0);
    table->scores().SetEpoch(static_cast<uint32_t>(epoch));
    table.trained().set_epoch_steps(0);
  });
}

void Epoch(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    SetScalar(context, 0, UseTable(context, 0)->scores().epoch());
  });
}

}  // namespace tfra::tf
