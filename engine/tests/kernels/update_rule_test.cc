#include "kernels/update_rule.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/dispatch.h"

namespace tfra {
namespace {

constexpr ValueType kTypes[] = {ValueType::kFloat32, ValueType::kFloat16, ValueType::kBfloat16,
                                ValueType::kFloat64};
constexpr size_t kDims[] = {1, 3, 7, 31, 33, 128};

struct NamedRule {
  std::string name;
  RuleSpec rule;
  UpdateParams params;
};

std::vector<NamedRule> AllRules() {
  std::vector<NamedRule> rules;
  const auto add = [&rules](const char* name, RuleKind kind) -> NamedRule& {
    NamedRule& added = rules.emplace_back();
    added.name = name;
    added.rule.kind = kind;
    added.params.learning_rate = 0.05;
    return added;
  };
  const auto with_momentum = [](NamedRule& rule) -> NamedRule& {
    rule.rule.momentum = true;
    rule.params.momentum = 0.9;
    return rule;
  };
  add("sgd", RuleKind::kSgd);
  with_momentum(add("sgd momentum", RuleKind::kSgd));
  with_momentum(add("sgd nesterov", RuleKind::kSgd)).rule.nesterov = true;
  add("adagrad", RuleKind::kAdagrad);
  add("rowwise adagrad", RuleKind::kRowwiseAdagrad);
  add("adam", RuleKind::kAdam);
  add("adam amsgrad", RuleKind::kAdam).rule.amsgrad = true;
  add("adamw", RuleKind::kAdamW).params.weight_decay = 0.004;
  add("adamax", RuleKind::kAdamax);
  add("nadam", RuleKind::kNadam);
  add("rmsprop", RuleKind::kRmsprop);
  with_momentum(add("rmsprop momentum", RuleKind::kRmsprop));
  add("rmsprop centered", RuleKind::kRmsprop).rule.centered = true;
  with_momentum(add("rmsprop both", RuleKind::kRmsprop)).rule.centered = true;
  // The first steps of Adadelta are about as large as epsilon, which must show in 16 bits.
  add("adadelta", RuleKind::kAdadelta).params.epsilon = 1e-1;
  NamedRule& ftrl = add("ftrl", RuleKind::kFtrl);
  ftrl.params.l1 = 0.01;
  ftrl.params.l2 = 0.1;
  ftrl.params.l2_shrinkage = 0.02;
  ftrl.params.beta = 0.3;
  add("ftrl power", RuleKind::kFtrl).params.learning_rate_power = -0.7;
  add("lion", RuleKind::kLion);
  return rules;
}

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<double>& numbers) {
  std::vector<std::byte> bytes(numbers.size() * sizeof(T));
  for (size_t i = 0; i < numbers.size(); ++i) {
    using Compute = typename ComputeOf<T>::type;
    const T element = static_cast<T>(static_cast<Compute>(numbers[i]));
    std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
  }
  return bytes;
}

std::vector<std::byte> Encode(ValueType type, const std::vector<double>& numbers) {
  return DispatchFloating(
      type, [&](auto* null) { return BytesOf<std::remove_pointer_t<decltype(null)>>(numbers); });
}

std::vector<double> Decode(ValueType type, const std::vector<std::byte>& bytes) {
  return DispatchFloating(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    std::vector<double> numbers(bytes.size() / sizeof(T));
    for (size_t i = 0; i < numbers.size(); ++i) {
      T element;
      std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
      numbers[i] = static_cast<typename ComputeOf<T>::type>(element);
    }
    return numbers;
  });
}

// One row of a table: its value and slots.
struct Row {
  Row(const RuleSpec& rule, ValueType value_type, const std::vector<double>& numbers)
      : type(value_type), value(Encode(value_type, numbers)) {
    std::vector<double> initial;
    for (const SlotSpec& slot : SlotLayout(rule)) {
      initial.insert(initial.end(), slot.scalar ? 1 : numbers.size(), slot.initial);
    }
    slots = Encode(ComputeType(type), initial);
  }

