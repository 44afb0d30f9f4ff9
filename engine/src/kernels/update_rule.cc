#include "kernels/update_rule.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <sstream>
#include <string>

#include "tfra/table.h"

namespace tfra {
namespace {

bool IsOneOf(RuleKind kind, std::initializer_list<RuleKind> kinds) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

Status CheckSwitch(const char* name, bool on, RuleKind kind, std::initializer_list<RuleKind> has) {
  if (!on || IsOneOf(kind, has)) return Status::Ok();
  return Status::InvalidArgument(std::string("`") + name + "` is not an option of the rule \"" +
                                 NameOf(kind) + "\"; expected false, received true");
}

Status CheckSlots(const std::vector<SlotSpec>& slots) {
  if (slots.size() > kMaxRuleSlots) {
    return Status::InvalidArgument("expected a rule with at most " + std::to_string(kMaxRuleSlots) +
                                   " slots, received " + std::to_string(slots.size()));
  }
  for (auto slot = slots.begin(); slot != slots.end(); ++slot) {
    if (slot->name.empty() || slot->name.size() > kMaxSlotName) {
      return Status::InvalidArgument("expected names of slots of 1 to " +
                                     std::to_string(kMaxSlotName) + " bytes, received one of " +
                                     std::to_string(slot->name.size()));
    }
    const auto same = [&](const SlotSpec& other) { return other.name == slot->name; };
    if (std::any_of(slots.begin(), slot, same)) {
      return Status::InvalidArgument("expected slots with names of their own, received two of one");
    }
  }
  return Status::Ok();
}

enum class Bounds { kNonNegative, kNonPositive, kUnit, kUnitOpen };

Status CheckNumber(const char* name, double value, Bounds bounds) {
  const char* expected = nullptr;
  bool good = std::isfinite(value);
  switch (bounds) {
    case Bounds::kNonNegative:
      expected = "a finite number >= 0";
      good = good && value >= 0.0;
      break;
    case Bounds::kNonPositive:
      expected = "a finite number <= 0";
      good = good && value <= 0.0;
      break;
    case Bounds::kUnit:
      expected = "a number in [0, 1]";
      good = good && value >= 0.0 && value <= 1.0;
      break;
    case Bounds::kUnitOpen:  // At 1 the bias correction divides by zero.
      expected = "a number in [0, 1)";
      good = good && value >= 0.0 && value < 1.0;
      break;
  }
  if (good) return Status::Ok();
  std::ostringstream message;
  message << "`" << name << "`: expected " << expected << ", received " << value;
  return Status::InvalidArgument(message.str());
}

Status CheckMomentum(const RuleSpec& rule, const UpdateParams& params) {
  TFRA_RETURN_IF_ERROR(CheckNumber("momentum", params.momentum, Bounds::kUnit));
  if (rule.momentum || params.momentum == 0.0) return Status::Ok();
  std::ostringstream message;
  message << "`momentum`: the rows have no momentum slot; expected 0, received " << params.momentum;
  return Status::InvalidArgument(message.str());
}

Status CheckFtrl(const UpdateParams& params) {
  TFRA_RETURN_IF_ERROR(
      CheckNumber("learning_rate_power", params.learning_rate_power, Bounds::kNonPositive));
  TFRA_RETURN_IF_ERROR(CheckNumber("l1", params.l1, Bounds::kNonNegative));
  TFRA_RETURN_IF_ERROR(CheckNumber("l2", params.l2, Bounds::kNonNegative));
  TFRA_RETURN_IF_ERROR(CheckNumber("l2_shrinkage", params.l2_shrinkage, Bounds::kNonNegative));
  TFRA_RETURN_IF_ERROR(CheckNumber("beta", params.beta, Bounds::kNonNegative));
  // Ftrl divides by the learning rate, whose inverse must be a float.
  if (params.learning_rate >= 1e-37) return Status::Ok();
  std::ostringstream message;
  message << "`learning_rate`: the rule \"ftrl\" divides by it; expected a number > 0, received "
          << params.learning_rate;
  return Status::InvalidArgument(message.str());
}

KernelVariant VariantOf(const RuleSpec& rule, const UpdateParams& params) {
  switch (rule.kind) {
    case RuleKind::kNone:  // Excluded by the contract.
    case RuleKind::kCustom:
    case RuleKind::kSgd:
      if (!rule.momentum) return KernelVariant::kSgd;
      return rule.nesterov ? KernelVariant::kSgdNesterov : KernelVariant::kSgdMomentum;
    case RuleKind::kAdagrad:
      return KernelVariant::kAdagrad;
    case RuleKind::kRowwiseAdagrad:
      return KernelVariant::kRowwiseAdagrad;
    case RuleKind::kAdam:
    case RuleKind::kAdamW:  // Adam with another default of weight_decay.
      return rule.amsgrad ? KernelVariant::kAdamAmsgrad : KernelVariant::kAdam;
    case RuleKind::kAdamax:
      return KernelVariant::kAdamax;
    case RuleKind::kNadam:
      return KernelVariant::kNadam;
    case RuleKind::kRmsprop:
      if (rule.centered) {
        return rule.momentum ? KernelVariant::kRmspropCenteredMomentum
                             : KernelVariant::kRmspropCentered;
      }
      return rule.momentum ? KernelVariant::kRmspropMomentum : KernelVariant::kRmsprop;
    case RuleKind::kAdadelta:
      return KernelVariant::kAdadelta;
    case RuleKind::kFtrl:
      return params.learning_rate_power == -0.5 ? KernelVariant::kFtrlSqrt
                                                : KernelVariant::kFtrlPower;
    case RuleKind::kLion:
      return KernelVariant::kLion;
  }
  return KernelVariant::kSgd;
}

// Nadam's momentum schedule, u(s) = beta_1 * (1 - 0.5 * 0.96^s), multiplied over s = 1 ... step.
double NadamProduct(double beta_1, int64_t step) {
  // Beyond a thousand terms 0.96^s is far below the precision of 1.
  const int64_t terms = std::min<int64_t>(step, 1000);
  double product = std::pow(beta_1, static_cast<double>(step));
  double power = 0.96;
  for (int64_t s = 1; s <= terms; ++s, power *= 0.96) product *= 1.0 - 0.5 * power;
  return product;
}

KernelConstants<double> ConstantsOf(const RuleSpec& rule, const UpdateParams& params) {
  const double rate = params.learning_rate;
  const double step = static_cast<double>(params.step);
  const double correction_1 = 1.0 - std::pow(params.beta_1, step);
  const double correction_2 = 1.0 - std::pow(params.beta_2, step);
  KernelConstants<double> c = {};
  c.learning_rate = rate;
  c.weight_decay = params.weight_decay;
  c.momentum = params.momentum;
  c.beta_1 = params.beta_1;
  c.one_minus_beta_1 = 1.0 - params.beta_1;
  c.beta_2 = params.beta_2;
  c.one_minus_beta_2 = 1.0 - params.beta_2;
  c.rho = params.rho;
  c.one_minus_rho = 1.0 - params.rho;
  c.epsilon = params.epsilon;
  c.clipnorm = params.clipnorm;
  c.clipvalue = params.clipvalue;
  switch (rule.kind) {
    case RuleKind::kAdam:
    case RuleKind::kAdamW:
      c.step_size = rate * std::sqrt(correction_2) / correction_1;
      break;
    case RuleKind::kAdamax:
      c.step_size = rate / correction_1;
      break;
    case RuleKind::kNadam: {
      const double u = params.beta_1 * (1.0 - 0.5 * std::pow(0.96, step));
      const double next_u = params.beta_1 * (1.0 - 0.5 * std::pow(0.96, step + 1.0));
      const double product = NadamProduct(params.beta_1, params.step);
      c.nadam_m = rate * next_u / (1.0 - product * next_u);
      c.nadam_g = rate * (1.0 - u) / (1.0 - product);
      c.nadam_v = 1.0 / correction_2;
      break;
    }
    case RuleKind::kFtrl:
      c.inverse_learning_rate = 1.0 / rate;
      c.accumulator_power = -params.learning_rate_power;
      c.l1 = params.l1;
      c.two_l2 = 2.0 * (params.l2 + params.beta / (2.0 * rate));
      c.two_l2_shrinkage = 2.0 * params.l2_shrinkage;
      break;
    default:
      break;
  }
  return c;
}

KernelConstants<float> Narrow(const KernelConstants<double>& wide) {
  // Both types are arrays of the same numbers, so no field has to be named again.
  constexpr size_t kCount = sizeof(wide) / sizeof(double);
  static_assert(sizeof(KernelConstants<float>) == kCount * sizeof(float));
  const auto numbers = std::bit_cast<std::array<double, kCount>>(wide);
  std::array<float, kCount> narrow;
  std::transform(numbers.begin(), numbers.end(), narrow.begin(),
                 [](double x) { return static_cast<float>(x); });
  return std::bit_cast<KernelConstants<float>>(narrow);
}

}  // namespace

std::vector<SlotSpec> SlotLayout(const RuleSpec& rule) {
  std::vector<SlotSpec> slots;
  const auto add = [&slots](const char* name, double initial = 0.0, bool scalar = false) {
    slots.push_back({name, scalar, initial});
  };
  switch (rule.kind) {
    case RuleKind::kNone:
      break;
    case RuleKind::kSgd:
      if (rule.momentum) add("momentum");
      break;
    case RuleKind::kAdagrad:
      add("accumulator", rule.initial_accumulator);
      break;
    case RuleKind::kRowwiseAdagrad:
      add("accumulator", rule.initial_accumulator, /*scalar=*/true);
      break;
    case RuleKind::kAdam:
    case RuleKind::kAdamW:
      add("momentum");
      add("velocity");
      if (rule.amsgrad) add("velocity_hat");
      break;
    case RuleKind::kAdamax:
      add("momentum");
      add("norm");
      break;
    case RuleKind::kNadam:
      add("momentum");
      add("velocity");
      break;
    case RuleKind::kRmsprop:
      add("velocity");
      if (rule.momentum) add("momentum");
      if (rule.centered) add("average_gradient");
      break;
    case RuleKind::kAdadelta:
      add("accumulated_grad");
      add("accumulated_delta_var");
      break;
    case RuleKind::kFtrl:
      add("accumulator", rule.initial_accumulator);
      add("linear");
      break;
    case RuleKind::kLion:
      add("momentum");
      break;
    case RuleKind::kCustom:
      return rule.slots;
  }
  return slots;
}

Status ValidateRule(const RuleSpec& rule, ValueType value_type) {
  using enum RuleKind;
  if (rule.kind != kNone && !IsFloating(value_type)) {
    return Status::WrongType(std::string("the rule \"") + NameOf(rule.kind) +
                             "\" needs floating values; expected float32, float16, bfloat16 or "
                             "float64, received " +
                             NameOf(value_type));
  }
  TFRA_RETURN_IF_ERROR(CheckSwitch("momentum", rule.momentum, rule.kind, {kSgd, kRmsprop}));
  TFRA_RETURN_IF_ERROR(CheckSwitch("nesterov", rule.nesterov, rule.kind, {kSgd}));
  TFRA_RETURN_IF_ERROR(CheckSwitch("amsgrad", rule.amsgrad, rule.kind, {kAdam, kAdamW}));
  TFRA_RETURN_IF_ERROR(CheckSwitch("centered", rule.centered, rule.kind, {kRmsprop}));
  if (!rule.slots.empty() && rule.kind != kCustom) {
    return Status::InvalidArgument(std::string("the rule \"") + NameOf(rule.kind) +
                                   "\" has slots of its own; expected no others, received " +
                                   std::to_string(rule.slots.size()));
  }
  if (rule.nesterov && !rule.momentum) {
    return Status::InvalidArgument(
        "`nesterov` needs momentum; expected momentum true, received false");
  }
  if (IsOneOf(rule.kind, {kAdagrad, kRowwiseAdagrad, kFtrl})) {
    TFRA_RETURN_IF_ERROR(
        CheckNumber("initial_accumulator", rule.initial_accumulator, Bounds::kNonNegative));
  }
  return CheckSlots(rule.slots);
}

Status CheckRule(const RuleSpec& rule, ValueType value_type, int64_t dim, size_t* slot_elements) {
  TFRA_RETURN_IF_ERROR(ValidateRule(rule, value_type));
  *slot_elements = 0;
  for (const SlotSpec& slot : SlotLayout(rule)) {
    *slot_elements += slot.scalar ? 1 : static_cast<size_t>(dim);
  }
  return Status::Ok();
}

Status ValidateParams(const RuleSpec& rule, const UpdateParams& params) {
  using enum RuleKind;
  if (params.step < 1) {
    return Status::InvalidArgument("`step` counts from 1; expected >= 1, received " +
                                   std::to_string(params.step));
  }
  TFRA_RETURN_IF_ERROR(CheckNumber("learning_rate", params.learning_rate, Bounds::kNonNegative));
  TFRA_RETURN_IF_ERROR(CheckNumber("weight_decay", params.weight_decay, Bounds::kNonNegative));
  TFRA_RETURN_IF_ERROR(CheckNumber("clipnorm", params.clipnorm, Bounds::kNonNegative));
  TFRA_RETURN_IF_ERROR(CheckNumber("clipvalue", params.clipvalue, Bounds::kNonNegative));
  if (params.clipnorm > 0.0 && params.clipvalue > 0.0) {
    std::ostringstream message;
    message << "expected only one of `clipnorm` and `clipvalue`, received clipnorm="
            << params.clipnorm << ", clipvalue=" << params.clipvalue;
    return Status::InvalidArgument(message.str());
  }
  if (IsOneOf(rule.kind, {kSgd, kRmsprop})) TFRA_RETURN_IF_ERROR(CheckMomentum(rule, params));
  if (IsOneOf(rule.kind, {kAdam, kAdamW, kAdamax, kNadam})) {
    TFRA_RETURN_IF_ERROR(CheckNumber("beta_1", params.beta_1, Bounds::kUnitOpen));
    TFRA_RETURN_IF_ERROR(CheckNumber("beta_2", params.beta_2, Bounds::kUnitOpen));
  }
  if (rule.kind == kLion) {
    TFRA_RETURN_IF_ERROR(CheckNumber("beta_1", params.beta_1, Bounds::kUnit));
    TFRA_RETURN_IF_ERROR(CheckNumber("beta_2", params.beta_2, Bounds::kUnit));
  }
  if (IsOneOf(rule.kind, {kRmsprop, kAdadelta})) {
    TFRA_RETURN_IF_ERROR(CheckNumber("rho", params.rho, Bounds::kUnit));
  }
  if (!IsOneOf(rule.kind, {kNone, kSgd, kFtrl, kLion})) {
    TFRA_RETURN_IF_ERROR(CheckNumber("epsilon", params.epsilon, Bounds::kNonNegative));
  }
  if (rule.kind == kFtrl) TFRA_RETURN_IF_ERROR(CheckFtrl(params));
  return Status::Ok();
}

Status CheckStep(const RuleSpec& rule, const UpdateParams& params, ValueType value_type,
                 ValueType gradient_type) {
  if (rule.kind == RuleKind::kNone || rule.kind == RuleKind::kCustom) {
    return Status::InvalidArgument(
        "applying gradients needs a table with an update rule of the engine, received one " +
        std::string(rule.kind == RuleKind::kNone ? "without" : "with a rule of its own"));
  }
  TFRA_RETURN_IF_ERROR(ValidateRule(rule, value_type));
  TFRA_RETURN_IF_ERROR(ValidateParams(rule, params));
  const ValueType compute = ComputeType(value_type);
  if (gradient_type == value_type || gradient_type == compute) return Status::Ok();
  return Status::WrongType(std::string("expected gradients of type ") + NameOf(value_type) +
                           " or " + NameOf(compute) + ", received " + NameOf(gradient_type));
}

RowUpdater::RowUpdater(const RuleSpec& rule, const UpdateParams& params, ValueType value_type,
                       size_t dim, const KernelTable& kernels)
    : dim_(dim) {
  const TypeKernels& of_type = kernels.For(value_type);
  update_ = of_type.update[static_cast<size_t>(VariantOf(rule, params))];
  if (params.clipnorm > 0.0) {
    clip_ = of_type.clip_by_norm;
  } else if (params.clipvalue > 0.0) {
    clip_ = of_type.clip_by_value;
  }
  constants_.wide = ConstantsOf(rule, params);
  constants_.narrow = Narrow(constants_.wide);
}

}  // namespace tfra
