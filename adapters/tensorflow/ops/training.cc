// One optimizer step on a table. If the engine has the rule of the optimizer, ApplyGradients takes
// the step. Otherwise LookupRows reads rows, Python updates them, and WriteRows writes them.
#include <algorithm>

#include "ops/kernels.h"
#include "runtime/arguments.h"
#include "runtime/attributes.h"

namespace tfra::tf {
namespace {

struct RuleKernel {
  RuleSpec rule;
  std::string optimizer;  // Only for LookupRows<true>.
  UpdateParams params;
  NewKeys new_keys = NewKeys::kAdmit;
};

struct BindKernel {
  OptimizerName optimizer;
  OptimizerKeeps keeps = OptimizerKeeps::kNothing;
  std::string table_name;
};

// Returns how many slot elements a row of the table has with a rule. Throws unless the table can
// have that rule.
int64_t SlotElements(const TableUse& table, const RuleSpec& rule) {
  size_t elements = 0;
  Check(CheckRule(rule, table->spec().value_type, table->spec().dim, &elements));
  return static_cast<int64_t>(elements);
}

// Returns the table of input 0. Throws unless its rows have the slots of the kernel's optimizer.
TableUse UseOfOptimizer(const OpContext& context, const void* kernel) {
  TableUse table(FindTable(context, 0));
  const auto& peek = *static_cast<const RuleKernel*>(kernel);
  Check(table.RequireBound(peek.optimizer, peek.rule));
  return table;
}

}  // namespace

void* NewBindKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<BindKernel>(construction, [&](BindKernel& kernel) {
    kernel.optimizer.unique = StringAttribute(construction, "optimizer");
    kernel.optimizer.name = StringAttribute(construction, "optimizer_name");
    kernel.optimizer.worker = StringAttribute(construction, "worker");
    kernel.table_name = StringAttribute(construction, "table_name");
    const std::string keeps = StringAttribute(construction, "keeps");
    if (keeps == "slots") kernel.keeps = OptimizerKeeps::kSlots;
    if (keeps == "rows") kernel.keeps = OptimizerKeeps::kRows;
  });
}

void DeleteBindKernel(void* kernel) { delete static_cast<BindKernel*>(kernel); }

void Bind(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const auto& bind = *static_cast<const BindKernel*>(kernel);
    const auto step = context.InputScalar<int64_t>(1, "step");
    Check(UseTable(context, 0).Bind(bind.optimizer, bind.keeps, step, bind.table_name));
  });
}

void* NewLookupRowsKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<RuleKernel>(construction, [&](RuleKernel& kernel) {
    Check(ParseRuleSpec(StringAttribute(construction, "rule"), &kernel.rule));
  });
}

void* NewPeekRowsKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<RuleKernel>(construction, [&](RuleKernel& kernel) {
    Check(ParseRuleSpec(StringAttribute(construction, "rule"), &kernel.rule));
    kernel.optimizer = StringAttribute(construction, "optimizer");
  });
}

void* NewWriteRowsKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<RuleKernel>(construction, [&](RuleKernel& kernel) {
    Check(ParseRuleSpec(StringAttribute(construction, "rule"), &kernel.rule));
    kernel.new_keys = NewKeysAttribute(construction);
  });
}

void* NewApplyKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<RuleKernel>(construction, [&](RuleKernel& kernel) {
    Check(ParseRuleSpec(StringAttribute(construction, "rule"), &kernel.rule));
    Check(ParseUpdateParams(StringAttribute(construction, "params"), &kernel.params));
    kernel.new_keys = NewKeysAttribute(construction);
  });
}

void DeleteRuleKernel(void* kernel) { delete static_cast<RuleKernel*>(kernel); }

void TrainableRows(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    RequireShape(context.Input(0), {}, "shadow");
    const Tensor rows = context.Input(2);
    Dims expected = context.Input(1).dims();
    expected.push_back(rows.dims().empty() ? 1 : rows.dims().back());
    RequireShape(rows, expected, "rows");
    context.SetOutput(0, rows);
  });
}

void ApplyGradients(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const auto& step = *static_cast<const RuleKernel*>(kernel);
    UpdateParams params = step.params;
    params.learning_rate = context.InputScalar<double>(3, "learning_rate");
    params.step = context.InputScalar<int64_t>(4, "step");
    TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    const Tensor gradients = context.Input(2);
    RequireShape(gradients, RowsOf(keys, {table->spec().dim}), "gradients");
    const KeyScores scores(context, 5, table, keys);
    Check(table.ApplyGradients(keys.batch(), gradients.data<void>(), ValueTypeOf(gradients.type()),
                               step.rule, params, true, scores.get(), step.new_keys));
  });
}

template <bool kPeek>
void LookupRows(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const RuleSpec& rule = static_cast<const RuleKernel*>(kernel)->rule;
    TableUse table = kPeek ? UseOfOptimizer(context, kernel) : UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    Values(table.trained(), context.Input(2), "like_row").RequireOneRow();
    const ValueType type = table->spec().value_type;
    const Tensor values = context.Output(0, DataTypeOf(type), RowsOf(keys, {table->spec().dim}));
    const Tensor slots =
        context.Output(1, DataTypeOf(ComputeType(type)), RowsOf(keys, {SlotElements(table, rule)}));
    if (type == ValueType::kString) {
      Check(Status::WrongType("expected values that are numbers"));
    }
    if (kPeek) {
      Check(table->Lookup(keys.batch(), {}, values.data<void>(), nullptr, slots.data<void>()));
    } else {
      Check(table.LookupForStep(keys.batch(), rule, values.data<void>(), slots.data<void>()));
    }
  });
}

template void LookupRows<false>(void*, TF_OpKernelContext*);
template void LookupRows<true>(void*, TF_OpKernelContext*);

template <bool kAdd>
void WriteRows(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const RuleSpec& rule = static_cast<const RuleKernel*>(kernel)->rule;
    TableUse table = UseTable(context, 0);
    const Keys keys(table.trained(), context.Input(1));
    const Values values(table.trained(), context.Input(2), "values");
    values.RequireRowPerKey(keys);
    const Tensor slots = context.Input(3);
    RequireType(slots.type(), DataTypeOf(ComputeType(table->spec().value_type)), "slots");
    RequireShape(slots, RowsOf(keys, {SlotElements(table, rule)}), "slots");
    const NewKeys new_keys = static_cast<const RuleKernel*>(kernel)->new_keys;
    const KeyScores scores(context, 4, table, keys);
    Check(table.BeginStep(rule));
    if constexpr (kAdd) {
      Check(table->training().AddToRows(keys.batch(), values.data(), slots.data<void>(),
                                        scores.get(), new_keys));
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