  void Update(const RowUpdater& updater, const std::vector<double>& gradient) {
    const std::vector<std::byte> bytes = Encode(ComputeType(type), gradient);
    std::vector<std::byte> scratch(updater.scratch_elements() * SizeOf(ComputeType(type)));
    updater.Apply(value.data(), slots.data(), bytes.data(), scratch.data());
  }

  double At(size_t i) const { return Value()[i]; }
  std::vector<double> Value() const { return Decode(type, value); }
  std::vector<double> Slots() const { return Decode(ComputeType(type), slots); }

  ValueType type;
  std::vector<std::byte> value, slots;
};

std::vector<double> Normal(size_t n, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<double> numbers(n);
  for (double& number : numbers) number = normal(generator);
  return numbers;
}

bool AllFinite(const std::vector<double>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](double x) { return std::isfinite(x); });
}

std::string SlotNames(const RuleSpec& rule) {
  std::string names;
  for (const SlotSpec& slot : SlotLayout(rule)) names += std::string(slot.name) + " ";
  return names;
}

TEST(LayoutFollowsKeras) {
  std::string all;
  for (const NamedRule& rule : AllRules()) all += rule.name + ": " + SlotNames(rule.rule) + "\n";
  CHECK_EQ(all, std::string("sgd: \n"
                            "sgd momentum: momentum \n"
                            "sgd nesterov: momentum \n"
                            "adagrad: accumulator \n"
                            "rowwise adagrad: accumulator \n"
                            "adam: momentum velocity \n"
                            "adam amsgrad: momentum velocity velocity_hat \n"
                            "adamw: momentum velocity \n"
                            "adamax: momentum norm \n"
                            "nadam: momentum velocity \n"
                            "rmsprop: velocity \n"
                            "rmsprop momentum: velocity momentum \n"
                            "rmsprop centered: velocity average_gradient \n"
                            "rmsprop both: velocity momentum average_gradient \n"
                            "adadelta: accumulated_grad accumulated_delta_var \n"
                            "ftrl: accumulator linear \n"
                            "ftrl power: accumulator linear \n"
                            "lion: momentum \n"));
  CHECK(SlotLayout(RuleSpec{}).empty());

  RuleSpec rule;
  rule.initial_accumulator = 0.25;
  for (RuleKind kind : {RuleKind::kAdagrad, RuleKind::kRowwiseAdagrad, RuleKind::kFtrl}) {
    rule.kind = kind;
    const SlotSpec first = SlotLayout(rule)[0];
    CHECK_EQ(first.initial, 0.25);
    CHECK_EQ(first.scalar, kind == RuleKind::kRowwiseAdagrad);
  }
  const SlotSpec linear = SlotLayout(rule)[1];
  CHECK_EQ(linear.initial, 0.0);
}

TEST(ValidateRuleRefusesWrongTypesAndSwitches) {
  for (const NamedRule& rule : AllRules()) {
    for (ValueType type : kTypes) CHECK_OK(ValidateRule(rule.rule, type));
    for (ValueType type : {ValueType::kInt8, ValueType::kInt32, ValueType::kInt64, ValueType::kBool,
                           ValueType::kString}) {
      const Status status = ValidateRule(rule.rule, type);
      CHECK(status.code() == StatusCode::kWrongType);
      CHECK(status.message().find(std::string("received ") + NameOf(type)) != std::string::npos);
      CHECK_OK(ValidateRule(RuleSpec{}, type));
    }
  }
  const auto refused = [](const RuleSpec& rule) {
    return ValidateRule(rule, ValueType::kFloat32).code() == StatusCode::kInvalidArgument;
  };
  CHECK(refused({.kind = RuleKind::kSgd, .nesterov = true}));
  CHECK(refused({.kind = RuleKind::kAdam, .momentum = true}));
  CHECK(refused({.kind = RuleKind::kRmsprop, .momentum = true, .nesterov = true}));
  CHECK(refused({.kind = RuleKind::kNadam, .amsgrad = true}));
  CHECK(refused({.kind = RuleKind::kSgd, .centered = true}));
  CHECK(refused({.kind = RuleKind::kAdagrad, .initial_accumulator = -0.1}));
  CHECK(refused({.kind = RuleKind::kFtrl, .initial_accumulator = std::nan("")}));
}

