// The rows of bounded tables: what goes with an evicted one, what memory they take, and calls that
// bounded tables brought.
#include <cmath>

#include "bounded_helpers.h"
#include "memory/pages.h"

namespace tfra::test {
namespace {

TEST(EvictedRowsTakeEverythingWithThem) {
  for (KeyType key_type : kKeyTypes) {
    TableSpec spec = BoundedSpec(EvictStrategy::kLru, 2, key_type);
    spec.rule = {.kind = RuleKind::kAdagrad, .initial_accumulator = 0.5};
    spec.initializer.kind = InitializerKind::kOnes;
    spec.metadata = true;
    std::unique_ptr<Table> table = MakeTable(spec);
    table->upkeep().SetClock(7);
    const TestKeys keys(key_type, {1, 2, 3});
    const float values[] = {1, 2, 3, 4, 5, 6}, slots[] = {10, 20, 30, 40, 50, 60};
    ExportBatch evicted;
    Flags rejected(3, true);
    CHECK_OK(table->scores().AssignAndEvict(keys.batch(), values, slots, nullptr, {}, &evicted,
                                            rejected.data()));
    CHECK_EQ(rejected.Count(), 0u);
    CHECK_EQ(evicted.size, 1u);
    CHECK_EQ(key_type == KeyType::kInt64 ? std::to_string(evicted.int_keys.at(0))
                                         : std::string(evicted.string_keys[0]),
             keys.Name(0));
    CHECK_EQ(evicted.values.size(), 2 * sizeof(float));
    CHECK(std::memcmp(evicted.values.data(), values, 2 * sizeof(float)) == 0);
    CHECK_EQ(evicted.slots.size(), 2 * sizeof(float));
    CHECK(std::memcmp(evicted.slots.data(), slots, 2 * sizeof(float)) == 0);
    CHECK_EQ(evicted.metadata.at(0).time, 7u);
    CHECK_EQ(evicted.metadata.at(0).count, 1u);
    CHECK_EQ(evicted.scores.at(0), 1u);

    // Updated after that, the key starts from its initial value and slots: one step of Adagrad,
    // 1 - 10 * 3 / sqrt(0.5 + 9).
    const TestKeys again(key_type, {1});
    const float gradient[] = {3, 3};
    CHECK_OK(table->training().ApplyGradients(again.batch(), gradient, ValueType::kFloat32,
                                              {.learning_rate = 10, .epsilon = 0}));
    float row[2], slot[2];
    CHECK_OK(table->Lookup(again.batch(), {}, row, nullptr, slot));
    CHECK_NEAR(row[0], 1 - 30 / std::sqrt(9.5), 1e-5);
    CHECK_NEAR(slot[1], 9.5, 1e-5);
    CHECK_EQ(table->stats().evictions, 2u);
    CHECK_EQ(table->size(), 2u);
  }
}

TEST(EvictedStringsAreFreed) {
  for (int64_t max_capacity : {500, 3000}) {
    std::unique_ptr<Table> table = MakeTable(
        BoundedSpec(EvictStrategy::kLru, max_capacity, KeyType::kString, ValueType::kString, 3));
    AssignRange(*table, 0, max_capacity);
    const uint64_t full = table->stats().string_bytes;
    AssignRange(*table, max_capacity, 5 * max_capacity);
    CHECK_EQ(table->size(), static_cast<uint64_t>(max_capacity));
    CHECK_EQ(table->stats().string_bytes, full);  // All keys and values take 32 bytes.
    // Rejected ones are not kept either.
    std::vector<uint64_t> zeros(1000);
    const TestKeys late = TestKeys::Range(KeyType::kString, 90000, 91000);
    const TestRows rows = TestRows::Make(ValueType::kString, 1000, 3, One);
    CHECK_OK(
        table->Assign(late.batch(), rows.in(), nullptr, nullptr, {Scores::kExact, zeros.data()}));
    CHECK_EQ(table->stats().score_too_low, 1000u);
    CHECK_EQ(table->stats().string_bytes, full);
    CHECK_OK(table->Clear());
    CHECK_EQ(table->stats().string_bytes, 0u);
  }
}

// A call that runs out of memory changes neither rows nor scores, also of a full table.
TEST(OutOfMemoryInAFullTable) {
  for (ValueType type : {ValueType::kFloat32, ValueType::kString}) {
    const TableSpec spec = BoundedSpec(EvictStrategy::kLfu, 100, KeyType::kString, type);
    const TestKeys keys = TestKeys::Range(KeyType::kString, 80, 130);
    const TestRows rows = TestRows::Make(type, 50, 2, One);
    int point = 0;
    for (; point < 500; ++point) {
      std::unique_ptr<Table> table = MakeTable(spec);
      AssignRange(*table, 0, 100);
      const auto contents = [&] {
        ExportBatch batch;
        CHECK_OK(table->ExportAll(&batch));
        std::map<std::string, uint64_t> scores;
        for (size_t i = 0; i < batch.size; ++i)
          scores[std::string(batch.string_keys[i])] = batch.scores[i];
        return std::pair(Contents(*table), scores);
      };
      const auto before = contents();
      FailAllocationsForTesting(point);
      const Status status = table->Assign(keys.batch(), rows.in());
      FailAllocationsForTesting(-1);
      if (status.ok()) break;
      CHECK(status.code() == StatusCode::kOutOfMemory);
      CHECK(contents() == before);
    }
    CHECK(point > 0 && point < 500);
  }
}

TEST(EstimateMemoryOfBoundedTables) {
  for (EvictStrategy strategy : {EvictStrategy::kLru, EvictStrategy::kLfu}) {
    const TableSpec spec = BoundedSpec(strategy, 200000);
    std::unique_ptr<Table> table = MakeTable(spec);
    AssignRange(*table, 0, 300000);
    TableStats estimate;
    CHECK_OK(EstimateMemory(spec, 1000000, 0, &estimate));
    const TableStats stats = table->stats();
    CHECK_EQ(estimate.size, stats.size);
    const double ratio =
        static_cast<double>(stats.index_bytes) / static_cast<double>(estimate.index_bytes);
    std::printf("  index: %.3f of the estimate, %.1f bytes a key\n", ratio,
                static_cast<double>(stats.index_bytes) / 200000);
    CHECK(ratio > 0.8 && ratio < 1.25);
  }
}

TEST(FindOrInsertOfAnUnboundedTable) {
  for (ValueType type : kValueTypes) {
    std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kInt64, type, 3));
    AssignRange(*table, 0, 5);
    const TestKeys keys(KeyType::kInt64, {3, 7, 7});
    for (Defaults::Kind kind : {Defaults::kInitial, Defaults::kOneRow}) {
      const TestRows defaults = TestRows::Make(type, 1, 3, [](size_t, size_t) { return 9; });
      TestRows values(type, 3, 3);
      Flags exists(3);
      CHECK_OK(table->training().FindOrInsert(keys.batch(), {kind, defaults.in()}, values.out(),
                                              exists.data()));
      const int missing = kind == Defaults::kInitial ? 0 : Kept(type, 9);
      CHECK(values.Row(0) == std::vector<int>(3, 1));
      CHECK(values.Row(1) == std::vector<int>(3, missing));
      CHECK(values.Row(2) == std::vector<int>(3, missing));
      CHECK(exists[0] && !exists[1] && exists[2]);
      const TestKeys seven(KeyType::kInt64, {7});
      size_t removed = 0;
      CHECK_OK(table->Remove(seven.batch(), &removed));
      CHECK_EQ(removed, 1u);
    }
    const TableStats stats = table->stats();
    CHECK_EQ(stats.hits, 4u);
    CHECK_EQ(stats.misses, 2u);
    CHECK_EQ(stats.updates, 0u);
    CHECK_OK(table->training().AssignExisting(keys.batch(), TestRows::Make(type, 3, 3, One).in()));
    CHECK_EQ(table->size(), 5u);
    CHECK_EQ(table->stats().exists_mismatch, 2u);
  }
}

}  // namespace
}  // namespace tfra::test
