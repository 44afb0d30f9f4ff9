// tfra/table.h, promise by promise, for every key type and value type.
#include <algorithm>
#include <climits>
#include <functional>

#include "table_helpers.h"

namespace tfra::test {
namespace {

// A row that differs from key to key, from element to element and from version to version.
int NumberAt(int version, size_t i, size_t j) {
  return static_cast<int>((i * 7 + j * 3 + static_cast<size_t>(version) * 11) % 50 + 1);
}

std::vector<int> RowOf(ValueType type, int version, size_t i, size_t dim) {
  std::vector<int> row(dim);
  for (size_t j = 0; j < dim; ++j) row[j] = Kept(type, NumberAt(version, i, j));
  return row;
}

void ForEveryTable(const std::function<void(const TableSpec&)>& body) {
  for (KeyType key_type : kKeyTypes) {
    for (ValueType value_type : kValueTypes) {
      for (int64_t dim : {1, 3, 32, 1000}) body(SpecOf(key_type, value_type, dim));
    }
  }
}

std::function<int(size_t, size_t)> Version(int version) {
  return [version](size_t i, size_t j) { return NumberAt(version, i, j); };
}

TEST(TableBasicsForEveryType) {
  ForEveryTable([](const TableSpec& spec) {
    const ValueType type = spec.value_type;
    const size_t dim = static_cast<size_t>(spec.dim), n = 60;
    std::unique_ptr<Table> table = MakeTable(spec);
    const TestKeys keys = TestKeys::Range(spec.key_type, -30, 30);
    CHECK(Contents(*table).empty());

    AssignNumbers(*table, keys, Version(1));
    AssignNumbers(*table, TestKeys::Range(spec.key_type, -30, 0), Version(2));
    CHECK_EQ(table->size(), n);

    // Half of these keys are there; each kind of default serves the others.
    const TestKeys asked = TestKeys::Range(spec.key_type, 0, 60);
    const TestRows defaults =
        TestRows::Make(type, n, dim, [](size_t i, size_t j) { return NumberAt(9, i, j); });
    for (Defaults::Kind kind : {Defaults::kInitial, Defaults::kOneRow, Defaults::kRowPerKey}) {
      TestRows found(type, n, dim);
      Flags exists(n);
      const void* rows = kind == Defaults::kInitial ? nullptr : defaults.in();
      CHECK_OK(table->Lookup(asked.batch(), {kind, rows}, found.out(), exists.data()));
      TestRows again(type, n, dim);
      CHECK_OK(table->Lookup(asked.batch(), {kind, rows}, again.out(), nullptr));
      for (size_t i = 0; i < n; ++i) {
        CHECK_EQ(exists[i], i < 30);
        std::vector<int> expected(dim, 0);
        if (kind == Defaults::kOneRow) expected = RowOf(type, 9, 0, dim);
        if (kind == Defaults::kRowPerKey) expected = RowOf(type, 9, i, dim);
        if (i < 30) expected = RowOf(type, 1, i + 30, dim);
        CHECK(found.Row(i) == expected);
        CHECK(again.Row(i) == expected);
      }
    }
    CHECK_EQ(table->size(), n);  // A lookup inserts nothing.
    Flags contained(n);
    CHECK_OK(table->Contains(asked.batch(), contained.data()));
    CHECK_EQ(contained.Count(), 30u);

    ContentsMap expected;
    for (size_t i = 0; i < n; ++i) expected[keys.Name(i)] = RowOf(type, i < 30 ? 2 : 1, i, dim);
    CHECK(Contents(*table) == expected);

    size_t removed = 0;
    CHECK_OK(table->Remove(asked.batch(), &removed));
    CHECK_EQ(removed, 30u);
    CHECK_OK(table->Remove(asked.batch(), &removed));
    CHECK_EQ(removed, 0u);
    for (size_t i = 30; i < n; ++i) expected.erase(keys.Name(i));
    CHECK(Contents(*table) == expected);

    CHECK_OK(table->Clear());
    CHECK(Contents(*table).empty());
    CHECK_EQ(table->stats().string_bytes, 0u);
    AssignNumbers(*table, keys, Version(3));
    CHECK_EQ(Contents(*table).size(), n);
  });
}

TEST(TableEmptyBatchesAreFine) {
  ForEveryTable([](const TableSpec& spec) {
    if (spec.dim > 3) return;
    std::unique_ptr<Table> table = MakeTable(spec);
    const KeyBatch none = spec.key_type == KeyType::kInt64
                              ? KeyBatch(static_cast<const int64_t*>(nullptr), 0)
                              : KeyBatch(static_cast<const std::string_view*>(nullptr), 0);
    size_t removed = 7;
    CHECK_OK(table->Assign(none, nullptr));
    CHECK_OK(table->Lookup(none, {}, nullptr, nullptr));
    CHECK_OK(table->Contains(none, nullptr));
    CHECK_OK(table->Remove(none, &removed));
    CHECK_EQ(removed, 0u);
    const bool adds = spec.value_type != ValueType::kString;
    CHECK_EQ(table->training().Accumulate(none, nullptr, nullptr).ok(), adds);
    CHECK_OK(table->Shrink());
    ExportCursor cursor;
    ExportBatch batch;
    while (!cursor.done) CHECK_OK(table->Export(1, &cursor, &batch));
    CHECK_EQ(table->size(), 0u);
  });
}

TEST(TableExportByCursorSeesEachKeyOnce) {
  for (KeyType key_type : kKeyTypes) {
    for (ValueType type : kValueTypes) {
      std::unique_ptr<Table> table = MakeTable(SpecOf(key_type, type, 3));
      AssignNumbers(*table, TestKeys::Range(key_type, 0, 3000), Version(1));
      const ContentsMap whole = Contents(*table);
      for (size_t max_rows : {1, 2, 7, 1000, 100000}) {
        ContentsMap parts;
        ExportCursor cursor;
        while (!cursor.done) {
          ExportBatch batch;
          CHECK_OK(table->Export(max_rows, &cursor, &batch));
          // "About": a bucket's keys stay together.
          CHECK(batch.size <= max_rows + 30);
          AddBatch(table->spec(), batch, &parts);
        }
        CHECK(parts == whole);
      }
    }
  }
}

TEST(TableAccumulateFourCombinations) {
  ForEveryTable([](const TableSpec& spec) {
    const ValueType type = spec.value_type;
    const size_t dim = static_cast<size_t>(spec.dim);
    std::unique_ptr<Table> table = MakeTable(spec);
    AssignNumbers(*table, TestKeys(spec.key_type, {1, 2}), [](size_t, size_t) { return 10; });
    // 1: found and true, 2: found and false, 3: missing and true, 4: missing and false. Then, as if
    // one by one: 4 is there by now, 3 still is not, and 1 is added to once more.
    const TestKeys keys(spec.key_type, {1, 2, 3, 4, 4, 4, 3, 1});
    Flags exists(8);
    for (size_t i : {0, 2, 4, 6, 7}) exists.Set(i, true);
    const TestRows deltas = TestRows::Make(type, 8, dim, [](size_t, size_t) { return 5; });
    const Status status = table->training().Accumulate(keys.batch(), deltas.in(), exists.data());
    ContentsMap expected;
    const int ten = Kept(type, 10), five = Kept(type, 5);
    const bool is_bool = type == ValueType::kBool;
    expected[keys.Name(1)].assign(dim, ten);
    if (type == ValueType::kString) {
      CHECK(status.code() == StatusCode::kWrongType);
      expected[keys.Name(0)].assign(dim, ten);
    } else {
      CHECK_OK(status);
      expected[keys.Name(0)].assign(dim, is_bool ? 1 : ten + 2 * five);
      expected[keys.Name(3)].assign(dim, is_bool ? 1 : 2 * five);
      const TableStats stats = table->stats();
      CHECK_EQ(stats.exists_mismatch, 4u);
      CHECK_EQ(stats.inserts, 3u);
      CHECK_EQ(stats.updates, 3u);
    }
    CHECK(Contents(*table) == expected);
  });
}

TEST(TableDuplicatesKeepTheirOrder) {
  for (int threads : {1, 4}) {
    const ScopedNumThreads scoped(threads);
    for (KeyType key_type : kKeyTypes) {
      for (ValueType type : kValueTypes) {
        std::unique_ptr<Table> table = MakeTable(SpecOf(key_type, type, 1));
        // Enough keys for several threads, few of them distinct; the last assignment stays.
        std::vector<int64_t> numbers(30000);
        for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int64_t>(i * i % 97);
        const TestKeys keys(key_type, numbers);
        AssignNumbers(*table, keys, Version(1));
        ContentsMap expected;
        for (size_t i = 0; i < numbers.size(); ++i) expected[keys.Name(i)] = RowOf(type, 1, i, 1);
        CHECK(Contents(*table) == expected);
        size_t removed = 0;
        CHECK_OK(table->Remove(keys.batch(), &removed));
        CHECK_EQ(removed, expected.size());
        CHECK_EQ(table->size(), 0u);
      }
    }
  }
}

TEST(TableGradientsOfEqualKeysAreSummedFirst) {
  for (KeyType key_type : kKeyTypes) {
    for (ValueType type : kValueTypes) {
      if (!IsFloating(type)) continue;
      TableSpec spec = SpecOf(key_type, type, 3);
      // Adagrad tells one step with 1 + 3 from two steps; by hand: 9 + 4 * 4 = 25, 4 / 5 = 0.8.
      spec.rule.kind = RuleKind::kAdagrad;
      spec.rule.initial_accumulator = 9;
      spec.initializer.kind = InitializerKind::kOnes;
      std::unique_ptr<Table> table = MakeTable(spec);
      const TestKeys keys(key_type, {5, 6, 5});
      UpdateParams params;
      params.learning_rate = 10;
      params.epsilon = 0;
      for (ValueType gradient_type : {type, ComputeType(type)}) {
        CHECK_OK(table->Clear());
        const TestRows gradients = TestRows::Make(
            gradient_type, 3, 3, [](size_t i, size_t) { return std::vector<int>{1, 0, 3}[i]; });
        CHECK_OK(
            table->training().ApplyGradients(keys.batch(), gradients.in(), gradient_type, params));
        const ContentsMap contents = Contents(*table);
        CHECK(contents.at(keys.Name(0)) == std::vector<int>(3, 1 - 8));
        CHECK(contents.at(keys.Name(1)) == std::vector<int>(3, 1));
      }
    }
  }
}

TEST(TableResultsDoNotDependOnThreads) {
  for (KeyType key_type : kKeyTypes) {
    for (ValueType type : {ValueType::kFloat32, ValueType::kBfloat16, ValueType::kInt64}) {
      std::vector<std::vector<std::byte>> results;
      for (int threads : {1, 4}) {
        const ScopedNumThreads scoped(threads);
        TableSpec spec = SpecOf(key_type, type, 3);
        const bool trains = IsFloating(type);
        if (trains) {
          spec.rule.kind = RuleKind::kAdam;
          spec.initializer.kind = InitializerKind::kNormal;
        }
        std::unique_ptr<Table> table = MakeTable(spec);
        std::vector<int64_t> numbers(40000);
        for (size_t i = 0; i < numbers.size(); ++i) {
          numbers[i] = static_cast<int64_t>(i * 2654435761u % 25000);
        }
        const TestKeys keys(key_type, numbers);
        const ValueType compute = trains ? ComputeType(type) : type;
        const TestRows rows = TestRows::Make(compute, keys.size(), 3, Version(1));
        for (int step = 0; step < 3; ++step) {
          Flags exists(keys.size(), step > 0);
          CHECK_OK(trains ? table->training().ApplyGradients(keys.batch(), rows.in(), compute, {})
                          : table->training().Accumulate(keys.batch(), rows.in(), exists.data()));
        }
        const size_t n = keys.size();
        std::vector<std::byte> values(n * 3 * SizeOf(type));
        CHECK_OK(table->Lookup(keys.batch(), {}, values.data(), nullptr));
        results.push_back(values);
      }
      CHECK(results[0] == results[1]);
    }
  }
}

TEST(TableSlotsThroughAssignAndExport) {
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, 2);
  spec.rule = {.kind = RuleKind::kAdagrad, .initial_accumulator = 0.5};
  std::unique_ptr<Table> table = MakeTable(spec);
  CHECK_EQ(table->slot_elements(), 2u);
  const int64_t key = 5;
  const float value[] = {1, 2}, other[] = {3, 4}, slots[] = {7, 8};
  const auto exported_slot = [&] {
    ExportBatch batch;
    CHECK_OK(table->ExportAll(&batch));
    CHECK_EQ(batch.slots.size(), sizeof(slots));
    float first = 0;
    std::memcpy(&first, batch.slots.data(), sizeof(first));
    return first;
  };
  CHECK_OK(table->Assign(KeyBatch(&key, 1), value));
  CHECK_EQ(exported_slot(), 0.5f);  // New rows get initial slots.
  CHECK_OK(table->Assign(KeyBatch(&key, 1), value, slots));
  CHECK_EQ(exported_slot(), 7.0f);
  CHECK_OK(table->Assign(KeyBatch(&key, 1), other));
  CHECK_EQ(exported_slot(), 7.0f);  // No slots given: those that are there stay.
  size_t removed = 0;
  CHECK_OK(table->Remove(KeyBatch(&key, 1), &removed));
  CHECK_OK(table->Assign(KeyBatch(&key, 1), value));
  CHECK_EQ(exported_slot(), 0.5f);  // Nothing is left in a reused row.
}

TEST(TableMetadataAndClock) {
  for (KeyType key_type : kKeyTypes) {
    TableSpec spec = SpecOf(key_type, ValueType::kFloat32, 1);
    spec.metadata = true;
    spec.rule.kind = RuleKind::kSgd;
    std::unique_ptr<Table> table = MakeTable(spec);
    const auto at = [&](uint32_t time, uint32_t count) {
      uint64_t rows = 0;
      CHECK_OK(table->upkeep().CountIf(
          [=](const RowMetadata& m) { return m.time == time && m.count == count; }, &rows));
      return rows;
    };
    table->upkeep().SetClock(100);
    CHECK_EQ(table->upkeep().clock(), 100u);
    AssignNumbers(*table, TestKeys::Range(key_type, 0, 1000), Version(1));
    CHECK_EQ(at(100, 1), 1000u);
    table->upkeep().SetClock(200);
    const std::vector<float> ones(4, 1.0f);
    // One step for each key, also for one that comes three times.
    const TestKeys keys(key_type, {1, 1, 2, 1});
    CHECK_OK(table->training().ApplyGradients(keys.batch(), ones.data(), ValueType::kFloat32, {}));
    CHECK_EQ(at(200, 2), 2u);
    AssignNumbers(*table, keys, Version(2));
    CHECK_EQ(at(200, 5), 1u);
    CHECK_EQ(at(200, 3), 1u);
    Flags exists(4, true);
    CHECK_OK(table->training().Accumulate(keys.batch(), ones.data(), exists.data()));
    CHECK_EQ(at(200, 8), 1u);
    // Given metadata is stored as it is, and the count stays at its maximum.
    const RowMetadata given{7, UINT32_MAX - 1};
    const TestKeys three(key_type, {3});
    CHECK_OK(table->Assign(three.batch(), ones.data(), nullptr, &given));
    CHECK_EQ(at(7, UINT32_MAX - 1), 1u);
    for (int i = 0; i < 3; ++i) AssignNumbers(*table, three, Version(1));
    CHECK_EQ(at(200, UINT32_MAX), 1u);

    ExportBatch selected;
    const auto recent = [](const RowMetadata& m) { return m.time >= 200; };
    CHECK_OK(table->upkeep().SelectIf(recent, &selected));
    CHECK_EQ(selected.size, 3u);
    CHECK_EQ(selected.int_keys.size() + selected.string_keys.size(), 3u);
    CHECK(selected.values.empty() && selected.slots.empty() && selected.metadata.empty());
    uint64_t removed = 0;
    CHECK_OK(table->upkeep().RemoveIf([](const RowMetadata& m) { return m.time < 200; }, &removed));
    CHECK_EQ(removed, 997u);
    CHECK_EQ(Contents(*table).size(), 3u);
  }
}

TEST(TableErrorsChangeNothing) {
  const auto created = [](int64_t dim, int64_t capacity, RuleKind rule, ValueType type) {
    TableSpec spec = SpecOf(KeyType::kInt64, type, dim);
    spec.initial_capacity = capacity;
    spec.rule.kind = rule;
    std::unique_ptr<Table> table;
    const Status status = Table::Create(spec, &table);
    CHECK_EQ(status.ok(), table != nullptr);
    CHECK_EQ(status.ok(), status.message().empty());
    return status.code();
  };
  const RuleKind none = RuleKind::kNone;
  for (int64_t dim : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX, int64_t{1} << 40}) {
    CHECK(created(dim, 0, none, ValueType::kFloat32) == StatusCode::kInvalidArgument);
  }
  for (int64_t capacity : {int64_t{-1}, INT64_MIN, INT64_MAX, int64_t{1} << 40}) {
    CHECK(created(1, capacity, none, ValueType::kFloat32) == StatusCode::kInvalidArgument);
  }
  for (ValueType type : kValueTypes) {
    const StatusCode expected = IsFloating(type) ? StatusCode::kOk : StatusCode::kWrongType;
    CHECK(created(1, 0, RuleKind::kAdam, type) == expected);
  }

