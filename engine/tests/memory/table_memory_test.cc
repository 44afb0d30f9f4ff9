// Tables that run out of memory or give memory back, and estimates of memory.
#include <algorithm>
#include <functional>

#include "memory/pages.h"
#include "table_helpers.h"

namespace tfra::test {
namespace {

constexpr int kMaxFailurePoints = 200;

TableSpec TrainedSpec(KeyType key_type, ValueType type) {
  TableSpec spec = SpecOf(key_type, type, 2);
  if (IsFloating(type)) spec.rule.kind = RuleKind::kSgd;
  return spec;
}

// Calls `call` with the first, second, .. allocation failing, until no allocation fails, each time
// on a new table of 100 keys. A call that fails must not change the content of the table, and the
// same call must then succeed.
void FailEverywhere(const TableSpec& spec, const char* name,
                    const std::function<Status(Table&)>& call) {
  int changed = 0, point = 0;
  for (; point < kMaxFailurePoints; ++point) {
    std::unique_ptr<Table> table = MakeTable(spec);
    AssignNumbers(*table, TestKeys::Range(spec.key_type, 0, 100),
                  [](size_t i, size_t j) { return static_cast<int>(i + j); });
    const ContentsMap before = Contents(*table);
    const uint64_t string_bytes = table->stats().string_bytes;
    FailAllocationsForTesting(point);
    const Status status = call(*table);
    FailAllocationsForTesting(-1);
    if (status.ok()) break;
    CHECK(status.code() == StatusCode::kOutOfMemory);
    CHECK(!status.message().empty());
    const bool same = Contents(*table) == before && table->stats().string_bytes == string_bytes;
    changed += !same;
    CHECK_OK(call(*table));
    CHECK_OK(table->Clear());
    CHECK_EQ(table->stats().string_bytes, 0u);
  }
  if (changed > 0) {
    std::printf("  %s: %d of %d failures changed the table\n", name, changed, point);
  }
  CHECK_EQ(changed, 0);
  CHECK(point > 0 && point < kMaxFailurePoints);
}

Status AssignMany(Table& table, int64_t end) {
  const TestKeys keys = TestKeys::Range(table.spec().key_type, 50, end);
  const size_t dim = static_cast<size_t>(table.spec().dim);
  const TestRows rows =
      TestRows::Make(table.spec().value_type, keys.size(), dim, [](size_t, size_t) { return 7; });
  return table.Assign(keys.batch(), rows.in());
}

TEST(OutOfMemoryInCreate) {
  for (KeyType key_type : kKeyTypes) {
    TableSpec spec = SpecOf(key_type, ValueType::kFloat32, 4);
    spec.initial_capacity = 1000;
    int point = 0;
    for (; point < kMaxFailurePoints; ++point) {
      std::unique_ptr<Table> table;
      FailAllocationsForTesting(point);
      const Status status = Table::Create(spec, &table);
      FailAllocationsForTesting(-1);
      if (status.ok()) break;
      CHECK(status.code() == StatusCode::kOutOfMemory);
      CHECK(table == nullptr);
    }
    CHECK(point > 0 && point < kMaxFailurePoints);
  }
}

TEST(OutOfMemoryInAssign) {
  for (int threads : {1, 4}) {
    const ScopedNumThreads scoped(threads);
    const TableSpec spec = TrainedSpec(KeyType::kInt64, ValueType::kFloat32);
    FailEverywhere(spec, "Assign", [](Table& table) { return AssignMany(table, 20000); });
  }
}

TEST(OutOfMemoryInAssignOfStringValues) {
  FailEverywhere(TrainedSpec(KeyType::kInt64, ValueType::kString), "Assign of string values",
                 [](Table& table) { return AssignMany(table, 120); });
}

TEST(OutOfMemoryInAssignToStringKeys) {
  for (ValueType type : {ValueType::kFloat32, ValueType::kString}) {
    FailEverywhere(TrainedSpec(KeyType::kString, type), "Assign to string keys",
                   [](Table& table) { return AssignMany(table, 120); });
  }
}

TEST(OutOfMemoryInUpdates) {
  const TableSpec spec = TrainedSpec(KeyType::kInt64, ValueType::kFloat32);
  const TestKeys keys = TestKeys::Range(KeyType::kInt64, 50, 5000);
  const std::vector<float> ones(2 * keys.size(), 1.0f);
  FailEverywhere(spec, "ApplyGradients", [&](Table& table) {
    return table.training().ApplyGradients(keys.batch(), ones.data(), ValueType::kFloat32, {});
  });
  Flags exists(keys.size());
  FailEverywhere(spec, "Accumulate", [&](Table& table) {
    return table.training().Accumulate(keys.batch(), ones.data(), exists.data());
  });
}

TEST(OutOfMemoryInReserveAndShrink) {
  const TableSpec spec = TrainedSpec(KeyType::kInt64, ValueType::kFloat32);
  FailEverywhere(spec, "Reserve", [](Table& table) { return table.Reserve(200000); });
  std::unique_ptr<Table> table = MakeTable(spec);
  AssignNumbers(*table, TestKeys::Range(KeyType::kInt64, 0, 100), [](size_t, size_t) { return 3; });
  const ContentsMap before = Contents(*table);
  CHECK_OK(table->Reserve(100000));
  for (int point = 0; point < kMaxFailurePoints; ++point) {
    FailAllocationsForTesting(point);
    const Status status = table->Shrink();
    FailAllocationsForTesting(-1);
    CHECK(Contents(*table) == before);
    if (status.ok()) break;
    CHECK(status.code() == StatusCode::kOutOfMemory);
  }
  CHECK(table->stats().capacity < 1000);
}

TEST(ClearNeedsNoMemory) {
  std::unique_ptr<Table> table = MakeTable(TrainedSpec(KeyType::kString, ValueType::kFloat32));
  CHECK_OK(AssignMany(*table, 1000));
  FailAllocationsForTesting(0);
  const Status status = table->Clear();
  FailAllocationsForTesting(-1);
  CHECK_OK(status);
  CHECK_EQ(table->size(), 0u);
  CHECK_OK(AssignMany(*table, 1000));
  CHECK_EQ(table->size(), 950u);
}

// Room is made for keys that are inserted, not for every key of a batch.
TEST(DuplicatesDoNotGrowTheTable) {
  std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kInt64, ValueType::kInt32, 1));
  const std::vector<int64_t> same(100000, 5);
  const std::vector<int32_t> values(same.size(), 1);
  CHECK_OK(table->Assign(KeyBatch(same.data(), same.size()), values.data()));
  CHECK_EQ(table->size(), 1u);
  CHECK(table->stats().index_bytes < 64 << 10);
}

