// Tiered tables: the tests of other tables with nearly all rows in the file, and tests of tiers.
#include <filesystem>
#include <functional>
#include <random>

#include "bounded_helpers.h"
#include "storage/row_file.h"
#include "storage/row_tiers.h"
#include "whole_rows.h"

namespace tfra::test {
namespace {

// The smallest memory: four rows of each stripe.
const Tiers kTiny = {1, ""};

void RunTiered(const Bound& bound, const std::vector<std::string>& names) {
  RunTestsWith(bound, kTiny, names);
}

TEST(TieredTablesKeepTheContract) {
  RunTiered({}, {"TableBasics",        "TableEmpty",
                 "TableExport",        "TableAccumulate",
                 "TableDuplicates",    "TableGradients",
                 "TableResults",       "TableSlots",
                 "TableMetadata",      "TableStringsOfOneHash",
                 "ModelAgrees",        "CallsOfNearlyAllNewKeys",
                 "RemoveIf",           "CopyWithRule",
                 "MismatchedKeys",     "KeepModel",
                 "Restrict",           "Expire",
                 "PooledLookupAgrees", "Histogram",
                 "EvictedRowsAre",     "CustomSlotsAre"});
}

TEST(TieredBoundedTablesKeepTheContract) {
  RunTiered(
      {int64_t{1} << 20, EvictStrategy::kLfu},
      {"TableBasics", "TableExport", "TableAccumulate", "TableDuplicates", "TableGradients",
       "TableSlots", "TableMetadata", "TableStringsOfOneHash", "ModelAgrees", "CopyWithRule"});
  RunTiered(
      {}, {"BoundedEvictions", "BoundedModel", "BoundedTableTakes", "BoundedResults", "BoundedLfu",
           "EvictedRowsTake", "EvictedStrings", "RestoringKeeps", "FindOrInsert"});
}

TEST(TieredTablesUnderManyThreads) { RunTiered({}, {"Concurrent", "BoundedUnder"}); }

TableSpec TieredSpec(KeyType key_type, int64_t dim, uint64_t fast_bytes = 1) {
  TableSpec spec = SpecOf(key_type, ValueType::kFloat32, dim);
  spec.tiers.fast_bytes = fast_bytes;
  return spec;
}

// Rows that are read once do not replace rows in memory, however many they are.
TEST(TieredLookupsOfManyRowsLeaveOthersInMemory) {
  const int64_t share = 4000 / kSlowdown, n = 10 * share, used = share / 3;
  const size_t row = 8 * sizeof(float);
  std::unique_ptr<Table> table =
      MakeTable(TieredSpec(KeyType::kInt64, 8, static_cast<uint64_t>(share) * row));
  for (int64_t begin = 0; begin < n; begin += share / 4) {
    AssignRange(*table, begin, begin + share / 4);
  }
  // The last rows move to memory. Removing other rows then leaves half of the memory free.
  AssignRange(*table, n - used, n);
  const TestKeys others = TestKeys::Range(KeyType::kInt64, n / 2, n - used);
  size_t removed;
  CHECK_OK(table->Remove(others.batch(), &removed));
  CHECK_EQ(removed, others.size());
  const auto look_up = [&](int64_t begin, int64_t end) {
    const TestKeys keys = TestKeys::Range(KeyType::kInt64, begin, end);
    TestRows rows(ValueType::kFloat32, keys.size(), 8);
    const uint64_t before = table->stats().fast_hits;
    CHECK_OK(table->Lookup(keys.batch(), {}, rows.out(), nullptr));
    return table->stats().fast_hits - before;
  };
  CHECK_EQ(look_up(n - used, n), static_cast<uint64_t>(used));
  const uint64_t written = table->stats().bytes_written;
  look_up(0, n / 2);
  CHECK_EQ(look_up(n - used, n), static_cast<uint64_t>(used));
  CHECK_EQ(table->stats().bytes_written, written);
}

TEST(TieredRowsComeAndGo) {
  for (KeyType key_type : kKeyTypes) {
    std::unique_ptr<Table> table = MakeTable(TieredSpec(key_type, 3));
    const size_t n = 5000;
    const TestKeys keys = TestKeys::Range(key_type, 0, n);
    const auto number = [](size_t i, size_t j) { return static_cast<int>((i + j) % 90); };
    AssignNumbers(*table, keys, number);
    for (int round = 0; round < 3; ++round) {
      for (size_t begin = 0; begin < n; begin += 100) {
        const auto some = TestKeys::Range(key_type, static_cast<int64_t>(begin),
                                          static_cast<int64_t>(begin + 100));
        TestRows rows(ValueType::kFloat32, 100, 3);
        Flags exists(100);
        CHECK_OK(table->Lookup(some.batch(), {}, rows.out(), exists.data()));
        CHECK_EQ(exists.Count(), 100u);
        for (size_t i = 0; i < 100; ++i) {
          for (size_t j = 0; j < 3; ++j) CHECK_EQ(rows.Row(i)[j], number(begin + i, j));
        }
      }
    }
    const TableStats stats = table->stats();
    CHECK_EQ(stats.size, n);
    CHECK_EQ(stats.fast_hits + stats.slow_hits, stats.hits);
    CHECK(stats.slow_hits > n);
    CHECK(stats.io_reads > 0 && stats.bytes_read >= stats.slow_hits * 12);
    CHECK(stats.io_writes > 0 && stats.bytes_written > 0);
    CHECK(stats.slow_bytes >= (n - 64 - 5000 / 4) * 12);
    CHECK_EQ(stats.fast_bytes, stats.row_bytes);
  }
}

// Rows that were not changed move back to their old records, without a write.
TEST(TieredReadingWritesNothing) {
  std::vector<float> rows(50 * 8);
  using Read = std::function<Status(Table&, const KeyBatch&)>;
  const Read reads[] = {
      [&](Table& table, const KeyBatch& keys) {
        return table.Lookup(keys, {}, rows.data(), nullptr);
      },
      // These calls change only metadata, which are not in the row.
      [&](Table& table, const KeyBatch& keys) {
        return table.training().FindOrInsert(keys, {}, rows.data(), nullptr);
      },
      [](Table& table, const KeyBatch& keys) { return table.upkeep().Touch(keys); },
  };
  for (const Bound& bound : {Bound{}, Bound{10000, EvictStrategy::kLru}}) {
    for (const Read& read : reads) {
      TableSpec spec = TieredSpec(KeyType::kInt64, 8);
      spec.metadata = true;
      spec.bound = bound;
      std::unique_ptr<Table> table = MakeTable(spec);
      AssignRange(*table, 0, 3000);
      // The first rounds still write the rows that AssignRange left in memory.
      for (int round = 0; round < 20; ++round) {
        const TableStats before = table->stats();
        for (int64_t begin = 0; begin < 3000; begin += 50) {
          CHECK_OK(read(*table, TestKeys::Range(KeyType::kInt64, begin, begin + 50).batch()));
        }
        const TableStats after = table->stats();
        CHECK(after.slow_hits > before.slow_hits + 2000);
        if (round > 10) CHECK_EQ(after.bytes_written, before.bytes_written);
      }
    }
  }
}

// A key that a batch has many times needs room once.
TEST(TieredDuplicatesNeedRoomOnce) {
  const uint64_t stride = 8 * sizeof(float);
  std::unique_ptr<Table> table = MakeTable(TieredSpec(KeyType::kInt64, 8, 6000 * stride));
  AssignRange(*table, 0, 2000);
  const std::vector<int64_t> same(5000, 100000);
  const std::vector<float> rows(same.size() * 8, 1.0f);
  CHECK_OK(table->Assign(KeyBatch(same.data(), same.size()), rows.data()));
  CHECK_EQ(table->size(), uint64_t{2001});
  CHECK_EQ(table->stats().bytes_written, uint64_t{0});
}

// With many more rows than fit into memory, memory stays within the budget, and the file does not
// grow without end while rows change.
TEST(TieredMemoryStaysWithinTheBudget) {
  const size_t dim = 64, stride = dim * 4;
  const uint64_t budget = 4000 * stride;
  std::unique_ptr<Table> table =
      MakeTable(TieredSpec(KeyType::kInt64, static_cast<int64_t>(dim), budget));
  const int64_t n = 40000 / (kSlowdown > 1 ? 4 : 1);
  std::mt19937_64 random(1);
  std::vector<float> rows(500 * dim, 1.0f);
  uint64_t file = 0;
  for (int round = 0; round < 6; ++round) {
    for (int64_t begin = 0; begin < n; begin += 500) {
      std::vector<int64_t> keys(500);
      for (size_t i = 0; i < 500; ++i) {
        keys[i] = round == 0 ? begin + static_cast<int64_t>(i)
                             : static_cast<int64_t>(random() % static_cast<uint64_t>(n));
      }
      CHECK_OK(table->Assign(KeyBatch(keys.data(), 500), rows.data()));
    }
    const TableStats stats = table->stats();
    CHECK(stats.fast_bytes <= budget * 11 / 10);
    if (round == 1) file = stats.slow_bytes;
    if (round > 1) CHECK(stats.slow_bytes <= file * 5 / 4);
    CHECK(stats.slow_bytes <= static_cast<uint64_t>(n) * stride * 3 / 2);
  }
  CHECK_EQ(table->size(), static_cast<uint64_t>(n));
  CHECK_OK(table->Clear());
  CHECK_OK(table->Shrink());
  CHECK_EQ(table->stats().slow_bytes, 0u);
  CHECK_EQ(table->stats().fast_bytes, 0u);
}

TEST(TieredFileHasNoName) {
  const auto directory = std::filesystem::temp_directory_path() / "tfra_tier_test";
  std::filesystem::create_directories(directory);
  TableSpec spec = TieredSpec(KeyType::kString, 4);
  spec.tiers.directory = directory.string();
  const auto open_files = [&] {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
      count += target.rfind(directory.string(), 0) == 0;
    }
    return count;
  };
  {
    std::unique_ptr<Table> table = MakeTable(spec);
    AssignRange(*table, 0, 2000);
    CHECK(table->stats().slow_bytes > 0);
    CHECK(std::filesystem::is_empty(directory));
    if (std::filesystem::exists("/proc/self/fd")) CHECK_EQ(open_files(), 1u);
  }
  if (std::filesystem::exists("/proc/self/fd")) CHECK_EQ(open_files(), 0u);
  CHECK(std::filesystem::is_empty(directory));
  std::filesystem::remove(directory);

  std::unique_ptr<Table> table;
  const Status status = Table::Create(spec, &table);
  CHECK(status.code() == StatusCode::kIoError);
  CHECK(status.message().find(directory.string()) != std::string::npos);
  CHECK(table == nullptr);
}

TEST(TieredTablesTakeNoStringValues) {
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kString, 2);
  spec.tiers.fast_bytes = 1000;
  std::unique_ptr<Table> table;
  const Status status = Table::Create(spec, &table);
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK(status.message().find("string values") != std::string::npos);
}

}  // namespace
}  // namespace tfra::test
