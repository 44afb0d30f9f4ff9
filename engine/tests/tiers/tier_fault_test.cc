// Files that fail: each read, write and growth in its turn. A call that fails does not change the
// table, which stays usable.
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <random>

#include "storage/row_file.h"
#include "whole_rows.h"

namespace tfra::test {
namespace {

constexpr int64_t kKeys = 3000;
constexpr int64_t kDim = 5;

using Call = std::function<Status(Table&)>;

TableSpec Spec(KeyType key_type, bool bounded) {
  TableSpec spec = SpecOf(key_type, ValueType::kFloat32, kDim);
  spec.rule.kind = RuleKind::kAdam;
  spec.metadata = true;
  spec.tiers.fast_bytes = 1;
  if (bounded) spec.bound = {kKeys, EvictStrategy::kLru};
  return spec;
}

std::unique_ptr<Table> Filled(const TableSpec& spec) {
  std::unique_ptr<Table> table = MakeTable(spec);
  table->upkeep().SetClock(7);
  AssignNumbers(*table, TestKeys::Range(spec.key_type, 0, kKeys),
                [](size_t i, size_t j) { return static_cast<int>((i + j) % 80); });
  return table;
}

void EndFaults() {
  for (IoKind kind : {IoKind::kRead, IoKind::kWrite, IoKind::kResize}) FailIoForTesting(kind, -1);
}

// Makes file operations of one kind fail after 0, 1, 2, .. successes, until `call` succeeds. A call
// that fails must not change the table.
void FailEverywhere(const TableSpec& spec, IoKind kind, const Call& call) {
  int failures = 0;
  for (int64_t successes = 0; successes < 2000; successes += successes < 40 ? 1 : 23) {
    std::unique_ptr<Table> table = Filled(spec);
    const RowsMap before = RowsOf(*table);
    FailIoForTesting(kind, successes);
    const Status status = call(*table);
    EndFaults();
    if (!status.ok()) {
      ++failures;
      CHECK(status.code() ==
            (kind == IoKind::kRead ? StatusCode::kIoError : StatusCode::kStorageFull));
      CHECK(status.message().find("bytes of the file for rows in ") != std::string::npos);
      CHECK(RowsOf(*table) == before);
    }
    // The same call then succeeds.
    CHECK_OK(call(*table));
    AssignNumbers(*table, TestKeys::Range(spec.key_type, 0, kKeys),
                  [](size_t i, size_t) { return static_cast<int>(i % 70); });
    const ContentsMap contents = Contents(*table);
    const TestKeys keys = TestKeys::Range(spec.key_type, 0, kKeys);
    for (size_t i = 0; i < keys.size(); ++i) {
      CHECK(contents.at(keys.Name(i)) == std::vector<int>(kDim, static_cast<int>(i % 70)));
    }
    if (status.ok()) {
      CHECK(failures > 0);
      return;
    }
  }
}

Status LookUp(Table& table, int64_t begin, int64_t end) {
  const TestKeys keys = TestKeys::Range(table.spec().key_type, begin, end);
  TestRows rows(ValueType::kFloat32, keys.size(), kDim);
  return table.Lookup(keys.batch(), {}, rows.out(), nullptr);
}

Status Train(Table& table, int64_t begin, int64_t end) {
  const TestKeys keys = TestKeys::Range(table.spec().key_type, begin, end);
  const std::vector<float> gradients(keys.size() * kDim, 1.0f);
  return table.training().ApplyGradients(keys.batch(), gradients.data(), ValueType::kFloat32,
                                         UpdateParams());
}

TEST(TierFaultsInReads) {
  for (KeyType key_type : kKeyTypes) {
    const TableSpec spec = Spec(key_type, key_type == KeyType::kString);
    FailEverywhere(spec, IoKind::kRead, [](Table& table) { return LookUp(table, 0, 300); });
    FailEverywhere(spec, IoKind::kRead, [](Table& table) { return Train(table, 0, 300); });
    FailEverywhere(spec, IoKind::kRead, [](Table& table) {
      ExportBatch batch;
      return table.ExportAll(&batch);
    });
    FailEverywhere(spec, IoKind::kRead, [](Table& table) {
      RowHistograms histograms;
      return table.upkeep().Histograms(&histograms);
    });
    FailEverywhere(spec, IoKind::kRead, [](Table& table) {
      std::unique_ptr<Table> copy;
      return table.CopyWithRule(RuleSpec{RuleKind::kSgd}, false, &copy);
    });
  }
}

// Metadata are in memory, so calls that need only metadata do not read the file.
TEST(TieredMetadataReadNoFile) {
  for (KeyType key_type : kKeyTypes) {
    const std::unique_ptr<Table> table = Filled(Spec(key_type, key_type == KeyType::kString));
    FailIoForTesting(IoKind::kRead, 0);
    uint64_t count = 0;
    CHECK_OK(table->upkeep().CountIf([](const RowMetadata& metadata) { return metadata.time == 7; },
                                     &count));
    CHECK_EQ(count, uint64_t{kKeys});
    const TestKeys keys = TestKeys::Range(key_type, 0, kKeys);
    std::vector<RowMetadata> metadata(keys.size());
    CHECK_OK(table->upkeep().LookupMetadata(keys.batch(), metadata.data(), nullptr));
    for (const RowMetadata& each : metadata) CHECK(each.time == 7 && each.count == 1);
    CHECK_OK(table->upkeep().Restrict(kKeys / 2, Ranking::kNewest, &count));
    CHECK_EQ(count, uint64_t{kKeys - kKeys / 2});
    CHECK_OK(table->upkeep().Expire({.written_before = 8}, &count));
    CHECK_EQ(count, uint64_t{kKeys / 2});
    CHECK_EQ(table->size(), uint64_t{0});
    EndFaults();
  }
}

// Histograms use the norms of floating values only, so for other values they do not read the file.
TEST(TieredHistogramsOfIntegersReadNoFile) {
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kInt32, kDim);
  spec.metadata = true;
  spec.tiers.fast_bytes = 1;
  const std::unique_ptr<Table> table = Filled(spec);
  table->upkeep().SetClock(8);
  FailIoForTesting(IoKind::kRead, 0);
  RowHistograms histograms;
  CHECK_OK(table->upkeep().Histograms(&histograms));
  EndFaults();
  CHECK_EQ(histograms.age[1], uint64_t{kKeys});
  CHECK_EQ(histograms.writes[1], uint64_t{kKeys});
  for (const uint64_t bin : histograms.norm) CHECK_EQ(bin, uint64_t{0});
}

TEST(TierFaultsInWrites) {
  for (KeyType key_type : kKeyTypes) {
    for (IoKind kind : {IoKind::kWrite, IoKind::kResize}) {
      TableSpec spec = Spec(key_type, false);
      // All rows fit into memory until the call inserts more.
      spec.tiers.fast_bytes = kKeys * 80;
      FailEverywhere(spec, kind, [](Table& table) { return Train(table, kKeys, 3 * kKeys); });
      if (kind == IoKind::kResize) continue;
      spec.tiers.fast_bytes = 1;
      FailEverywhere(spec, kind, [](Table& table) { return Train(table, 500, 1500); });
    }
  }
}

// A lookup succeeds even if rows cannot be moved to the file to make room.
TEST(TierFaultsInWritesDoNotStopReads) {
  std::unique_ptr<Table> table = Filled(Spec(KeyType::kInt64, false));
  const RowsMap before = RowsOf(*table);
  FailIoForTesting(IoKind::kWrite, 0);
  FailIoForTesting(IoKind::kResize, 0);
  for (int round = 0; round < 3; ++round) {
    for (int64_t begin = 0; begin < kKeys; begin += 100)
      CHECK_OK(LookUp(*table, begin, begin + 100));
  }
  CHECK(Train(*table, kKeys, 3 * kKeys).code() == StatusCode::kStorageFull);
  // Missing keys that are not inserted need no room.
  const TestKeys others = TestKeys::Range(KeyType::kInt64, kKeys, 3 * kKeys);
  TestRows rows(ValueType::kFloat32, others.size(), kDim);
  CHECK_OK(table->training().AssignExisting(others.batch(), rows.out()));
  CHECK_OK(table->upkeep().Touch(others.batch(), NewKeys::kDrop));
  EndFaults();
  CHECK(RowsOf(*table) == before);
}

// A forked child shares the file. It must not change the rows of its parent, and must not read
// records that the parent has overwritten.
TEST(TierFaultsInForkedChildren) {
  // Under ThreadSanitizer, a forked child cannot start threads.
  const ScopedNumThreads one(1);
  std::unique_ptr<Table> table = Filled(Spec(KeyType::kInt64, false));
  const RowsMap before = RowsOf(*table);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(20);  // Ends a child that hangs, which fails the test.
    const auto refused = [](const Status& status) {
      return status.code() == StatusCode::kIoError &&
             status.message().find("forked") != std::string::npos;
    };
    bool good = refused(LookUp(*table, 0, kKeys)) && refused(Train(*table, 0, kKeys));
    good &= refused(Train(*table, kKeys, 3 * kKeys));
    good &= table->Clear().ok() && refused(table->Shrink());
    // The child can make its own tables.
    const std::unique_ptr<Table> own = Filled(Spec(KeyType::kInt64, false));
    good &= RowsOf(*own).size() == kKeys;
    table.reset();
    _exit(good ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(RowsOf(*table) == before);
  CHECK_OK(Train(*table, kKeys, 3 * kKeys));
}

// Faults begin and end at random. The table must contain exactly what successful calls wrote.
TEST(TierFaultsAtRandom) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    std::mt19937_64 random(seed);
    std::unique_ptr<Table> table = Filled(Spec(KeyType::kInt64, false));
    RowsMap expected = RowsOf(*table);
    int failures = 0;
    for (int step = 0; step < 300 / kSlowdown; ++step) {
      const IoKind kind = static_cast<IoKind>(random() % 3);
      FailIoForTesting(kind, static_cast<int64_t>(random() % 30));
      std::vector<int64_t> keys(1 + random() % 200);
      for (int64_t& key : keys) key = static_cast<int64_t>(random() % (2 * kKeys));
      std::vector<float> rows(keys.size() * kDim, static_cast<float>(step));
      const KeyBatch batch(keys.data(), keys.size());
      size_t removed = 0;
      Status status;
      switch (random() % 4) {
        case 0:
          CHECK_OK(table->Remove(batch, &removed));
          for (int64_t key : keys) expected.erase(key);
          break;
        case 1:
          status = table->Lookup(batch, {}, rows.data(), nullptr);
          for (size_t i = 0; status.ok() && i < keys.size(); ++i) {
            if (!expected.contains(keys[i])) continue;
            CHECK(std::memcmp(expected[keys[i]].data(), rows.data() + i * kDim, kDim * 4) == 0);
          }
          break;
        default:
          status = table->Assign(batch, rows.data());
          for (int64_t key : keys) {
            if (!status.ok()) break;
            std::vector<std::byte>& row =
                expected.try_emplace(key, ValueBytes(*table) + SlotBytes(*table)).first->second;
            std::memcpy(row.data(), rows.data(), kDim * 4);
          }
      }
      EndFaults();
      failures += !status.ok();
      if (step % 20 == 0) CHECK(RowsOf(*table) == expected);
    }
    CHECK(RowsOf(*table) == expected);
    CHECK(failures > 0);
  }
}

}  // namespace
}  // namespace tfra::test