TEST(ValidateParamsSaysWhatItReceived) {
  const auto message = [](RuleKind kind, auto&& change) {
    UpdateParams params;
    change(params);
    const Status status = ValidateParams({.kind = kind}, params);
    return status.ok() ? std::string("ok") : status.message();
  };
  for (const NamedRule& rule : AllRules()) CHECK_OK(ValidateParams(rule.rule, rule.params));
  CHECK_EQ(message(RuleKind::kAdam, [](UpdateParams& p) { p.step = 0; }),
           std::string("`step` counts from 1; expected >= 1, received 0"));
  CHECK_EQ(message(RuleKind::kSgd, [](UpdateParams& p) { p.learning_rate = -1; }),
           std::string("`learning_rate`: expected a finite number >= 0, received -1"));
  CHECK_EQ(message(RuleKind::kSgd, [](UpdateParams& p) { p.momentum = 0.5; }),
           std::string("`momentum`: the rows have no momentum slot; expected 0, received 0.5"));
  CHECK_EQ(message(RuleKind::kAdam, [](UpdateParams& p) { p.beta_1 = 1; }),
           std::string("`beta_1`: expected a number in [0, 1), received 1"));
  CHECK_EQ(message(RuleKind::kRmsprop, [](UpdateParams& p) { p.rho = 1.5; }),
           std::string("`rho`: expected a number in [0, 1], received 1.5"));
  CHECK_EQ(message(RuleKind::kAdagrad, [](UpdateParams& p) { p.epsilon = std::nan(""); }),
           std::string("`epsilon`: expected a finite number >= 0, received nan"));
  CHECK_EQ(message(RuleKind::kFtrl, [](UpdateParams& p) { p.learning_rate = 0; }),
           std::string("`learning_rate`: the rule \"ftrl\" divides by it; expected a number > 0, "
                       "received 0"));
  CHECK_EQ(message(RuleKind::kFtrl, [](UpdateParams& p) { p.learning_rate_power = 0.5; }),
           std::string("`learning_rate_power`: expected a finite number <= 0, received 0.5"));
  CHECK_EQ(message(RuleKind::kSgd, [](UpdateParams& p) { p.clipnorm = 1, p.clipvalue = 2; }),
           std::string("expected only one of `clipnorm` and `clipvalue`, received clipnorm=1, "
                       "clipvalue=2"));
  // Hyper-parameters that the rule does not read are not checked.
  CHECK_EQ(message(RuleKind::kSgd, [](UpdateParams& p) { p.beta_1 = 7; }), std::string("ok"));
}

// The row after a few updates; `extra` adds weight decay or clipping.
std::vector<std::byte> Train(NamedRule rule, ValueType type, size_t dim, int extra,
                             const KernelTable& kernels) {
  if (extra == 1) rule.params.weight_decay = 0.03;
  if (extra == 2) rule.params.clipnorm = 0.5;
  if (extra == 3) rule.params.clipvalue = 0.7;
  Row row(rule.rule, type, Normal(dim, 1));
  for (int64_t step = 1; step <= 12; ++step) {
    rule.params.step = step;
    std::vector<double> gradient = Normal(dim, 100 + static_cast<uint64_t>(step));
    if (step % 4 == 0) gradient.assign(dim, 0.0);
    if (step == 7) gradient.assign(dim, 1e-39);
    row.Update(RowUpdater(rule.rule, rule.params, type, dim, kernels), gradient);
  }
  CHECK(AllFinite(row.Value()));
  row.value.insert(row.value.end(), row.slots.begin(), row.slots.end());
  return row.value;
}

