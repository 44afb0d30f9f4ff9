// Which rows leave, and what the rows are like: Restrict, Expire, Histograms, Touch. Random
// histories are in table_keep_model_test.cc.
#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "whole_rows.h"

namespace tfra::test {
namespace {

TableSpec WithMetadata(KeyType key_type, ValueType type, int64_t dim) {
  TableSpec spec = SpecOf(key_type, type, dim);
  spec.metadata = true;
  return spec;
}

std::set<int64_t> KeysOf(Table& table) {
  const ExportBatch batch = Exported(table);
  const std::vector<int64_t> numbers = NumbersOf(batch.int_keys, batch.string_keys);
  return std::set<int64_t>(numbers.begin(), numbers.end());
}

// Assigns the numbers to keys of these numbers, with the metadata.
void AssignWith(Table& table, const std::vector<int64_t>& numbers,
                const std::vector<RowMetadata>& metadata) {
  const TestKeys keys(table.spec().key_type, numbers);
  const TestRows rows =
      TestRows::Make(table.spec().value_type, numbers.size(), 1,
                     [&](size_t i, size_t) { return static_cast<int>(numbers[i]); });
  CHECK_OK(table.Assign(keys.batch(), rows.in(), nullptr, metadata.data()));
}

// All of equal time and count: exactly `keep` stay, the same ones whatever the order they came in,
// the number of threads, or the size of the index.
TEST(RestrictOfEqualRowsDependsOnKeysOnly) {
  const size_t n = 30000;
  std::vector<int64_t> numbers(n);
  for (size_t i = 0; i < n; ++i) numbers[i] = static_cast<int64_t>(i) - 100;
  for (KeyType key_type : kKeyTypes) {
    for (Ranking ranking : {Ranking::kNewest, Ranking::kMostFrequent}) {
      std::vector<std::set<int64_t>> kept;
      for (int way = 0; way < 4; ++way) {
        const ScopedNumThreads scoped(way % 2 == 0 ? 1 : 4);
        if (way == 1) std::reverse(numbers.begin(), numbers.end());
        if (way == 2) std::shuffle(numbers.begin(), numbers.end(), std::mt19937_64(5));
        std::unique_ptr<Table> table = MakeTable(WithMetadata(key_type, ValueType::kInt32, 1));
        table->upkeep().SetClock(50);
        if (way == 3) CHECK_OK(table->Reserve(200000));
        for (size_t begin = 0; begin < n; begin += 10000) {
          AssignWith(*table,
                     {numbers.begin() + static_cast<ptrdiff_t>(begin),
                      numbers.begin() + static_cast<ptrdiff_t>(begin + 10000)},
                     std::vector<RowMetadata>(10000, {50, 1}));
        }
        kept.push_back({});
        for (uint64_t keep : {n, n - 1, size_t{12345}, size_t{12344}, size_t{3}, size_t{0}}) {
          uint64_t evicted = 0;
          const uint64_t before = table->size();
          CHECK_OK(table->upkeep().Restrict(keep, ranking, &evicted));
          CHECK_EQ(table->size(), keep);
          CHECK_EQ(evicted, before - keep);
          if (keep == 12345) kept.back() = KeysOf(*table);
        }
        CHECK_EQ(table->stats().evictions, n);
        CHECK_EQ(table->stats().restrict_runs, 6u);
        CHECK_EQ(table->stats().string_bytes, 0u);
      }
      for (const auto& keys : kept) CHECK(keys == kept[0]);
    }
  }
}

// Many rows whose metadata is all over the range, or in the midst of a crowd.
TEST(RestrictOfManyRowsLeavesTheBest) {
  std::mt19937_64 random(1);
  const size_t n = 150000 / kSlowdown;
  std::vector<int64_t> numbers(n);
  for (size_t i = 0; i < n; ++i) numbers[i] = static_cast<int64_t>(i);
  for (uint32_t mask : {0u, 1u, 0xFFu, 0xFFFFFFFFu}) {
    for (Ranking ranking : {Ranking::kNewest, Ranking::kMostFrequent}) {
      std::unique_ptr<Table> table = MakeTable(WithMetadata(KeyType::kInt64, ValueType::kInt32, 1));
      std::vector<RowMetadata> metadata(n);
      std::vector<uint64_t> ranks(n);
      for (size_t i = 0; i < n; ++i) {
        metadata[i] = {static_cast<uint32_t>(random()) & mask,
                       static_cast<uint32_t>(random()) & mask};
        const uint64_t time = metadata[i].time, count = metadata[i].count;
        ranks[i] = ranking == Ranking::kNewest ? time << 32 | count : count << 32 | time;
      }
      AssignWith(*table, numbers, metadata);
      std::vector<uint64_t> sorted = ranks;
      std::sort(sorted.begin(), sorted.end());
      for (size_t keep : {n - n / 7, n / 2, n / 100, size_t{1}}) {
        uint64_t evicted = 0;
        CHECK_OK(table->upkeep().Restrict(keep, ranking, &evicted));
        CHECK_EQ(table->size(), keep);
        const uint64_t last_gone = sorted[n - keep - 1];
        Flags exists(n);
        CHECK_OK(table->Contains(KeyBatch(numbers.data(), n), exists.data()));
        size_t wrong = 0;
        for (size_t i = 0; i < n; ++i) {
          wrong += (ranks[i] > last_gone && !exists[i]) || (ranks[i] < last_gone && exists[i]);
        }
        CHECK_EQ(wrong, 0u);
      }
    }
  }
}

// The largest time and count there are, which rows restored from elsewhere may have.
TEST(RestrictOfRowsAtTheEndOfTheRange) {
  constexpr uint32_t kMax = UINT32_MAX;
  for (Ranking ranking : {Ranking::kNewest, Ranking::kMostFrequent}) {
    for (uint64_t keep : {0, 1, 2, 3, 50}) {
      std::unique_ptr<Table> table = MakeTable(WithMetadata(KeyType::kInt64, ValueType::kInt32, 1));
      std::vector<int64_t> numbers;
      std::vector<RowMetadata> metadata;
      for (int64_t i = 0; i < 100; ++i) {
        numbers.push_back(i);
        metadata.push_back(i < 50 ? RowMetadata{1, 1} : RowMetadata{kMax, kMax});
      }
      AssignWith(*table, numbers, metadata);
      uint64_t evicted = 0;
      CHECK_OK(table->upkeep().Restrict(keep, ranking, &evicted));
      CHECK_EQ(evicted, 100 - keep);
      CHECK_EQ(table->size(), keep);
      for (int64_t key : KeysOf(*table)) CHECK(key >= 50);
    }
  }
}

TEST(RestrictOfAnEmptyTable) {
  std::unique_ptr<Table> table = MakeTable(WithMetadata(KeyType::kString, ValueType::kString, 1));
  for (uint64_t keep : {uint64_t{0}, uint64_t{1}, UINT64_MAX}) {
    uint64_t evicted = 7;
    CHECK_OK(table->upkeep().Restrict(keep, Ranking::kNewest, &evicted));
    CHECK_EQ(evicted, 0u);
  }
}

// What callers choose themselves is counted as what Restrict chooses.
TEST(EvictedKeysAreCounted) {
  for (KeyType key_type : {KeyType::kInt64, KeyType::kString}) {
    std::unique_ptr<Table> table = MakeTable(SpecOf(key_type, ValueType::kFloat32, 1));
    const TestKeys keys = TestKeys::Range(key_type, 0, 100),
                   some = TestKeys::Range(key_type, 90, 120);
    AssignNumbers(*table, keys, [](size_t, size_t) { return 1; });
    size_t evicted = 0, removed = 0;
    CHECK_OK(table->upkeep().Evict(some.batch(), &evicted));
    CHECK_EQ(evicted, 10u);
    CHECK_OK(table->upkeep().Evict(some.batch(), &evicted));
    CHECK_EQ(evicted, 0u);
    CHECK_OK(table->Remove(keys.batch(), &removed));
    CHECK_EQ(removed, 90u);
    const TableStats stats = table->stats();
    CHECK_EQ(stats.evictions, 10u);
    CHECK_EQ(stats.removals, 90u);
    CHECK_EQ(stats.restrict_runs, 2u);
    CHECK_EQ(stats.size, 0u);
  }
}

TEST(WhatNeedsMetadataSaysSo) {
  std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kInt64, ValueType::kFloat32, 1));
  const TestKeys keys(KeyType::kInt64, {1});
  AssignNumbers(*table, keys, [](size_t, size_t) { return 1; });
  uint64_t count = 0;
  RowMetadata metadata;
  ExpiryRule by_time, by_trained_norm;
  by_time.written_before = 5;
  by_trained_norm.norm_below = 100;
  for (const Status& status :
       {table->upkeep().Restrict(0, Ranking::kNewest, &count), table->upkeep().Touch(keys.batch()),
        table->upkeep().LookupMetadata(keys.batch(), &metadata, nullptr),
        table->upkeep().Expire(by_time, &count), table->upkeep().Expire(by_trained_norm, &count)}) {
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(status.message().find("metadata, received") != std::string::npos);
  }
  CHECK_EQ(table->size(), 1u);
  CHECK_EQ(table->stats().restrict_runs, 0u);
}

