// Bounded tables: promises of tfra/table.h that bounded_model_test.cc does not check.
#include <algorithm>
#include <random>
#include <set>

#include "bounded_helpers.h"
#include "scores/scores.h"

namespace tfra::test {
namespace {

// A bound that is not reached changes nothing: tests of other tables pass.
TEST(BoundedTablesKeepTheContract) {
  RunTestsWith({int64_t{1} << 20, EvictStrategy::kLfu}, {},
               {"TableBasics",        "TableEmpty",      "TableExport",           "TableAccumulate",
                "TableDuplicates",    "TableGradients",  "TableResults",          "TableSlots",
                "TableMetadata",      "TableErrors",     "TableStringsOfOneHash", "ModelAgrees",
                "Concurrent",         "RemoveIf",        "CopyWithRule",          "OutOfMemory",
                "ClearNeedsNoMemory", "DuplicatesDoNot", "MismatchedKeys",        "RemovedRows",
                "ShrinkGives"});
  RunTestsWith(
      {kExactCapacity, EvictStrategy::kLru}, {},
      {"TableBasics", "TableAccumulate", "TableDuplicates", "ModelAgreesWithSeveralThreads",
       "ConcurrentRemoval", "ConcurrentShrink", "ConcurrentUpdates"});
}

TEST(BoundedTableFillsAndNeverExceeds) {
  const int64_t max_capacity = 100000 / kSlowdown, batch = 7001;
  for (KeyType key_type : kKeyTypes) {
    for (EvictStrategy strategy : {EvictStrategy::kLru, EvictStrategy::kLfu}) {
      std::unique_ptr<Table> table = MakeTable(BoundedSpec(strategy, max_capacity, key_type));
      // The table takes max_capacity keys, and none is evicted.
      AssignRange(*table, 0, max_capacity);
      CHECK_EQ(table->size(), static_cast<uint64_t>(max_capacity));
      CHECK_EQ(table->stats().evictions + table->stats().score_too_low, 0u);
      const TableStats filled = table->stats();
      CHECK_EQ(filled.capacity, static_cast<uint64_t>(max_capacity));
      for (int64_t next = max_capacity; next < 10 * max_capacity; next += batch) {
        AssignRange(*table, next, next + batch);
        CHECK(table->size() <= static_cast<uint64_t>(max_capacity));
      }
      const TableStats stats = table->stats();
      CHECK(stats.size >= static_cast<uint64_t>(max_capacity * 99 / 100));
      CHECK_EQ(stats.inserts - stats.evictions, stats.size);
      CHECK_EQ(stats.row_bytes, filled.row_bytes);
      CHECK(stats.index_bytes <= filled.index_bytes * 13 / 10 + (4 << 20));
      CHECK_EQ(Contents(*table).size(), stats.size);
      if (strategy != EvictStrategy::kLru) continue;
      // The last max_capacity / 2 keys are in the table, except a few by chance.
      const TestKeys recent =
          TestKeys::Range(key_type, 10 * max_capacity - max_capacity / 2, 10 * max_capacity);
      CHECK(CountThere(*table, recent) >= recent.size() * 99 / 100);
    }
  }
}

TEST(BoundedTableTakesABatchLargerThanItself) {
  for (int64_t max_capacity : {1, 100, 5000}) {
    std::unique_ptr<Table> table = MakeTable(BoundedSpec(EvictStrategy::kLru, max_capacity));
    AssignRange(*table, 0, 20 * max_capacity);
    CHECK_EQ(table->size(), static_cast<uint64_t>(max_capacity));
    CHECK_EQ(table->stats().evictions, static_cast<uint64_t>(19 * max_capacity));
    if (max_capacity > kExactCapacity) continue;
    const TestKeys last = TestKeys::Range(KeyType::kInt64, 19 * max_capacity, 20 * max_capacity);
    CHECK_EQ(CountThere(*table, last), last.size());
  }
}

// The batch has many times more keys than a thread writes under one lock, each key twice.
TEST(BoundedFullTableTakesALargeBatch) {
  const int64_t max_capacity = 160'000 / kSlowdown, fresh = max_capacity / 8;
  for (KeyType key_type : kKeyTypes) {
    std::unique_ptr<Table> table =
        MakeTable(BoundedSpec(EvictStrategy::kLru, max_capacity, key_type));
    AssignRange(*table, 0, max_capacity);
    // New keys first, then half of the keys of the table. The other half may be evicted.
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < fresh; ++i) numbers.push_back(max_capacity + i);
    for (int64_t i = 0; i < max_capacity; i += 2) numbers.push_back(i);
    const size_t once = numbers.size();
    numbers.insert(numbers.end(), numbers.begin(), numbers.begin() + static_cast<long>(once));
    const TestKeys keys(key_type, numbers);
    AssignNumbers(*table, keys, [&](size_t i, size_t) { return static_cast<int>(i % 1000); });
    const TableStats stats = table->stats();
    CHECK_EQ(stats.size, static_cast<uint64_t>(max_capacity));
    CHECK_EQ(stats.evictions, static_cast<uint64_t>(fresh));
    CHECK_EQ(stats.score_too_low, uint64_t{0});
    const auto contents = Contents(*table);
    for (size_t i = once; i < numbers.size(); ++i) {
      CHECK(contents.at(keys.Name(i)) == std::vector<int>(2, static_cast<int>(i % 1000)));
    }
  }
}

// The max_capacity / 2 most frequent keys are in the table, except a few by chance.
TEST(BoundedLfuKeepsFrequentKeys) {
  struct Stream {
    double exponent;
    size_t batch;
    EvictStrategy strategy;
  };
  const int64_t max_capacity = 20000 / kSlowdown;
  const size_t vocabulary = static_cast<size_t>(20 * max_capacity);
  for (const Stream& stream :
       {Stream{1.05, 8192, EvictStrategy::kLfu}, Stream{1.05, 65536, EvictStrategy::kEpochLfu},
        Stream{0.8, 8192, EvictStrategy::kLfu}, Stream{1.2, 512, EvictStrategy::kLfu}}) {
    std::vector<double> sums(vocabulary);
    double sum = 0;
    for (size_t i = 0; i < vocabulary; ++i) {
      sums[i] = sum += std::pow(static_cast<double>(i + 1), -stream.exponent);
    }
    std::unique_ptr<Table> table =
        MakeTable(BoundedSpec(stream.strategy, max_capacity, KeyType::kInt64));
    std::mt19937_64 random(1);
    std::vector<std::pair<uint64_t, int64_t>> counts(vocabulary);
    for (size_t i = 0; i < vocabulary; ++i) counts[i] = {0, static_cast<int64_t>(i)};
    for (size_t done = 0; done < 10 * vocabulary; done += stream.batch) {
      std::vector<int64_t> numbers(stream.batch);
      for (int64_t& number : numbers) {
        const double draw = sum * static_cast<double>(random() >> 11) * 0x1p-53;
        number = std::lower_bound(sums.begin(), sums.end(), draw) - sums.begin();
        ++counts[static_cast<size_t>(number)].first;
      }
      AssignNumbers(*table, TestKeys(KeyType::kInt64, numbers), One);
    }
    const size_t half = static_cast<size_t>(max_capacity) / 2;
    std::partial_sort(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(half),
                      counts.end(), std::greater<>());
    std::vector<int64_t> top(half);
    for (size_t i = 0; i < half; ++i) top[i] = counts[i].second;
    const double kept = static_cast<double>(CountThere(*table, TestKeys(KeyType::kInt64, top))) /
                        static_cast<double>(half);
    std::printf("  exponent %.2f, batches of %zu: %.4f of the top keys\n", stream.exponent,
                stream.batch, kept);
    CHECK(kept >= 0.98);
    CHECK_EQ(table->size(), static_cast<uint64_t>(max_capacity));
  }
}

std::map<int64_t, uint64_t> ScoresOf(Table& table) {
  ExportBatch batch;
  CHECK_OK(table.ExportAll(&batch));
  std::map<int64_t, uint64_t> scores;
  for (size_t i = 0; i < batch.size; ++i) scores[batch.int_keys[i]] = batch.scores[i];
  return scores;
}

// Fills an empty table and goes on, with new keys, keys of the table and repeated keys.
TEST(BoundedResultsDoNotDependOnThreads) {
  for (EvictStrategy strategy :
       {EvictStrategy::kLru, EvictStrategy::kLfu, EvictStrategy::kEpochLru}) {
    for (int64_t max_capacity : {1000, 30000}) {
      std::vector<std::map<int64_t, uint64_t>> results;
      for (int threads : {1, 2, 4}) {
        const ScopedNumThreads scoped(threads);
        std::unique_ptr<Table> table = MakeTable(BoundedSpec(strategy, max_capacity));
        std::mt19937_64 random(2);
        for (int call = 0; call < 5; ++call) {
          std::vector<int64_t> numbers(20000);
          for (int64_t& number : numbers) number = static_cast<int64_t>(random() % 60000);
          AssignNumbers(*table, TestKeys(KeyType::kInt64, numbers), One);
        }
        CHECK_EQ(table->size(), static_cast<uint64_t>(max_capacity));
        results.push_back(ScoresOf(*table));
      }
      CHECK(results[0] == results[1]);
      CHECK(results[0] == results[2]);
    }
  }
}

// The size of the index decides which keys compete with each other, so it must not depend on the
// number of threads. Samples of such calls mislead: nearly all keys, or every 16th key, are new.
TEST(BoundedGrowthDoesNotDependOnThreads) {
  for (bool nearly_all : {true, false}) {
    for (int64_t max_capacity = 20000; max_capacity < 36000; max_capacity += 1300) {
      std::vector<std::map<int64_t, uint64_t>> results;
      for (int threads : {1, 4}) {
        const ScopedNumThreads scoped(threads);
        std::unique_ptr<Table> table = MakeTable(BoundedSpec(EvictStrategy::kLfu, max_capacity));
        const int64_t there = max_capacity * 47 / 100;
        AssignRange(*table, 0, there);
        std::mt19937_64 random(1);
        std::vector<int64_t> numbers(16384);
        for (size_t i = 0; i < numbers.size(); ++i) {
          const bool is_new = nearly_all ? random() % 8 != 0 : i % 16 == 0;
          numbers[i] = is_new ? 1'000'000 + static_cast<int64_t>(i / 16)
                              : static_cast<int64_t>(random() % static_cast<uint64_t>(there));
        }
        AssignNumbers(*table, TestKeys(KeyType::kInt64, numbers), One);
        for (int64_t first = 2'000'000; first < 2'000'000 + max_capacity; first += 1000) {
          AssignRange(*table, first, first + 1000);
        }
        results.push_back(ScoresOf(*table));
      }
      CHECK(results[0] == results[1]);
    }
  }
}

// The candidates near a hash are the keys of 16 buckets. If these are empty, LowestNear goes on.
TEST(LowestNearLooksAtTheNextBuckets) {
  RowArena arena(8);
  std::vector<Stripe> stripes(kStripes);
  Stripe& stripe = stripes[0];
  CHECK_OK(stripe.Create(0, true, &arena, 2000, {.scores = true}, 2000));
  std::lock_guard lock(stripe.mutex());
  std::mt19937_64 random(1);
  for (int i = 0; i < 1500; ++i) {
    const uint64_t key_bits = random() >> kStripeBits;
    stripe.Insert(key_bits, key_bits, static_cast<uint32_t>(i), {random() % 1000, {}});
  }
  const BucketArray& array = *stripe.array();
  const auto lowest_in = [&](uint64_t first, uint64_t buckets) {
    uint64_t lowest = kNoScore;
    for (uint64_t b = 0; b < buckets; ++b) {
      Bucket* bucket = array.buckets + (first + b) % array.count;
      for (uint32_t i = 0; i < kBucketEntries; ++i) {
        if (bucket->state.load() >> i & 1) lowest = std::min(lowest, stripe.score({bucket, i}));
      }
    }
    return lowest;
  };
  for (uint64_t home = 0; home < array.count; ++home) {
    const uint64_t hash = array.FirstPosition(home);
    CHECK_EQ(array.HomeOf(hash), home);
    const Candidate found = LowestNear(stripes.data(), hash);
    CHECK_EQ(found.score, lowest_in(home, kCandidateBuckets));
    CHECK_EQ(stripe.score(found.entry), found.score);
  }
  // Remove all keys but one.
  const Stripe::Entry last = LowestNear(stripes.data(), 0).entry;
  for (uint64_t b = 0; b < array.count; ++b) {
    for (uint32_t i = 0; i < kBucketEntries; ++i) {
      Bucket* bucket = array.buckets + b;
      const bool keep = bucket == last.bucket && i == last.index;
      if (bucket->state.load() >> i & 1 && !keep) stripe.Erase({bucket, i});
    }
  }
  for (uint64_t home = 0; home < array.count; ++home) {
    const Stripe::Entry found = LowestNear(stripes.data(), array.FirstPosition(home)).entry;
    CHECK(found.bucket == last.bucket && found.index == last.index);
  }
}
TEST(RejectedKeysAreRememberedByTheirCounts) {
  for (EvictStrategy strategy : {EvictStrategy::kLfu, EvictStrategy::kEpochLfu}) {
    for (bool remember : {true, false}) {
      TableSpec spec = BoundedSpec(strategy, 100);
      spec.bound.remember_counts = remember;
      std::unique_ptr<Table> table = MakeTable(spec);
      for (int round = 0; round < 5; ++round) AssignRange(*table, 0, 100);
      const TestKeys fresh(KeyType::kInt64, {1000});
      uint64_t score = 0;
      bool exists = false;
      for (uint64_t round = 1; round <= 5; ++round) {
        CHECK(!exists);
        AssignNumbers(*table, fresh, One);
        CHECK_OK(table->scores().Lookup(fresh.batch(), &score, &exists));
        CHECK_EQ(exists, remember && round == 5);
      }
      CHECK_EQ(score, remember ? 5u : 0u);
      CHECK_EQ(table->stats().score_too_low, remember ? 4u : 5u);
      // Clear also forgets the counts.
      CHECK_OK(table->Clear());
      AssignNumbers(*table, fresh, One);
      CHECK_OK(table->scores().Lookup(fresh.batch(), &score, &exists));
      CHECK_EQ(score, 1u);
    }
  }
}

TEST(ANewEpochOutlivesOldCounts) {
  std::unique_ptr<Table> table = MakeTable(BoundedSpec(EvictStrategy::kEpochLfu, 50));
  for (int round = 0; round < 9; ++round) AssignRange(*table, 0, 50);
  table->scores().SetEpoch(3);
  CHECK_EQ(table->scores().epoch(), 3u);
  AssignRange(*table, 40, 80);
  CHECK_EQ(CountThere(*table, TestKeys::Range(KeyType::kInt64, 40, 80)), 40u);
  uint64_t of_epoch = 0;
  CHECK_OK(table->scores().CountIf([](uint64_t score) { return score >> 32 == 3; }, &of_epoch));
  CHECK_EQ(of_epoch, 40u);
}

// An export has keys in the order of their hashes. The first keys must not take the room of later
// keys.
TEST(KeysInTheOrderOfAnExportKeepTheBest) {
  const int64_t max_capacity = 20000 / kSlowdown;
  const int64_t keys = 2 * max_capacity;
  std::unique_ptr<Table> all = MakeTable(BoundedSpec(EvictStrategy::kCustomized, keys));
  const auto scores_of = [](const std::vector<int64_t>& numbers) {
    return std::vector<uint64_t>(numbers.begin(), numbers.end());
  };
  AssignRange(*all, 0, keys);
  ExportBatch batch;
  CHECK_OK(all->ExportAll(&batch));
  CHECK_EQ(batch.size, static_cast<size_t>(keys));
  const std::vector<uint64_t> scores = scores_of(batch.int_keys);
  std::unique_ptr<Table> table = MakeTable(BoundedSpec(EvictStrategy::kCustomized, max_capacity));
  CHECK_OK(table->Assign(KeyBatch(batch.int_keys.data(), batch.size), batch.values.data(), nullptr,
                         nullptr, {Scores::kExact, scores.data()}, NewKeys::kInsert));
  CHECK(table->size() >= static_cast<uint64_t>(max_capacity * 99 / 100));
  const TestKeys best = TestKeys::Range(KeyType::kInt64, max_capacity, keys);
  CHECK(CountThere(*table, best) >= best.size() * 75 / 100);

  // Half of the keys are removed in that order. Later keys must be kept as in any other table.
  std::unique_ptr<Table> lru = MakeTable(BoundedSpec(EvictStrategy::kLru, max_capacity));
  AssignRange(*lru, 0, max_capacity);
  ExportBatch held;
  CHECK_OK(lru->ExportAll(&held));
  size_t removed;
  CHECK_OK(lru->Remove(KeyBatch(held.int_keys.data(), held.size / 2), &removed));
  for (int64_t next = keys; next < keys + 10 * max_capacity; next += 1000) {
    AssignRange(*lru, next, next + 1000);
  }
  const TestKeys last =
      TestKeys::Range(KeyType::kInt64, keys + 9 * max_capacity, keys + 10 * max_capacity);
  CHECK(CountThere(*lru, last) >= last.size() * 90 / 100);
}

// If saved rows and scores are assigned to a smaller table, the keys with the highest scores stay.
TEST(RestoringKeepsTheBest) {
  std::unique_ptr<Table> large = MakeTable(BoundedSpec(EvictStrategy::kLru, 2000));
  AssignRange(*large, 0, 2000);
  ExportBatch batch;
  CHECK_OK(large->ExportAll(&batch));
  std::unique_ptr<Table> small = MakeTable(BoundedSpec(EvictStrategy::kLru, 700));
  CHECK_OK(small->Assign(KeyBatch(batch.int_keys.data(), batch.size), batch.values.data(), nullptr,
                         nullptr, {Scores::kExact, batch.scores.data()}));
  CHECK_EQ(CountThere(*small, TestKeys::Range(KeyType::kInt64, 1300, 2000)), 700u);
  // Keys that are written now are newer than all restored keys.
  AssignRange(*small, 5000, 5500);
  CHECK_EQ(CountThere(*small, TestKeys::Range(KeyType::kInt64, 1800, 2000)), 200u);
  CHECK_EQ(CountThere(*small, TestKeys::Range(KeyType::kInt64, 5000, 5500)), 500u);
}
TEST(BoundedErrorsChangeNothing) {
  const auto code = [](const Status& status) { return status.code(); };
  const StatusCode invalid = StatusCode::kInvalidArgument;
  std::unique_ptr<Table> table;
  for (int64_t max_capacity : {int64_t{-1}, INT64_MIN, INT64_MAX, int64_t{1} << 40}) {
    CHECK(code(Table::Create(BoundedSpec(EvictStrategy::kLru, max_capacity), &table)) == invalid);
  }
  TableSpec spec = BoundedSpec(EvictStrategy::kLru, 100);
  spec.initial_capacity = 101;
  CHECK(code(Table::Create(spec, &table)) == invalid);

  const TestKeys keys = TestKeys::Range(KeyType::kInt64, 0, 10);
  const std::vector<float> rows(20, 1.0f);
  std::vector<uint64_t> numbers(10, 1);
  const Scores counts{Scores::kCounts, numbers.data()}, exact{Scores::kExact, numbers.data()};
  std::unique_ptr<Table> lru = MakeTable(BoundedSpec(EvictStrategy::kLru, 100));
  CHECK(code(lru->Assign(keys.batch(), rows.data(), nullptr, nullptr, counts)) == invalid);
  CHECK_EQ(lru->size(), 0u);
  CHECK_OK(lru->Assign(keys.batch(), rows.data(), nullptr, nullptr, exact));

  std::unique_ptr<Table> unbounded = MakeTable(SpecOf(KeyType::kInt64, ValueType::kFloat32, 2));
  const auto all = [](uint64_t) { return true; };
  uint64_t count = 0;
  ExportBatch batch;
  CHECK(code(unbounded->Assign(keys.batch(), rows.data(), nullptr, nullptr, exact)) == invalid);
  CHECK(code(unbounded->scores().Lookup(keys.batch(), numbers.data(), nullptr)) == invalid);
  CHECK(code(unbounded->scores().Assign(keys.batch(), numbers.data())) == invalid);
  CHECK(code(unbounded->scores().CountIf(all, &count)) == invalid);
  CHECK(code(unbounded->scores().RemoveIf(all, &count)) == invalid);
  CHECK(code(unbounded->scores().ExportIf(all, &batch)) == invalid);
  CHECK_EQ(unbounded->size(), 0u);
  CHECK_OK(unbounded->scores().AssignAndEvict(keys.batch(), rows.data(), nullptr, nullptr, {},
                                              &batch, nullptr));
  CHECK_EQ(batch.size, 0u);
  CHECK_EQ(unbounded->size(), 10u);
  CHECK_OK(unbounded->ExportAll(&batch));
  CHECK(batch.scores.empty());
}

}  // namespace
}  // namespace tfra::test