TEST(EveryInstructionSetGivesTheSameBits) {
  int compared = 0;
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    const KernelTable* kernels = KernelsFor(isa);
    if (kernels == nullptr) continue;
    for (const NamedRule& rule : AllRules()) {
      for (ValueType type : kTypes) {
        for (size_t dim : kDims) {
          for (int extra = 0; extra < 4; ++extra) {
            const bool same = Train(rule, type, dim, extra, *KernelsFor(Isa::kPortable)) ==
                              Train(rule, type, dim, extra, *kernels);
            if (!same) std::printf("  %s %s dim %zu\n", rule.name.c_str(), NameOf(type), dim);
            CHECK(same);
            ++compared;
          }
        }
      }
    }
  }
  std::printf("  %d settings compared\n", compared);
}

// A row of n equal elements behaves like n rows of one element: no element is skipped or updated
// twice.
TEST(EveryElementIsUpdatedOnce) {
  for (const NamedRule& rule : AllRules()) {
    for (ValueType type : kTypes) {
      for (size_t dim : kDims) {
        Row wide(rule.rule, type, std::vector<double>(dim, 0.75));
        Row narrow(rule.rule, type, {0.75});
        const RowUpdater update_wide(rule.rule, rule.params, type, dim);
        const RowUpdater update_narrow(rule.rule, rule.params, type, 1);
        for (double gradient : {0.5, -0.25, 2.0}) {
          wide.Update(update_wide, std::vector<double>(dim, gradient));
          narrow.Update(update_narrow, {gradient});
        }
        const double expected = narrow.At(0);
        for (double element : wide.Value()) CHECK_EQ(element, expected);
        CHECK(expected != 0.75);
      }
    }
  }
}

TEST(ZeroAndDenormalGradientsStayFinite) {
  for (NamedRule rule : AllRules()) {
    // The worst case: all denominators start at zero.
    rule.rule.initial_accumulator = 0.0;
    rule.params.epsilon = 0.0;
    rule.params.l1 = rule.params.l2 = rule.params.beta = rule.params.l2_shrinkage = 0.0;
    for (double clipnorm : {0.0, 1.0}) {
      rule.params.clipnorm = clipnorm;
      for (double gradient : {0.0, -0.0, 1e-300, 1e-45, -1e-40, 1e-30}) {
        for (ValueType type : kTypes) {
          Row row(rule.rule, type, {1.0, -2.0, 0.0});
          const RowUpdater updater(rule.rule, rule.params, type, 3);
          for (int i = 0; i < 3; ++i) row.Update(updater, {gradient, gradient, gradient});
          CHECK(AllFinite(row.Value()));
          CHECK(AllFinite(row.Slots()));
          if (gradient == 0.0 && rule.params.weight_decay == 0.0) CHECK_EQ(row.At(1), -2.0);
        }
      }
    }
  }
}

TEST(CenteredRmspropSurvivesAConstantGradient) {
  const RuleSpec rule = {.kind = RuleKind::kRmsprop, .centered = true};
  UpdateParams params;
  params.learning_rate = 1e-6;
  Row row(rule, ValueType::kFloat32, {1.0, 1.0});
  const RowUpdater updater(rule, params, ValueType::kFloat32, 2);
  for (int i = 0; i < 1000; ++i) row.Update(updater, {1000.1, 0.1});
  CHECK(AllFinite(row.Value()));
}