TEST(ExpireByNormNeedsFloatingValues) {
  for (ValueType type : {ValueType::kInt64, ValueType::kBool, ValueType::kString}) {
    std::unique_ptr<Table> table = MakeTable(WithMetadata(KeyType::kInt64, type, 1));
    AssignNumbers(*table, TestKeys(KeyType::kInt64, {1}), [](size_t, size_t) { return 1; });
    ExpiryRule rule;
    rule.norm_below = 100;
    rule.written_before = UINT32_MAX;
    uint64_t expired = 0;
    const Status status = table->upkeep().Expire(rule, &expired);
    CHECK(!status.ok());
    CHECK(status.message().find(NameOf(type)) != std::string::npos);
    CHECK_EQ(table->size(), 1u);
  }
}

TEST(ExpireByNormAloneNeedsNoMetadata) {
  for (ValueType type :
       {ValueType::kFloat32, ValueType::kFloat16, ValueType::kBfloat16, ValueType::kFloat64}) {
    std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kString, type, 2));
    // Norms 0, 5, 10, .., 45.
    AssignNumbers(*table, TestKeys::Range(KeyType::kString, 0, 10),
                  [](size_t i, size_t j) { return static_cast<int>(i * (j == 0 ? 3 : 4)); });
    ExpiryRule rule;
    rule.norm_writes = 0;
    for (double below : {0.0, 1e-3, 5.0, 5.001, 44.9}) {
      rule.norm_below = below;
      uint64_t expired = 0;
      CHECK_OK(table->upkeep().Expire(rule, &expired));
      size_t left = 0;
      for (int i = 0; i < 10; ++i) left += !(5 * i < below);
      CHECK_EQ(table->size(), left);
    }
    CHECK_EQ(table->stats().expirations, 9u);
    CHECK_EQ(table->stats().removals, 0u);
  }
}

