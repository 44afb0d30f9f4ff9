// Values with their slots: Lookup reads them, Assign writes them, CopyWithRule copies them.
#include <cmath>

#include "table_helpers.h"

namespace tfra::test {
namespace {

RuleSpec CustomRule(std::vector<SlotSpec> slots) {
  RuleSpec rule;
  rule.kind = RuleKind::kCustom;
  rule.slots = std::move(slots);
  return rule;
}

struct Rows {
  std::vector<float> values, slots;
};

Rows LookupRows(Table& table, const TestKeys& keys) {
  Rows rows{std::vector<float>(keys.size() * static_cast<size_t>(table.spec().dim)),
            std::vector<float>(keys.size() * table.slot_elements())};
  CHECK_OK(table.Lookup(keys.batch(), {}, rows.values.data(), nullptr, rows.slots.data()));
  return rows;
}

TEST(CustomSlotsAreReadAndWrittenByTheCaller) {
  for (KeyType key_type : kKeyTypes) {
    TableSpec spec = SpecOf(key_type, ValueType::kFloat32, 2);
    spec.initializer.kind = InitializerKind::kOnes;
    spec.rule = CustomRule({{"average", false, 0.5}, {"count", true, 7.0}});
    std::unique_ptr<Table> table = MakeTable(spec);
    CHECK_EQ(table->slot_elements(), 3u);

    const TestKeys keys(key_type, {1, 2});
    const Rows fresh = LookupRows(*table, keys);
    CHECK(fresh.values == std::vector<float>({1, 1, 1, 1}));
    CHECK(fresh.slots == std::vector<float>({0.5, 0.5, 7, 0.5, 0.5, 7}));
    CHECK_EQ(table->size(), 0u);

    const std::vector<float> values = {3, 4}, slots = {5, 6, 8};
    CHECK_OK(table->Assign(TestKeys(key_type, {2}).batch(), values.data(), slots.data()));
    const Rows both = LookupRows(*table, keys);
    CHECK(both.values == std::vector<float>({1, 1, 3, 4}));
    CHECK(both.slots == std::vector<float>({0.5, 0.5, 7, 5, 6, 8}));

    std::vector<float> gradient(2);
    CHECK(table->training()
              .ApplyGradients(TestKeys(key_type, {2}).batch(), gradient.data(), ValueType::kFloat32,
                              {})
              .code() == StatusCode::kInvalidArgument);
  }
}

TEST(CustomSlotsMayStartAsNan) {
  const double nan = std::nan("");
  const RuleSpec rule = CustomRule({{"copy", false, nan}});
  CHECK(rule == CustomRule({{"copy", false, nan}}));
  CHECK(!(rule == CustomRule({{"copy", false, 0.0}})));
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, 1);
  spec.rule = rule;
  CHECK(std::isnan(LookupRows(*MakeTable(spec), TestKeys(KeyType::kInt64, {1})).slots[0]));
}

TEST(CustomSlotsHaveNamesOfTheirOwnAndAreNotTooMany) {
  const auto check = [](const RuleSpec& rule, size_t* elements) {
    TableSpec spec;
    spec.dim = 3;
    spec.rule = rule;
    std::unique_ptr<Table> table;
    const Status status = CheckRule(rule, spec.value_type, spec.dim, elements);
    CHECK(Table::Create(spec, &table).code() == status.code());
    if (status.ok()) CHECK_EQ(table->slot_elements(), *elements);
    return status.code();
  };
  size_t elements = 0;
  CHECK(check(CustomRule({{"a"}, {"b", true}}), &elements) == StatusCode::kOk);
  CHECK_EQ(elements, 4u);
  CHECK(check(CustomRule({{"a"}, {"b"}, {"a", true}}), &elements) == StatusCode::kInvalidArgument);
  CHECK(check(CustomRule({{""}}), &elements) == StatusCode::kInvalidArgument);
  CHECK(check(CustomRule({{std::string(256, 'x')}}), &elements) == StatusCode::kOk);
  CHECK(check(CustomRule({{std::string(257, 'x')}}), &elements) == StatusCode::kInvalidArgument);
  std::vector<SlotSpec> slots;
  for (int i = 0; i < 64; ++i) slots.push_back({std::to_string(i)});
  CHECK(check(CustomRule(slots), &elements) == StatusCode::kOk);
  CHECK_EQ(elements, 192u);
  slots.push_back({"one more"});
  CHECK(check(CustomRule(slots), &elements) == StatusCode::kInvalidArgument);
}

TEST(CustomSlotsBelongToTheCustomRule) {
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, 2);
  spec.rule.kind = RuleKind::kAdam;
  spec.rule.slots = {{"extra"}};
  std::unique_ptr<Table> table;
  CHECK(Table::Create(spec, &table).code() == StatusCode::kInvalidArgument);
}

TEST(CopyWithRuleKeepsValuesAndSharedSlots) {
  for (KeyType key_type : kKeyTypes) {
    TableSpec spec = SpecOf(key_type, ValueType::kFloat32, 2);
    spec.metadata = true;
    spec.initial_capacity = 7;
    spec.rule = CustomRule({{"a"}, {"momentum"}, {"velocity", true}});
    std::unique_ptr<Table> table = MakeTable(spec);
    table->upkeep().SetClock(77);
    const size_t n = 40000;
    const TestKeys keys = TestKeys::Range(key_type, 0, static_cast<int64_t>(n));
    std::vector<float> values(n * 2), slots(n * 5);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<float>(i) + 0.5f;
    CHECK_OK(table->Assign(keys.batch(), values.data(), slots.data()));

    RuleSpec adam;
    adam.kind = RuleKind::kAdam;
    std::unique_ptr<Table> copy;
    CHECK_OK(table->CopyWithRule(adam, true, &copy));
    CHECK_EQ(copy->size(), n);
    CHECK(copy->spec().rule == adam);
    CHECK_EQ(copy->spec().initial_capacity, 7);
    CHECK(Contents(*copy) == Contents(*table));
    const Rows rows = LookupRows(*copy, keys);
    for (size_t i = 0; i < n; ++i) {
      // "momentum" has the same length in both rules and is copied. "velocity" has not, and gets
      // its initial value.
      CHECK_EQ(rows.slots[i * 4], slots[i * 5 + 2]);
      CHECK_EQ(rows.slots[i * 4 + 1], slots[i * 5 + 3]);
      CHECK_EQ(rows.slots[i * 4 + 2], 0.0f);
    }
    uint64_t old = 0;
    CHECK_OK(copy->upkeep().CountIf([](const RowMetadata& row) { return row.time == 77; }, &old));
    CHECK_EQ(old, n);

    CHECK_OK(table->CopyWithRule(spec.rule, false, &copy));
    CHECK(Contents(*copy) == Contents(*table));
    for (float slot : LookupRows(*copy, keys).slots) CHECK_EQ(slot, 0.0f);

    CHECK_OK(copy->CopyWithRule(RuleSpec(), true, &table));
    CHECK_EQ(table->slot_elements(), 0u);
    CHECK(Contents(*copy) == Contents(*table));
  }
}

TEST(CopyWithRuleNeedsFloatingValues) {
  std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kInt64, ValueType::kInt32, 2)), copy;
  RuleSpec adam;
  adam.kind = RuleKind::kAdam;
  CHECK(table->CopyWithRule(adam, true, &copy).code() == StatusCode::kWrongType);
}

}  // namespace
}  // namespace tfra::test