TEST(ClipKeepsTheGradientWithinBounds) {
  const RuleSpec sgd = {.kind = RuleKind::kSgd};
  for (ValueType type : {ValueType::kFloat32, ValueType::kFloat64}) {
    UpdateParams params;
    params.learning_rate = 1.0;
    CHECK_EQ(RowUpdater(sgd, params, type, 5).scratch_elements(), 0u);
    params.clipvalue = 0.5;
    Row by_value(sgd, type, {0, 0, 0});
    by_value.Update(RowUpdater(sgd, params, type, 3), {3.0, -4.0, 0.25});
    CHECK(by_value.Value() == (std::vector<double>{-0.5, 0.5, -0.25}));

    params.clipvalue = 0.0;
    params.clipnorm = 2.5;
    const RowUpdater updater(sgd, params, type, 2);
    CHECK_EQ(updater.scratch_elements(), 2u);
    Row by_norm(sgd, type, {0, 0});
    by_norm.Update(updater, {3.0, -4.0});
    CHECK(by_norm.Value() == (std::vector<double>{-1.5, 2.0}));
    Row within(sgd, type, {0, 0});
    within.Update(updater, {1e-40, 2.0});
    // A gradient within the bounds does not change, even if it is denormal.
    const double tiny = type == ValueType::kFloat32 ? static_cast<double>(1e-40f) : 1e-40;
    CHECK_EQ(within.At(0), -tiny);
    CHECK_EQ(within.At(1), -2.0);
  }
}

TEST(HalfValuesAreRoundedOnce) {
  // 1 - 0.0015 - 0.0015 is nearest to 1 - 1/256; rounded after each subtraction it would stay 1.
  const RuleSpec sgd = {.kind = RuleKind::kSgd};
  UpdateParams params;
  params.learning_rate = 1.0;
  params.weight_decay = 0.0015;
  Row row(sgd, ValueType::kBfloat16, {1.0});
  row.Update(RowUpdater(sgd, params, ValueType::kBfloat16, 1), {0.0015});
  CHECK_EQ(row.At(0), 1.0 - 1.0 / 256);
}

TEST(KnownSteps) {
  // With zero slots, the first step of Adam is the learning rate.
  UpdateParams params;
  params.learning_rate = 0.1;
  params.epsilon = 0.0;
  const RuleSpec adam = {.kind = RuleKind::kAdam};
  Row row(adam, ValueType::kFloat64, {1.0, 1.0});
  row.Update(RowUpdater(adam, params, ValueType::kFloat64, 2), {5.0, -0.01});
  CHECK_NEAR(row.At(0), 0.9, 1e-12);
  CHECK_NEAR(row.At(1), 1.1, 1e-12);

  // accumulator = 0.5 + (9 + 16) / 2 = 13; the step is 0.1 * g / sqrt(13).
  const RuleSpec rowwise = {.kind = RuleKind::kRowwiseAdagrad, .initial_accumulator = 0.5};
  Row shared(rowwise, ValueType::kFloat64, {0.0, 0.0});
  shared.Update(RowUpdater(rowwise, params, ValueType::kFloat64, 2), {3.0, 4.0});
  CHECK(shared.Slots() == std::vector<double>{13.0});
  CHECK_NEAR(shared.At(0), -0.3 / std::sqrt(13.0), 1e-15);
  CHECK_NEAR(shared.At(1), -0.4 / std::sqrt(13.0), 1e-15);

  // A step at which the schedule of Nadam has long converged.
  const RuleSpec nadam = {.kind = RuleKind::kNadam};
  params.step = std::numeric_limits<int64_t>::max();
  Row late(nadam, ValueType::kFloat64, {0.0});
  late.Update(RowUpdater(nadam, params, ValueType::kFloat64, 1), {1.0});
  CHECK_NEAR(late.At(0), -0.1 * (0.9 * 0.1 + 0.1) / std::sqrt(0.001), 1e-12);
}

TEST(NanGradientIsNotHidden) {
  const double nan = std::nan("");
  for (const NamedRule& rule : AllRules()) {
    Row row(rule.rule, ValueType::kFloat32, {1.0});
    row.Update(RowUpdater(rule.rule, rule.params, ValueType::kFloat32, 1), {nan});
    if (!std::isnan(row.At(0))) std::printf("  %s\n", rule.name.c_str());
    CHECK(std::isnan(row.At(0)));
  }
}

}  // namespace
}  // namespace tfra