// What is not a number is not small either; and it stands out in the histogram.
TEST(NormsThatAreNoNumbers) {
  std::unique_ptr<Table> table = MakeTable(WithMetadata(KeyType::kInt64, ValueType::kFloat32, 2));
  const std::vector<float> values = {
      std::nanf(""), 0, std::numeric_limits<float>::infinity(), 1, 0, 0, 1e30f, 0, 1e-30f, 0};
  CHECK_OK(table->Assign(TestKeys::Range(KeyType::kInt64, 0, 5).batch(), values.data()));
  RowHistograms histograms;
  CHECK_OK(table->upkeep().Histograms(&histograms));
  CHECK_EQ(histograms.norm[0], 2u);
  CHECK_EQ(histograms.norm[63], 3u);
  ExpiryRule rule;
  rule.norm_below = 1e20;
  uint64_t expired = 0;
  CHECK_OK(table->upkeep().Expire(rule, &expired));
  CHECK((KeysOf(*table) == std::set<int64_t>{0, 1, 3}));
}

// A bin begins at its number, and ends right before the next one's.
TEST(HistogramBinsDouble) {
  std::unique_ptr<Table> table = MakeTable(WithMetadata(KeyType::kInt64, ValueType::kFloat32, 1));
  const auto only = [](const auto& bins) {
    size_t place = bins.size();
    for (size_t i = 0; i < bins.size(); ++i) {
      if (bins[i] == 0) continue;
      CHECK_EQ(bins[i], 1u);
      CHECK_EQ(place, bins.size());
      place = i;
    }
    return place;
  };
  const TestKeys key(KeyType::kInt64, {1});
  constexpr uint32_t kNow = 4000000000u;
  table->upkeep().SetClock(kNow);
  const auto check = [&](float value, uint32_t number, size_t norm_bin, size_t number_bin) {
    const RowMetadata metadata{kNow - number, number};
    CHECK_OK(table->Assign(key.batch(), &value, nullptr, &metadata));
    RowHistograms histograms;
    CHECK_OK(table->upkeep().Histograms(&histograms));
    CHECK_EQ(only(histograms.age), number_bin);
    CHECK_EQ(only(histograms.writes), number_bin);
    CHECK_EQ(only(histograms.norm), norm_bin);
  };
  check(0.0f, 0, 0, 0);
  for (uint32_t i = 0; i < 31; ++i) {
    const float power = std::ldexp(1.0f, static_cast<int>(i));
    check(power, 1u << i, i + 32, i + 1);
    check(-std::nextafter(2 * power, 0.0f), (2u << i) - 1, i + 32, i + 1);
    check(1 / power, 1u << i, 32 - i, i + 1);
  }
  check(0x1p31f, kNow, 63, 32);
  check(0x1p32f, kNow, 63, 32);
  // Written in what is now the future.
  const RowMetadata later{kNow, 1};
  const float one = 1;
  CHECK_OK(table->Assign(key.batch(), &one, nullptr, &later));
  table->upkeep().SetClock(kNow - 5);
  RowHistograms histograms;
  CHECK_OK(table->upkeep().Histograms(&histograms));
  CHECK_EQ(only(histograms.age), 0u);
}

