// One optimizer step on a table: by a rule of the engine, or row by row for rules outside it.
#include "arguments.h"
#include "attributes.h"
#include "kernels.h"
#include "rule_text.h"

namespace tfra::tf {
namespace {

struct RuleKernel {
  RuleSpec rule;
  UpdateParams params;
  std::string optimizer;
  NewKeys new_keys = NewKeys::kAdmit;
};

// step: of the optimizer, from 1; 0 if it does not count.
TableUse UseWithRule(const OpContext& context, const void* kernel, int64_t step = 0) {
  const auto* wanted = static_cast<const RuleKernel*>(kernel);
  return TableUse(FindTable(context, 0),
                  RuleRequest{wanted->rule, step == 1 ? wanted->optimizer : ""});
}

Dims RowDims(const Keys& keys, int64_t row) {
  Dims dims = keys.dims();
  dims.push_back(row);
  return dims;
}

}  // namespace

void* NewLookupRowsKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<RuleKernel>(construction, [&](RuleKernel& kernel) {
    kernel.rule = RuleOf(StringAttribute(construction, "rule"));
    kernel.optimizer = StringAttribute(construction, "optimizer");
  });
}

void* NewWriteRowsKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<RuleKernel>(construction, [&](RuleKernel& kernel) {
    kernel.rule = RuleOf(StringAttribute(construction, "rule"));
    kernel.new_keys = NewKeysAttribute(construction);
  });
}

void* NewApplyKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<RuleKernel>(construction, [&](RuleKernel& kernel) {
    kernel.rule = RuleOf(StringAttribute(construction, "rule"));
    kernel.optimizer = StringAttribute(construction, "optimizer");
    kernel.params = ParamsOf(StringAttribute(construction, "params"));
    kernel.new_keys = NewKeysAttribute(construction);
  });
}

void DeleteRuleKernel(void* kernel) { delete static_cast<RuleKernel*>(kernel); }

void TrainableRows(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) { context.SetOutput(0, context.Input(2)); });
}

void TrainablePooled(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) { context.SetOutput(0, context.Input(4)); });
}

void ApplyGradients(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const auto& step = *static_cast<const RuleKernel*>(kernel);
    UpdateParams params = step.params;
    params.learning_rate = *context.Input(3).data<const double>();
    params.step = *context.Input(4).data<const int64_t>();
    const TableUse table = UseWithRule(context, kernel, params.step);
    const Keys keys(table.named(), context.Input(1));
    const Tensor gradients = context.Input(2);
    RequireShape(gradients, RowDims(keys, table->options().dim), "gradients");
    const KeyScores scores(context, 5, table, keys);
    Check(table->ApplyGradients(keys.batch(), gradients.data<void>(), ValueTypeOf(gradients.type()),
                                params, scores.get(), step.new_keys));
    table.CountStep();
  });
}

void LookupRows(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const int64_t step = *context.Input(3).data<const int64_t>();
    const TableUse table = UseWithRule(context, kernel, step);
    const Keys keys(table.named(), context.Input(1));
    const ValueType type = table->options().value_type;
    const auto slot_elements = static_cast<int64_t>(table->slot_elements());
    const Tensor values = context.Output(0, DataTypeOf(type), RowDims(keys, table->options().dim));
    const Tensor slots =
        context.Output(1, DataTypeOf(ComputeType(type)), RowDims(keys, slot_elements));
    Check(table->LookupRows(keys.batch(), values.data<void>(), slots.data<void>()));
  });
}

template <bool kAdd>
void WriteRows(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const TableUse table = UseWithRule(context, kernel);
    const Keys keys(table.named(), context.Input(1));
    const Values values(table.named(), context.Input(2), "values");
    values.RequireRowPerKey(keys);
    const Tensor slots = context.Input(3);
    RequireShape(slots, RowDims(keys, static_cast<int64_t>(table->slot_elements())), "slots");
    const NewKeys new_keys = static_cast<const RuleKernel*>(kernel)->new_keys;
    const KeyScores scores(context, 4, table, keys);
    if constexpr (kAdd) {
      Check(table->AddToRows(keys.batch(), values.data(), slots.data<void>(), scores.get(),
                             new_keys));
    } else {
      Check(table->Assign(keys.batch(), values.data(), slots.data<void>(), nullptr, scores.get(),
                          new_keys));
    }
    table.CountStep();
  });
}

template void WriteRows<false>(void*, TF_OpKernelContext*);
template void WriteRows<true>(void*, TF_OpKernelContext*);

}  // namespace tfra::tf
