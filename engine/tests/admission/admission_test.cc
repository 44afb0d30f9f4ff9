// Which keys enter: exact counts, and what all kinds of admission share. Random histories are in
// table_keep_model_test.cc.
#include <limits>

#include "admission_helpers.h"

namespace tfra::test {
namespace {

TEST(InvalidAdmissionsSayWhatTheyGot) {
  struct Case {
    AdmissionSpec spec;
    std::string received;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Case> cases = {
      {MinCount(0), "received 0"},
      {Bloom(0, 100, 0.01), "received 0"},
      {Bloom(65536, 100, 0.01), "received 65536"},
      {Bloom(2, 0, 0.01), "received 0"},
      {Bloom(2, -5, 0.01), "received -5"},
      {Bloom(2, INT64_MAX, 0.01), "received 9223372036854775807"},
      {Bloom(2, 100, 0.0), "received 0"},
      {Bloom(2, 100, 1.0), "received 1"},
      {Bloom(2, 100, -0.5), "received -0.5"},
      {Bloom(2, 100, nan), "received nan"},
      {Probability(-0.1, 1), "received -0.1"},
      {Probability(1.5, 1), "received 1.5"},
      {Probability(nan, 1), "received nan"},
  };
  for (const Case& invalid : cases) {
    TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, 1);
    spec.admission = invalid.spec;
    std::unique_ptr<Table> table;
    TableStats estimate;
    for (const Status& status :
         {Table::Create(spec, &table), EstimateMemory(spec, 10, 0, &estimate)}) {
      CHECK(status.code() == StatusCode::kInvalidArgument);
      CHECK(status.message().find(invalid.received) != std::string::npos);
      if (status.message().find(invalid.received) == std::string::npos) {
        std::printf("  '%s' in '%s'\n", invalid.received.c_str(), status.message().c_str());
      }
    }
    CHECK(table == nullptr);
  }
}

// A key that is let in but finds the table full of higher scores has not entered: it waits on.
TEST(KeysThatAFullTableRejectsKeepTheirCount) {
  for (KeyType key_type : kKeyTypes) {
    TableSpec spec = AdmittingSpec(key_type, MinCount(2));
    spec.bound = {16, EvictStrategy::kLfu, false};
    std::unique_ptr<Table> table = MakeTable(spec);
    const TestKeys often = TestKeys::Range(key_type, 0, 16), rare(key_type, {100});
    for (int round = 0; round < 9; ++round) See(*table, often, NewKeys::kInsert);
    for (uint32_t sight = 1; sight <= 3; ++sight) {
      See(*table, rare);
      AdmissionState state;
      CHECK_OK(table->upkeep().ExportAdmission(&state));
      CHECK_EQ(state.seen.size(), 1u);
      CHECK_EQ(state.seen.empty() ? 0 : state.seen[0].count, sight);
    }
    See(*table, rare, NewKeys::kInsert);
    CHECK_EQ(table->stats().waiting, 1u);
    CHECK_EQ(table->stats().score_too_low, 3u);
    // There is room again.
    size_t removed = 0;
    CHECK_OK(table->Remove(TestKeys(key_type, {3}).batch(), &removed));
    See(*table, rare);
    CHECK_EQ(There(*table, rare).Count(), 1u);
    CHECK_EQ(table->stats().waiting, 0u);
    RowMetadata metadata;
    CHECK_OK(table->upkeep().LookupMetadata(rare.batch(), &metadata, nullptr));
    CHECK_EQ(metadata.count, 4u);
  }
}

TEST(KeysEnterWhenSeenOftenEnough) {
  for (KeyType key_type : kKeyTypes) {
    for (uint32_t min_count : {1, 2, 5, 300}) {
      std::unique_ptr<Table> table = AdmittingTable(key_type, MinCount(min_count));
      const TestKeys keys(key_type, {1, 2, 1, 1});
      for (uint32_t sight = 1; sight <= min_count + 1; ++sight) {
        See(*table, keys);  // Duplicates in it count once.
        CHECK_EQ(table->size(), sight < min_count ? 0u : 2u);
        CHECK_EQ(table->stats().waiting, sight < min_count ? 2u : 0u);
        CHECK_EQ(table->stats().not_admitted, 2 * std::min(sight, min_count - 1));
      }
      CHECK_EQ(table->stats().inserts, 2u);
      CHECK_EQ(table->stats().updates, 2u);
    }
  }
}

// "A key is seen once by each call": also by those that write each duplicate.
TEST(DuplicatesAreSeenOnce) {
  for (KeyType key_type : kKeyTypes) {
    const TestKeys keys(key_type, {1, 1, 1});
    const std::vector<float> ones(6, 1.0f);
    Flags missing(3);
    const std::vector<std::pair<const char*, std::function<Status(Table&)>>> calls = {
        {"Assign",
         [&](Table& table) {
           return table.Assign(keys.batch(), ones.data(), nullptr, nullptr, {}, NewKeys::kAdmit);
         }},
        {"Accumulate",
         [&](Table& table) {
           return table.training().Accumulate(keys.batch(), ones.data(), missing.data(), {},
                                              NewKeys::kAdmit);
         }},
        {"AddToRows",
         [&](Table& table) {
           return table.training().AddToRows(keys.batch(), ones.data(), nullptr);
         }},
        {"ApplyGradients",
         [&](Table& table) {
           return table.training().ApplyGradients(keys.batch(), ones.data(), ValueType::kFloat32,
                                                  {});
         }},
        {"Touch", [&](Table& table) { return table.upkeep().Touch(keys.batch()); }}};
    for (const auto& [name, call] : calls) {
      for (const AdmissionSpec& spec : {MinCount(3), Bloom(3, 1000, 0.001)}) {
        std::unique_ptr<Table> table = AdmittingTable(key_type, spec);
        for (uint64_t size : {0, 0, 1}) {
          CHECK_OK(call(*table));
          CHECK_EQ(table->size(), size);
          if (table->size() != size) std::printf("  %s\n", name);
        }
      }
    }
  }
}

TEST(NewKeysDecideWhoEnters) {
  for (KeyType key_type : kKeyTypes) {
    std::unique_ptr<Table> table = AdmittingTable(key_type, MinCount(2));
    const std::vector<float> ones(10, 1.0f);
    const TestKeys keys(key_type, {1, 2});
    CHECK_OK(table->Assign(keys.batch(), ones.data(), nullptr, nullptr, {}, NewKeys::kDrop));
    CHECK_EQ(table->stats().waiting, 0u);  // Nothing that would insert has seen them.
    CHECK_EQ(table->stats().not_admitted, 2u);
    CHECK_OK(table->Assign(keys.batch(), ones.data(), nullptr, nullptr, {}, NewKeys::kAdmit));
    CHECK_EQ(table->stats().waiting, 2u);
    CHECK_OK(table->Assign(TestKeys(key_type, {1}).batch(), ones.data()));  // Enters anyway,
    CHECK_EQ(table->size(), 1u);
    CHECK_EQ(table->stats().waiting, 1u);  // and does not wait any more:
    size_t removed = 0;
    CHECK_OK(table->Remove(TestKeys(key_type, {1}).batch(), &removed));
    See(*table, TestKeys(key_type, {1}));  // Seen anew, for the first time.
    CHECK_EQ(table->size(), 0u);
    See(*table, TestKeys(key_type, {1}));
    CHECK_EQ(table->size(), 1u);
    // Rows that are there are written whatever is said of new keys.
    See(*table, TestKeys(key_type, {1}), NewKeys::kDrop);
    CHECK_EQ(table->stats().updates, 1u);
  }
}

TEST(AssignedMetadataIsThatOfKeysThatWereLetIn) {
  std::unique_ptr<Table> table = AdmittingTable(KeyType::kInt64, MinCount(3));
  table->upkeep().SetClock(100);
  const TestKeys key(KeyType::kInt64, {1});
  const std::vector<float> values = {1, 2};
  const RowMetadata metadata{7, 40};
  for (int sight = 0; sight < 3; ++sight) {
    CHECK_OK(table->Assign(key.batch(), values.data(), nullptr, &metadata, {}, NewKeys::kAdmit));
  }
  RowMetadata found;
  CHECK_OK(table->upkeep().LookupMetadata(key.batch(), &found, nullptr));
  CHECK_EQ(found.time, 7u);
  CHECK_EQ(found.count, 40u);
}

TEST(KeysThatLeaveMustBeSeenAnew) {
  for (KeyType key_type : kKeyTypes) {
    std::unique_ptr<Table> table = AdmittingTable(key_type, MinCount(2));
    const TestKeys keys = TestKeys::Range(key_type, 0, 100);
    for (uint32_t way = 0; way < 4; ++way) {
      table->upkeep().SetClock(10 + way);
      See(*table, keys);
      CHECK_EQ(table->size(), 0u);
      See(*table, keys);
      CHECK_EQ(table->size(), 100u);
      size_t removed = 0;
      uint64_t gone = 0;
      ExpiryRule rule;
      rule.written_before = 11 + way;
      if (way == 0) CHECK_OK(table->Remove(keys.batch(), &removed));
      if (way == 1) CHECK_OK(table->upkeep().Restrict(0, Ranking::kNewest, &gone));
      if (way == 2) CHECK_OK(table->upkeep().Expire(rule, &gone));
      if (way == 3) CHECK_OK(table->Clear());
      CHECK_EQ(table->size(), 0u);
    }
  }
}

TEST(WaitingKeysExpireAndAreCleared) {
  for (KeyType key_type : kKeyTypes) {
    std::unique_ptr<Table> table = AdmittingTable(key_type, MinCount(3));
    for (uint32_t now = 1; now <= 10; ++now) {
      table->upkeep().SetClock(now);
      See(*table, TestKeys::Range(key_type, 100 * now, 100 * now + 100));
    }
    See(*table, TestKeys::Range(key_type, 100, 150));  // Once more, at 10.
    ExpiryRule rule;
    rule.written_before = 4;
    uint64_t expired = 0;
    CHECK_OK(table->upkeep().Expire(rule, &expired));
    CHECK_EQ(expired, 0u);
    CHECK_EQ(table->stats().waiting, 750u);
    CHECK(table->stats().admission_bytes > 0);
    See(*table, TestKeys::Range(key_type, 100, 200));
    CHECK_EQ(table->size(), 50u);
    CHECK_OK(table->Clear());
    CHECK_EQ(table->stats().waiting, 0u);
    See(*table, TestKeys::Range(key_type, 1000, 1100));
    CHECK_EQ(table->size(), 0u);
  }
}

// Before a batch is written, there is room for all of it; keys that are kept out do not add to
// that.
TEST(RefusedKeysDoNotGrowTheTable) {
  for (const AdmissionSpec& spec : {MinCount(2), Bloom(2, 200000, 0.01), Probability(0, 1)}) {
    std::unique_ptr<Table> table = AdmittingTable(KeyType::kInt64, spec);
    std::unique_ptr<Table> roomy = AdmittingTable(KeyType::kInt64, spec);
    CHECK_OK(roomy->Reserve(20000));
    for (int64_t begin = 0; begin < 200000; begin += 10000) {
      See(*table, TestKeys::Range(KeyType::kInt64, begin, begin + 10000));
    }
    CHECK(table->size() < 2000);
    CHECK_EQ(table->stats().not_admitted + table->size(), 200000u);
    CHECK(table->stats().index_bytes <= roomy->stats().index_bytes);
    CHECK(table->stats().row_bytes <= 2000 * 16 + (64 << 10));
  }
}

TEST(WaitingKeysAreSavedAndRestored) {
  for (KeyType key_type : kKeyTypes) {
    // Two tables of different keys, one after the other into one.
    std::unique_ptr<Table> even = AdmittingTable(key_type, MinCount(3));
    std::unique_ptr<Table> odd = AdmittingTable(key_type, MinCount(3));
    std::unique_ptr<Table> both = AdmittingTable(key_type, MinCount(3));
    const auto numbers = [](int64_t begin, int64_t end, int64_t step) {
      std::vector<int64_t> some;
      for (int64_t i = begin; i < end; i += step) some.push_back(i);
      return some;
    };
    See(*even, TestKeys(key_type, numbers(0, 1000, 2)));
    See(*even, TestKeys(key_type, numbers(0, 500, 2)));
    odd->upkeep().SetClock(77);
    See(*odd, TestKeys(key_type, numbers(1, 1000, 2)));
    See(*both, TestKeys(key_type, numbers(5000, 6000, 1)));  // To be forgotten.
    AdmissionState state, more;
    CHECK_OK(even->upkeep().ExportAdmission(&state));
    CHECK_OK(odd->upkeep().ExportAdmission(&more));
    state.Append(more);
    CHECK_OK(both->upkeep().RestoreAdmission(state));
    CHECK_EQ(both->stats().waiting, 1000u);
    See(*both, TestKeys::Range(key_type, 0, 1000));
    CHECK_EQ(both->size(), 250u);
    See(*both, TestKeys::Range(key_type, 0, 1000));
    CHECK_EQ(both->size(), 1000u);
    CHECK_OK(both->upkeep().RestoreAdmission(AdmissionState()));
    CHECK_EQ(both->stats().waiting, 0u);
  }
}

// A state that does not fit is told from one that does, and changes nothing.
TEST(StatesOfOtherAdmissionsAreRefused) {
  const std::vector<AdmissionSpec> specs = {MinCount(3), Bloom(3, 1000, 0.01), Bloom(3, 1100, 0.01),
                                            Probability(0.5, 1)};
  std::vector<AdmissionState> states(specs.size());
  std::vector<std::unique_ptr<Table>> tables;
  for (size_t i = 0; i < specs.size(); ++i) {
    tables.push_back(AdmittingTable(KeyType::kInt64, specs[i]));
    See(*tables[i], TestKeys::Range(KeyType::kInt64, 0, 500));
    CHECK_OK(tables[i]->upkeep().ExportAdmission(&states[i]));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    for (size_t j = 0; j < specs.size(); ++j) {
      if (i == j) continue;
      const Status status = tables[i]->upkeep().RestoreAdmission(states[j]);
      CHECK(status.code() == StatusCode::kInvalidArgument);
      if (status.ok()) {
        std::printf("  spec %zu took the state of spec %zu\n", i, j);
        CHECK_OK(tables[i]->upkeep().RestoreAdmission(states[i]));
      }
    }
    AdmissionState after;
    CHECK_OK(tables[i]->upkeep().ExportAdmission(&after));
    CHECK(Same(states[i], after));
  }
  AdmissionState lacking = states[0];
  lacking.seen.pop_back();
  CHECK(tables[0]->upkeep().RestoreAdmission(lacking).code() == StatusCode::kInvalidArgument);
  std::unique_ptr<Table> strings = AdmittingTable(KeyType::kString, MinCount(3));
  CHECK(strings->upkeep().RestoreAdmission(states[0]).code() == StatusCode::kInvalidArgument);
  std::unique_ptr<Table> open = AdmittingTable(KeyType::kInt64, AdmissionSpec());
  CHECK(open->upkeep().RestoreAdmission(states[0]).code() == StatusCode::kInvalidArgument);
}

TEST(CopyWithRuleTakesTheHistoryAlong) {
  for (KeyType key_type : kKeyTypes) {
    for (const AdmissionSpec& spec : {MinCount(3), Bloom(3, 5000, 0.01), Probability(0.5, 1)}) {
      std::unique_ptr<Table> table = AdmittingTable(key_type, spec), copy;
      table->upkeep().SetClock(1234);
      for (int64_t begin : {0, 500, 700, 800}) {
        See(*table, TestKeys::Range(key_type, begin, begin + 1000));
      }
      uint64_t evicted = 0;
      CHECK_OK(table->upkeep().Restrict(table->size() - 10, Ranking::kNewest, &evicted));
      const TableStats before = table->stats();
      AdmissionState state, copied, left;
      CHECK_OK(table->upkeep().ExportAdmission(&state));
      RuleSpec adam;
      adam.kind = RuleKind::kAdam;
      CHECK_OK(table->CopyWithRule(adam, true, &copy));
      const TableStats after = copy->stats();
      for (uint64_t TableStats::* counter : std::initializer_list<uint64_t TableStats::*>{
               &TableStats::size, &TableStats::hits, &TableStats::misses, &TableStats::inserts,
               &TableStats::updates, &TableStats::removals, &TableStats::not_admitted,
               &TableStats::evictions, &TableStats::restrict_runs, &TableStats::waiting,
               &TableStats::admission_bytes}) {
        CHECK_EQ(after.*counter, before.*counter);
      }
      CHECK_EQ(copy->upkeep().clock(), 1234u);
      CHECK_OK(copy->upkeep().ExportAdmission(&copied));
      CHECK(Same(state, copied));
      // It is a copy: the table is as it was.
      CHECK_OK(table->upkeep().ExportAdmission(&left));
      CHECK(Same(state, left));
      // Both go on in the same way.
      See(*table, TestKeys::Range(key_type, 0, 3000));
      See(*copy, TestKeys::Range(key_type, 0, 3000));
      CHECK(Contents(*table).size() == Contents(*copy).size());
    }
  }
}

}  // namespace
}  // namespace tfra::test