  for (KeyType key_type : kKeyTypes) {
    TableSpec spec = SpecOf(key_type, ValueType::kBfloat16, 2);
    spec.rule.kind = RuleKind::kSgd;
    std::unique_ptr<Table> table = MakeTable(spec);
    const TestKeys keys = TestKeys::Range(key_type, 0, 10);
    AssignNumbers(*table, keys, Version(1));
    const ContentsMap before = Contents(*table);
    const TestKeys wrong =
        TestKeys::Range(key_type == KeyType::kInt64 ? KeyType::kString : KeyType::kInt64, 0, 10);
    const TestRows rows = TestRows::Make(ValueType::kFloat64, 10, 2, Version(2));
    TestRows out(ValueType::kFloat64, 10, 2);
    Flags flags(10);
    size_t removed = 0;
    uint64_t count = 0;
    ExportBatch batch;
    const auto code = [](const Status& status) { return status.code(); };
    const StatusCode wrong_type = StatusCode::kWrongType, invalid = StatusCode::kInvalidArgument;
    CHECK(code(table->Assign(wrong.batch(), rows.in())) == wrong_type);
    CHECK(code(table->Lookup(wrong.batch(), {}, out.out(), nullptr)) == wrong_type);
    CHECK(code(table->Contains(wrong.batch(), flags.data())) == wrong_type);
    CHECK(code(table->Remove(wrong.batch(), &removed)) == wrong_type);
    CHECK(code(table->training().Accumulate(wrong.batch(), rows.in(), flags.data())) == wrong_type);
    const auto apply = [&](ValueType type, const UpdateParams& params) {
      return code(table->training().ApplyGradients(keys.batch(), rows.in(), type, params));
    };
    for (ValueType type :
         {ValueType::kFloat64, ValueType::kFloat16, ValueType::kInt32, ValueType::kString}) {
      CHECK(apply(type, {}) == wrong_type);
    }
    CHECK(apply(ValueType::kFloat32, {.step = 0}) == invalid);
    CHECK(code(table->Reserve(-1)) == invalid);
    CHECK(code(table->Reserve(INT64_MAX)) == invalid);
    const auto all = [](const RowMetadata&) { return true; };
    CHECK(code(table->upkeep().CountIf(all, &count)) == invalid);  // The table has no metadata.
    CHECK(code(table->upkeep().RemoveIf(all, &count)) == invalid);
    CHECK(code(table->upkeep().SelectIf(all, &batch)) == invalid);
    CHECK(Contents(*table) == before);
    CHECK(apply(ValueType::kFloat32, {}) == StatusCode::kOk);

    spec.rule.kind = none;
    table = MakeTable(spec);
    CHECK(apply(ValueType::kFloat32, {}) == invalid);
  }
}

}  // namespace
}  // namespace tfra::test