TEST(MismatchedKeysDoNotGrowTheTable) {
  std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kInt64, ValueType::kInt32, 1));
  const TestKeys absent = TestKeys::Range(KeyType::kInt64, 0, 100000);
  const std::vector<int32_t> values(absent.size(), 1);
  Flags exists(absent.size(), true);
  CHECK_OK(table->training().Accumulate(absent.batch(), values.data(), exists.data()));
  CHECK_EQ(table->size(), 0u);
  CHECK(table->stats().index_bytes < 64 << 10);
}

TEST(RemovedRowsAreUsedAgain) {
  for (KeyType key_type : kKeyTypes) {
    std::unique_ptr<Table> table = MakeTable(SpecOf(key_type, ValueType::kFloat32, 8));
    const TestKeys keys = TestKeys::Range(key_type, 0, 50000);
    const auto one = [](size_t, size_t) { return 1; };
    AssignNumbers(*table, keys, one);
    const TableStats full = table->stats();
    for (int round = 0; round < 5; ++round) {
      size_t removed = 0;
      if (round % 2 == 0) {
        CHECK_OK(table->Remove(keys.batch(), &removed));
      } else {
        CHECK_OK(table->Clear());  // Keeps the memory for reuse.
      }
      CHECK_EQ(table->stats().row_bytes, full.row_bytes);
      AssignNumbers(*table, keys, one);
      CHECK_EQ(table->stats().row_bytes, full.row_bytes);
      CHECK_EQ(table->stats().index_bytes, full.index_bytes);
      CHECK_EQ(table->stats().string_bytes, full.string_bytes);
    }
    // Other keys are spread differently over the stripes, but take hardly more memory.
    CHECK_OK(table->Clear());
    AssignNumbers(*table, TestKeys::Range(key_type, 100000, 150000), one);
    CHECK(table->stats().row_bytes <= full.row_bytes * 21 / 20);
  }
}

TEST(ReserveMakesRoom) {
  std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kInt64, ValueType::kInt32, 1));
  CHECK_OK(table->Reserve(50000));
  const TableStats before = table->stats();
  CHECK(before.capacity >= 50000);
  const TestKeys keys = TestKeys::Range(KeyType::kInt64, 0, 50000);
  AssignNumbers(*table, keys, [](size_t, size_t) { return 1; });
  CHECK_EQ(table->stats().index_bytes, before.index_bytes);
  CHECK_OK(table->Reserve(10));  // Never shrinks.
  CHECK_EQ(table->stats().index_bytes, before.index_bytes);
}