TEST(HistogramsOfWhatTheTableHas) {
  RowHistograms histograms;
  histograms.age[3] = histograms.norm[3] = 9;
  std::unique_ptr<Table> bare = MakeTable(SpecOf(KeyType::kInt64, ValueType::kFloat64, 1));
  AssignNumbers(*bare, TestKeys::Range(KeyType::kInt64, 0, 20000),
                [](size_t, size_t) { return 1; });
  CHECK_OK(bare->upkeep().Histograms(&histograms));
  CHECK(histograms.age == RowHistograms().age);
  CHECK(histograms.writes == RowHistograms().writes);
  CHECK_EQ(histograms.norm[32], 20000u);
  std::unique_ptr<Table> whole = MakeTable(WithMetadata(KeyType::kInt64, ValueType::kString, 1));
  AssignNumbers(*whole, TestKeys::Range(KeyType::kInt64, 0, 50), [](size_t, size_t) { return 1; });
  CHECK_OK(whole->upkeep().Histograms(&histograms));
  CHECK_EQ(histograms.writes[1], 50u);
  CHECK(histograms.norm == RowHistograms().norm);
}

TEST(CountsStayAtTheirMaximum) {
  TableSpec spec = WithMetadata(KeyType::kInt64, ValueType::kFloat32, 1);
  spec.rule.kind = RuleKind::kSgd;
  std::unique_ptr<Table> table = MakeTable(spec);
  AssignWith(*table, {1}, {{5, UINT32_MAX - 1}});
  const TestKeys twice(KeyType::kInt64, {1, 1});
  const std::vector<float> zeros(2);
  RowMetadata metadata;
  for (int round = 0; round < 3; ++round) {
    CHECK_OK(table->upkeep().Touch(twice.batch()));
    CHECK_OK(
        table->training().ApplyGradients(twice.batch(), zeros.data(), ValueType::kFloat32, {}));
    CHECK_OK(table->Assign(twice.batch(), zeros.data()));
    CHECK_OK(
        table->upkeep().LookupMetadata(TestKeys(KeyType::kInt64, {1}).batch(), &metadata, nullptr));
    CHECK_EQ(metadata.count, UINT32_MAX);
  }
}

// There is no initial value of strings that a key could get.
TEST(TouchLetsNoKeyIntoATableOfStrings) {
  std::unique_ptr<Table> table = MakeTable(WithMetadata(KeyType::kString, ValueType::kString, 2));
  table->upkeep().SetClock(5);
  AssignNumbers(*table, TestKeys(KeyType::kString, {1}), [](size_t, size_t) { return 3; });
  table->upkeep().SetClock(9);
  const TestKeys keys(KeyType::kString, {1, 2, 1});
  CHECK_OK(table->upkeep().Touch(keys.batch(), NewKeys::kInsert));
  CHECK((KeysOf(*table) == std::set<int64_t>{1}));
  std::vector<RowMetadata> metadata(3);
  CHECK_OK(table->upkeep().LookupMetadata(keys.batch(), metadata.data(), nullptr));
  CHECK_EQ(metadata[0].time, 9u);
  CHECK_EQ(metadata[0].count, 2u);
  CHECK_EQ(metadata[1].count, 0u);
  CHECK_EQ(table->stats().not_admitted, 1u);
}

// Rows that leave make room for others.
TEST(EvictedRowsAreUsedAgain) {
  for (KeyType key_type : kKeyTypes) {
    std::unique_ptr<Table> table = MakeTable(WithMetadata(key_type, ValueType::kString, 2));
    uint64_t row_bytes = 0, evicted = 0;
    for (int64_t round = 0; round < 10; ++round) {
      table->upkeep().SetClock(static_cast<uint32_t>(round + 1));
      const TestKeys keys = TestKeys::Range(key_type, round * 5000, round * 5000 + 10000);
      AssignNumbers(*table, keys, [](size_t i, size_t) { return static_cast<int>(i % 100); });
      if (round % 2 == 0) {
        CHECK_OK(table->upkeep().Restrict(10000, Ranking::kNewest, &evicted));
      } else {
        ExpiryRule rule;
        rule.written_before = static_cast<uint32_t>(round + 1);
        CHECK_OK(table->upkeep().Expire(rule, &evicted));
      }
      CHECK_EQ(evicted, round == 0 ? 0u : 5000u);
      CHECK_EQ(table->size(), 10000u);
      if (round == 1) row_bytes = table->stats().row_bytes;
      if (round > 1) CHECK(table->stats().row_bytes <= row_bytes * 11 / 10);
    }
    const ContentsMap contents = Contents(*table);
    const TestKeys last = TestKeys::Range(key_type, 45000, 55000);
    for (size_t i = 0; i < last.size(); ++i) {
      CHECK(contents.at(last.Name(i)) == std::vector<int>(2, static_cast<int>(i % 100)));
    }
  }
}

}  // namespace
}  // namespace tfra::test
