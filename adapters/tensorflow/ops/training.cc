// One optimizer step on a table: by a rule of the engine, or row by row for rules outside it.
#include <algorithm>

#include "ops/kernels.h"
#include "runtime/arguments.h"
#include "runtime/attributes.h"
#include "runtime/rule_text.h"

namespace tfra::tf {
namespace {

struct RuleKernel {
  RuleSpec rule;
  std::string optimizer;  // Only for LookupRows that peek.
  UpdateParams params;
  NewKeys new_keys = NewKeys::kAdmit;
};

// What an optimizer has in a table.
enum class Keeps { kNothing, kSlots, kRows };

struct ClaimKernel {
  std::string optimizer, name, worker;
  std::string table_name;
  Keeps keeps = Keeps::kNothing;
};

// Elements of all slots that one row of the table has with a rule. Throws unless the table can have
// that rule.
int64_t SlotElements(const TableUse& table, const RuleSpec& rule) {
  size_t elements = 0;
  Check(CheckRule(rule, table->spec().value_type, table->spec().dim, &elements));
  return static_cast<int64_t>(elements);
}

// Of a table that must have the slots of an optimizer: it is only looked at.
TableUse UseOfOptimizer(const OpContext& context, const void* kernel) {
  TableUse table(FindTable(context, 0));
  const auto& peek = *static_cast<const RuleKernel*>(kernel);
  const std::lock_guard lock(table.named().owner_mutex);
  const auto& owners = table.named().owner.optimizers;
  const bool is_other = !owners.empty() && std::none_of(owners.begin(), owners.end(), [&](auto& o) {
    return o.second == peek.optimizer;
  });
  if (is_other || table->spec().rule != peek.rule || table.named().slots_start_anew) {
    throw OpError(
        TF_FAILED_PRECONDITION,
        "a table has the slots of one optimizer, from its first step on. Expected those of '" +
            peek.optimizer + "', rule '" + TextOf(peek.rule) +
            "'. Received a table with those of '" +
            (owners.empty() ? "nobody" : owners.begin()->second) + "', rule '" +
            TextOf(table->spec().rule) + "'.");
  }
  return table;
}

Dims RowDims(const Keys& keys, int64_t row) {
  Dims dims = keys.dims();
  dims.push_back(row);
  return dims;
}

}  // namespace

void* NewClaimKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<ClaimKernel>(construction, [&](ClaimKernel& kernel) {
    kernel.optimizer = StringAttribute(construction, "optimizer");
    kernel.name = StringAttribute(construction, "optimizer_name");
    kernel.worker = StringAttribute(construction, "worker");
    kernel.table_name = StringAttribute(construction, "table_name");
    const std::string keeps = StringAttribute(construction, "keeps");
    if (keeps == "slots") kernel.keeps = Keeps::kSlots;
    if (keeps == "rows") kernel.keeps = Keeps::kRows;
  });
}

void DeleteClaimKernel(void* kernel) { delete static_cast<ClaimKernel*>(kernel); }

void Claim(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const auto& claim = *static_cast<const ClaimKernel*>(kernel);
    const auto step = context.InputScalar<int64_t>(1, "step");
    const TableUse table = UseTable(context, 0);
    const std::lock_guard lock(table.named().owner_mutex);
    Owner& owner = table.named().owner;
    const auto mine = owner.optimizers.find(claim.worker);
    if (mine != owner.optimizers.end() && mine->second == claim.optimizer) return;
    const bool is_taken = owner.is_known(), is_former = owner.former.count(claim.optimizer) != 0;
    if (is_taken && mine == owner.optimizers.end() && owner.name == claim.name && !is_former) {
      // Another worker of the same program.
      owner.optimizers[claim.worker] = claim.optimizer;
      return;
    }
    if (is_taken && is_former && step != 1) {
      throw OpError(TF_FAILED_PRECONDITION,
                    "a table has the slots of one optimizer. Expected a step of '" +
                        owner.optimizers.begin()->second + "', which trains the table '" +
                        claim.table_name +
                        "' now, or the first step of a new optimizer. Received a step of '" +
                        claim.optimizer + "', which trained it before that one took its place.");
    }
    // Where neither keeps anything, they may take turns.
    if (is_taken && (claim.keeps != Keeps::kNothing || table->slot_elements() > 0)) {
      owner.Retire();
    }
    owner.former.erase(claim.optimizer);
    owner.name = claim.name;
    owner.optimizers = {{claim.worker, claim.optimizer}};
    // Without a number, a step goes on with what was restored, but not with what another left.
    if (step > 1 || (step == 0 && !is_taken)) return;
    if (claim.keeps == Keeps::kRows) {
      Check(table->Clear());
    } else if (table->slot_elements() > 0) {
      table.named().slots_start_anew = true;
    }
  });
}

void* NewLookupRowsKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<RuleKernel>(construction, [&](RuleKernel& kernel) {
    kernel.rule = RuleOf(StringAttribute(construction, "rule"));
  });
}

void* NewPeekRowsKernel(TF_OpKernelConstruction* construction) {
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
    kernel.params = ParamsOf(StringAttribute(construction, "params"));
    kernel.new_keys = NewKeysAttribute(construction);
  });
}

void DeleteRuleKernel(void* kernel) { delete static_cast<RuleKernel*>(kernel); }

void TrainableRows(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    RequireShape(context.Input(0), {}, "stand_in");
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
    const Keys keys(table.named(), context.Input(1));
    const Tensor gradients = context.Input(2);
    RequireShape(gradients, RowDims(keys, table->spec().dim), "gradients");
    const KeyScores scores(context, 5, table, keys);
    Check(CheckStep(step.rule, params, table->spec().value_type, ValueTypeOf(gradients.type())));
    table.TakeRule(step.rule);
    Check(table->ApplyGradients(keys.batch(), gradients.data<void>(), ValueTypeOf(gradients.type()),
                                params, scores.get(), step.new_keys));
    table.CountStep();
  });
}

template <bool kPeek>
void LookupRows(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const RuleSpec& rule = static_cast<const RuleKernel*>(kernel)->rule;
    TableUse table = kPeek ? UseOfOptimizer(context, kernel) : UseTable(context, 0);
    const Keys keys(table.named(), context.Input(1));
    Values(table.named(), context.Input(2), "like_row").RequireOneRow();
    const ValueType type = table->spec().value_type;
    const Tensor values = context.Output(0, DataTypeOf(type), RowDims(keys, table->spec().dim));
    const Tensor slots =
        context.Output(1, DataTypeOf(ComputeType(type)), RowDims(keys, SlotElements(table, rule)));
    if (!kPeek) table.TakeRule(rule);
    Check(table->LookupRows(keys.batch(), values.data<void>(), slots.data<void>()));
  });
}

template void LookupRows<false>(void*, TF_OpKernelContext*);
template void LookupRows<true>(void*, TF_OpKernelContext*);

template <bool kAdd>
void WriteRows(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [kernel](const OpContext& context) {
    const RuleSpec& rule = static_cast<const RuleKernel*>(kernel)->rule;
    TableUse table = UseTable(context, 0);
    const Keys keys(table.named(), context.Input(1));
    const Values values(table.named(), context.Input(2), "values");
    values.RequireRowPerKey(keys);
    const Tensor slots = context.Input(3);
    RequireType(slots.type(), DataTypeOf(ComputeType(table->spec().value_type)), "slots");
    RequireShape(slots, RowDims(keys, SlotElements(table, rule)), "slots");
    const NewKeys new_keys = static_cast<const RuleKernel*>(kernel)->new_keys;
    const KeyScores scores(context, 4, table, keys);
    table.TakeRule(rule);
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
