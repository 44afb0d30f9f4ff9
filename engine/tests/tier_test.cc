// Tiered tables: tests of the contract with nearly all rows in the file, and what only they do.
#include <filesystem>
#include <random>

#include "bounded_helpers.h"
#include "row_file.h"
#include "row_tiers.h"
#include "whole_rows.h"

namespace tfra::test {
namespace {

// The least there can be: four rows of each shard in memory.
const Tiers kTiny = {1, ""};

void RunTiered(const Bound& bound, const std::vector<std::string>& names) {
  BoundOfTests() = bound;
  TiersOfTests() = kTiny;
  for (const std::string& name : names) {
    size_t found = 0;
    for (const TestCase& test : std::vector<TestCase>(AllTests())) {
      if (test.name.rfind(name, 0) != 0) continue;
      const int before = FailureCount();
      test.body();
      if (FailureCount() != before) std::printf("  failed tiered: %s\n", test.name.c_str());
      ++found;
    }
    CHECK(found > 0);
  }
  BoundOfTests() = Bound();
  TiersOfTests() = Tiers();
}

TEST(TieredTablesKeepTheContract) {
  RunTiered({}, {"TableBasics",     "TableEmpty",
                 "TableExport",     "TableAccumulate",
                 "TableDuplicates", "TableGradients",
                 "TableResults",    "TableSlots",
                 "TableMetadata",   "TableStringsOfOneHash",
                 "ModelAgrees",     "RemoveIf",
                 "CopyWithRule",    "IgnoredKeys",
                 "KeepModel",       "Restrict",
                 "Expire",          "PooledLookupIs",
                 "Histogram",       "EvictedRowsAre",
                 "CustomSlotsAre"});
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

}  // namespace
}  // namespace tfra::test