TEST(ShrinkGivesMemoryBackAndKeepsRows) {
  for (KeyType key_type : kKeyTypes) {
    for (ValueType type : {ValueType::kFloat32, ValueType::kInt8, ValueType::kString}) {
      std::unique_ptr<Table> table = MakeTable(SpecOf(key_type, type, 3));
      const auto number = [](size_t i, size_t j) { return static_cast<int>((i + j) % 100); };
      AssignNumbers(*table, TestKeys::Range(key_type, 0, 50000), number);
      const TableStats full = table->stats();
      size_t removed = 0;
      CHECK_OK(table->Remove(TestKeys::Range(key_type, 500, 49500).batch(), &removed));
      const ContentsMap kept = Contents(*table);
      CHECK_OK(table->Shrink());
      const TableStats shrunk = table->stats();
      CHECK(shrunk.row_bytes < full.row_bytes / 20);
      CHECK(shrunk.index_bytes < full.index_bytes / 10);
      CHECK(Contents(*table) == kept);
      AssignNumbers(*table, TestKeys::Range(key_type, 0, 50000), number);
      CHECK_EQ(Contents(*table).size(), 50000u);
      CHECK_OK(table->Clear());
      CHECK_OK(table->Shrink());
      CHECK_EQ(table->stats().row_bytes, 0u);
    }
  }
}

TEST(EstimateMemoryAgreesWithTables) {
  for (KeyType key_type : kKeyTypes) {
    for (int64_t keys : {100000, 1000000 / kSlowdown}) {
      TableSpec spec = SpecOf(key_type, ValueType::kFloat32, 5);
      spec.metadata = true;
      spec.rule.kind = RuleKind::kAdam;
      std::unique_ptr<Table> table = MakeTable(spec);
      double length = 0;
      const std::vector<float> values(20000 * 5);
      for (int64_t begin = 0; begin < keys; begin += 20000) {
        const TestKeys batch = TestKeys::Range(key_type, begin, begin + 20000);
        CHECK_OK(table->Assign(batch.batch(), values.data()));
        length += static_cast<double>(batch.Name(0).size() * 20000) / static_cast<double>(keys);
      }
      const TableStats stats = table->stats();
      TableStats estimate;
      CHECK_OK(EstimateMemory(spec, keys, length, &estimate));
      const auto near = [](uint64_t a, uint64_t b) {
        return static_cast<double>(a) <= 1.1 * static_cast<double>(b) &&
               static_cast<double>(b) <= 1.1 * static_cast<double>(a);
      };
      CHECK_EQ(estimate.size, static_cast<uint64_t>(keys));
      CHECK(near(estimate.index_bytes, stats.index_bytes));
      CHECK(near(estimate.row_bytes, stats.row_bytes));
      CHECK(near(estimate.string_bytes, stats.string_bytes));
    }
  }
  TableStats estimate;
  CHECK(!EstimateMemory(SpecOf(KeyType::kInt64, ValueType::kInt8, 0), 1, 0, &estimate).ok());
  CHECK(!EstimateMemory(SpecOf(KeyType::kInt64, ValueType::kInt8, 1), -1, 0, &estimate).ok());
}

TEST(MemoryRisesEvenly) {
  const TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, 4);
  for (int64_t batch_size : {1000, 50000}) {
    std::unique_ptr<Table> table = MakeTable(spec);
    const std::vector<float> values(static_cast<size_t>(batch_size) * 4);
    double worst = 0;
    for (int64_t size = batch_size; size <= 2000000 / kSlowdown; size += batch_size) {
      const TestKeys keys = TestKeys::Range(KeyType::kInt64, size - batch_size, size);
      CHECK_OK(table->Assign(keys.batch(), values.data()));
      if (size < 10000) continue;  // In a small table, the last block of rows is a large part.
      TableStats estimate;
      CHECK_OK(EstimateMemory(spec, size, 0, &estimate));
      const TableStats stats = table->stats();
      worst = std::max(worst, static_cast<double>(stats.index_bytes + stats.row_bytes) /
                                  static_cast<double>(estimate.index_bytes + estimate.row_bytes));
    }
    std::printf("  at most %.3f of the estimate\n", worst);
    CHECK(worst <= 1.3);
  }
}

}  // namespace
}  // namespace tfra::test
