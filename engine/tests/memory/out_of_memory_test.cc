// Calls that insert, evict and remove keys while memory runs out. Each allocation fails in its
// turn: those of pages and strings (memory/pages.h), and those of operator new.
#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <thread>

#include "admission_helpers.h"
#include "index/stripe.h"
#include "memory/pages.h"

namespace {

// Allocations below this size never fail: the engine does not handle such failures.
constexpr size_t kSmall = 1024;

std::atomic<int64_t> news_until_failure{-1};  // Negative: none fails.
std::atomic<size_t> smallest_to_fail{kSmall};

void* Allocate(size_t bytes) {
  if (bytes >= smallest_to_fail.load(std::memory_order_relaxed) &&
      news_until_failure.load(std::memory_order_relaxed) >= 0 &&
      news_until_failure.fetch_sub(1) == 0) {
    throw std::bad_alloc();
  }
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace tfra::test {
namespace {

constexpr int kMaxFailurePoints = 10000;

using Fill = std::function<void(Table&)>;
using Call = std::function<Status(Table&)>;

struct Outcome {
  Status status;
  bool failed;  // Whether an allocation failed.
};

// Makes allocation number `point` of the call fail.
Outcome CallWithFailure(bool pages, int point, Table& table, const Call& call) {
  if (pages) {
    FailAllocationsForTesting(point);
  } else {
    news_until_failure = point;
  }
  Status status;
  try {
    status = call(table);
  } catch (const std::bad_alloc&) {
    status = Status::InvalidArgument("an exception instead of a status");
  }
  FailAllocationsForTesting(-1);
  const bool failed = pages ? !status.ok() : news_until_failure < 0;
  news_until_failure = -1;
  return {std::move(status), failed};
}

void CheckUsable(Table& table) {
  const TableStats stats = table.stats();
  CHECK_EQ(stats.inserts - stats.removals - stats.evictions - stats.expirations, stats.size);
  CHECK_EQ(Contents(table).size(), stats.size);
  CHECK_OK(table.Shrink());
  See(table, TestKeys::Range(table.spec().key_type, 0, 3000), NewKeys::kInsert);
  CHECK(table.size() >= 3000);
  CHECK_OK(table.Clear());
  CHECK_EQ(table.stats().string_bytes, 0u);
  CHECK_EQ(table.stats().waiting, 0u);
}

// Makes each allocation of `call` fail in turn, on a new table. all_or_nothing: a call that fails
// must not change the table. In any case the table stays usable, and the same call then succeeds.
void FailEverywhere(const TableSpec& spec, const char* name, bool all_or_nothing, const Fill& fill,
                    const Call& call) {
  for (bool pages : {false, true}) {
    int point = 0, changed = 0;
    // A call allocates many strings in the same way: after a while, test only some of them.
    for (; point < kMaxFailurePoints; point += point < 50 ? 1 : 17) {
      std::unique_ptr<Table> table = MakeTable(spec);
      table->upkeep().SetClock(10);
      fill(*table);
      const ContentsMap before = Contents(*table);
      AdmissionState state, state_after;
      CHECK_OK(table->upkeep().ExportAdmission(&state));
      const Outcome outcome = CallWithFailure(pages, point, *table, call);
      if (!outcome.failed) break;
      if (outcome.status.ok()) continue;  // The call succeeded without this memory.
      CHECK(outcome.status.code() == StatusCode::kOutOfMemory);
      CHECK(!outcome.status.message().empty());
      CHECK_OK(table->upkeep().ExportAdmission(&state_after));
      changed += !(Contents(*table) == before && Same(state, state_after));
      CHECK_OK(call(*table));
      CheckUsable(*table);
    }
    CHECK(point < kMaxFailurePoints);
    if (!all_or_nothing) continue;
    CHECK_EQ(changed, 0);
    if (changed > 0) std::printf("  %s: %d failures changed it\n", name, changed);
  }
}

// Inserts keys, some of them with old metadata, and adds waiting keys.
void FillTable(Table& table) {
  const KeyType key_type = table.spec().key_type;
  See(table, TestKeys::Range(key_type, 0, 1500), NewKeys::kInsert);
  table.upkeep().SetClock(20);
  See(table, TestKeys::Range(key_type, 1000, 2000), NewKeys::kInsert);
  See(table, TestKeys::Range(key_type, 2000, 2600));
}

void ForEachSpec(const std::function<void(const TableSpec&)>& body) {
  for (KeyType key_type : kKeyTypes) {
    for (const AdmissionSpec& spec : {MinCount(2), Bloom(2, 1000, 0.01), Probability(0.5, 1)}) {
      body(AdmittingSpec(key_type, spec));
    }
  }
}

TEST(OutOfMemoryInCreateWithAdmission) {
  const TableSpec spec = AdmittingSpec(KeyType::kInt64, Bloom(2, 100000, 0.01));
  int point = 0;
  for (; point < kMaxFailurePoints; ++point) {
    std::unique_ptr<Table> table;
    news_until_failure = point;
    const Status status = Table::Create(spec, &table);
    news_until_failure = -1;
    if (status.ok()) break;
    CHECK(status.code() == StatusCode::kOutOfMemory);
    CHECK(table == nullptr);
  }
  CHECK(point >= static_cast<int>(kStripes) && point < kMaxFailurePoints);
}

// Rows and strings of removed keys are put on lists. If there is no memory for the lists, some keys
// may have been removed already; they are counted.
TEST(OutOfMemoryInRestrict) {
  for (Ranking ranking : {Ranking::kNewest, Ranking::kMostFrequent}) {
    ForEachSpec([&](const TableSpec& spec) {
      FailEverywhere(spec, "Restrict", false, FillTable, [&](Table& table) {
        uint64_t evicted = 0;
        return table.upkeep().Restrict(100, ranking, &evicted);
      });
    });
  }
}

TEST(OutOfMemoryInExpire) {
  ForEachSpec([](const TableSpec& spec) {
    FailEverywhere(spec, "Expire", false, FillTable, [](Table& table) {
      uint64_t expired = 0;
      ExpiryRule rule;
      rule.written_before = 20;
      return table.upkeep().Expire(rule, &expired);
    });
  });
}

TEST(OutOfMemoryInReadingCalls) {
  ForEachSpec([](const TableSpec& spec) {
    const TestKeys keys = TestKeys::Range(spec.key_type, 0, 500);
    const KeyBatch batch = keys.batch();
    std::vector<RowMetadata> metadata(keys.size());
    FailEverywhere(spec, "LookupMetadata", true, FillTable, [&](Table& table) {
      return table.upkeep().LookupMetadata(batch, metadata.data(), nullptr);
    });
    FailEverywhere(spec, "ExportAdmission", true, FillTable, [](Table& table) {
      AdmissionState state;
      return table.upkeep().ExportAdmission(&state);
    });
  });
}

TEST(OutOfMemoryInRestoreAdmission) {
  ForEachSpec([](const TableSpec& spec) {
    AdmissionState state;
    std::unique_ptr<Table> other = MakeTable(spec);
    See(*other, TestKeys::Range(spec.key_type, 9000, 10000));
    CHECK_OK(other->upkeep().ExportAdmission(&state));
    FailEverywhere(spec, "RestoreAdmission", true, FillTable,
                   [&](Table& table) { return table.upkeep().RestoreAdmission(state); });
  });
}

TEST(OutOfMemoryInCopyWithRule) {
  ForEachSpec([](const TableSpec& spec) {
    RuleSpec adagrad;
    adagrad.kind = RuleKind::kAdagrad;
    std::unique_ptr<Table> copy;
    FailEverywhere(
        spec, "CopyWithRule", true,
        [&](Table& table) {
          copy.reset();
          FillTable(table);
        },
        [&](Table& table) { return table.CopyWithRule(adagrad, true, &copy); });
  });
}

// The first rows of a stripe need a list of free rows, too: a batch is written as a whole or not.
TEST(OutOfMemoryInTheFirstWrites) {
  for (const KeyType key_type : kKeyTypes) {
    for (const bool metadata : {false, true}) {
      TableSpec spec = SpecOf(key_type, ValueType::kFloat32, 2);
      spec.rule.kind = RuleKind::kAdam;
      spec.metadata = metadata;
      const TestKeys keys = TestKeys::Range(key_type, 0, 77);
      const KeyBatch batch = keys.batch();
      const std::vector<float> rows(2 * keys.size(), 1.0f);
      Flags exist(keys.size());
      const auto fill = [&](Table& table) {
        CHECK_OK(table.Assign(TestKeys::Range(key_type, 0, 4).batch(), rows.data()));
      };
      FailEverywhere(spec, "Assign", true, fill,
                     [&](Table& table) { return table.Assign(batch, rows.data()); });
      FailEverywhere(spec, "ApplyGradients", true, fill, [&](Table& table) {
        return table.training().ApplyGradients(batch, rows.data(), ValueType::kFloat32, {});
      });
      FailEverywhere(spec, "Accumulate", true, fill, [&](Table& table) {
        return table.training().Accumulate(batch, rows.data(), exist.data());
      });
    }
  }
}

// Tables with strings go without memory for lists of them.
TEST(OutOfMemoryWhileATableGoes) {
  for (const KeyType key_type : kKeyTypes) {
    for (const ValueType value_type : {ValueType::kFloat32, ValueType::kString}) {
      const TestKeys keys = TestKeys::Range(key_type, 0, 5000);
      const TestRows rows =
          TestRows::Make(value_type, keys.size(), 2, [](size_t, size_t) { return 7; });
      for (int point = 0; point < 5; ++point) {
        std::unique_ptr<Table> table = MakeTable(SpecOf(key_type, value_type, 2));
        CHECK_OK(table->Assign(keys.batch(), rows.in()));
        news_until_failure = point;
        table.reset();
        news_until_failure = -1;
      }
    }
  }
}

// If there is no memory for a waiting key, a batch may be written in part.
TEST(OutOfMemoryInAdmission) {
  ForEachSpec([](const TableSpec& spec) {
    const TestKeys keys = TestKeys::Range(spec.key_type, 1900, 2900);
    const KeyBatch batch = keys.batch();
    const std::vector<float> gradients(2 * keys.size(), 1.0f);
    FailEverywhere(spec, "ApplyGradients", false, FillTable, [&](Table& table) {
      return table.training().ApplyGradients(batch, gradients.data(), ValueType::kFloat32, {});
    });
    FailEverywhere(spec, "Touch", false, FillTable,
                   [&](Table& table) { return table.upkeep().Touch(batch); });
  });
}

// A batch writes the same new key many times. The strings that it replaces are collected on a list,
// which needs memory.
TEST(OutOfMemoryInBoundedStrings) {
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kString, 1);
  spec.bound = {16, EvictStrategy::kLru};
  const std::vector<int64_t> same(600, 1000);
  const std::vector<std::string_view> values(same.size(), "a value that is not short");
  const KeyBatch batch(same.data(), same.size());
  for (bool pages : {false, true}) {
    for (int point = 0, failures = 1; failures > 0 && point < kMaxFailurePoints; ++point) {
      const std::unique_ptr<Table> table = MakeTable(spec);
      for (int64_t key = 0; key < 16; ++key) {
        CHECK_OK(table->Assign(KeyBatch(&key, 1), values.data()));
      }
      const Outcome outcome = CallWithFailure(
          pages, point, *table, [&](Table& called) { return called.Assign(batch, values.data()); });
      failures = outcome.failed;
      CHECK(outcome.status.ok() || outcome.status.code() == StatusCode::kOutOfMemory);
      // No bucket stays locked, or the lookup would hang.
      std::string value;
      bool exists = false;
      CHECK_OK(table->Lookup(KeyBatch(same.data(), 1), {}, &value, &exists));
      CHECK_EQ(table->size(), uint64_t{16});
      CHECK(!exists || value == values[0]);
    }
  }
}

// Keys that were removed or inserted before memory ran out are counted.
TEST(OutOfMemoryInRemove) {
  ForEachSpec([](const TableSpec& spec) {
    const TestKeys keys = TestKeys::Range(spec.key_type, 0, 1500);
    const KeyBatch batch = keys.batch();
    FailEverywhere(spec, "Remove", false, FillTable, [&](Table& table) {
      size_t removed = 0;
      return table.Remove(batch, &removed);
    });
  });
}

TEST(OutOfMemoryInBoundedTables) {
  for (KeyType key_type : kKeyTypes) {
    TableSpec spec = AdmittingSpec(key_type, {});
    spec.bound = {4000, EvictStrategy::kLru};
    const auto fill = [](Table& table) {
      See(table, TestKeys::Range(table.spec().key_type, 0, 3600), NewKeys::kInsert);
    };
    FailEverywhere(spec, "RemoveIfScore", false, fill, [](Table& table) {
      uint64_t removed = 0;
      return table.scores().RemoveIf([](uint64_t score) { return score < 3000; }, &removed);
    });
    // There is room for some of these keys; the others evict keys.
    const TestKeys keys = TestKeys::Range(key_type, 3600, 5000);
    const KeyBatch batch = keys.batch();
    const std::vector<float> rows(2 * keys.size(), 1.0f);
    FailEverywhere(spec, "Assign", false, fill,
                   [&](Table& table) { return table.Assign(batch, rows.data()); });
  }
}

TEST(BucketWritesEndWithAnException) {
  Bucket bucket{};
  const uint32_t before = bucket.state.load();
  try {
    const BucketWrite write(&bucket);
    CHECK(bucket.state.load() & Bucket::kLocked);
    throw std::bad_alloc();
  } catch (const std::bad_alloc&) {
  }
  CHECK_EQ(bucket.state.load(), before + Bucket::kVersionOne);
}

// If a stripe gets no memory for its list of rows, no key is written. A later one of equal keys
// wins otherwise.
TEST(EqualKeysKeepTheirOrderWithoutMemory) {
  const ScopedNumThreads one(1);
  int64_t next = 1;
  const auto key_with = [&](auto&& wanted) {
    while (!wanted(StripeOf(MixInt64(static_cast<uint64_t>(next))))) ++next;
    return next++;
  };
  const auto others = [](uint32_t stripe) { return stripe != 5; };
  const int64_t repeated = key_with([](uint32_t stripe) { return stripe == 3; });
  std::vector<int64_t> keys;
  while (keys.size() < 512) keys.push_back(key_with(others));
  keys.push_back(repeated);
  keys.push_back(key_with([](uint32_t stripe) { return stripe == 5; }));
  keys.push_back(repeated);
  while (keys.size() < 1024) keys.push_back(key_with(others));
  std::vector<int32_t> values(keys.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i);
  int point = 0, refused = 0;
  for (bool failed = true; failed && point < kMaxFailurePoints; ++point) {
    const std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kInt64, ValueType::kInt32, 1));
    CHECK_OK(table->Assign(KeyBatch(&repeated, 1), values.data()));
    CHECK_OK(table->Shrink());
    CHECK_OK(table->Reserve(100'000));
    const Outcome outcome = CallWithFailure(false, point, *table, [&](Table& t) {
      return t.Assign(KeyBatch(keys.data(), keys.size()), values.data());
    });
    failed = outcome.failed;
    const bool done = outcome.status.ok();
    refused += !done;
    int32_t value = -1;
    CHECK_OK(table->Lookup(KeyBatch(&repeated, 1), {}, &value, nullptr));
    CHECK_EQ(value, done ? 514 : 0);
    CHECK_EQ(table->size(), done ? keys.size() - 1 : 1);
  }
  CHECK(refused >= static_cast<int>(kStripes) && point < kMaxFailurePoints);
}

// Rows that were taken for keys that turn out to be in the table are given back. This must need no
// memory.
TEST(GivingRowsBackTakesNoMemory) {
  const ScopedNumThreads one(1);
  constexpr int64_t kKeys = 2'200'000;  // Stripes then take 1024 rows at once.
  const std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kInt64, ValueType::kInt32, 1));
  const TestKeys there = TestKeys::Range(KeyType::kInt64, 0, kKeys);
  const std::vector<int32_t> values(static_cast<size_t>(kKeys), 7);
  CHECK_OK(table->Assign(there.batch(), values.data()));
  CHECK_OK(table->Reserve(kKeys + 100'000));
  // The call itself allocates less: at most 8 bytes for each key.
  smallest_to_fail = 8100;
  int64_t fresh = kKeys;
  for (int64_t round = 0; round < 40; ++round) {
    // The first half of the keys is new, so the writer assumes that the second half is new too.
    std::vector<int64_t> keys(1000, round);
    for (size_t i = 0; i < 500; ++i) keys[i] = fresh++;
    const Outcome outcome = CallWithFailure(false, 0, *table, [&](Table& t) {
      return t.Assign(KeyBatch(keys.data(), keys.size()), values.data());
    });
    CHECK_OK(outcome.status);
    CHECK(!outcome.failed);
  }
  smallest_to_fail = kSmall;
}

// If memory runs out while rows move to the file, no record stays reserved for ever.
TEST(OutOfMemoryInRowsThatMoveToTheFile) {
  const ScopedNumThreads one(1);
  constexpr int64_t kKeys = 4000;
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, 40);
  spec.tiers.fast_bytes = kStripes * 64 * 40 * sizeof(float);
  const TestKeys first = TestKeys::Range(KeyType::kInt64, 0, kKeys);
  const TestKeys more = TestKeys::Range(KeyType::kInt64, kKeys, kKeys + 1000);
  const std::vector<float> rows(kKeys * 40, 1.0f);
  const Call assign_more = [&](Table& table) { return table.Assign(more.batch(), rows.data()); };
  int point = 0, failures = 0;
  for (bool failed = true; failed && point < kMaxFailurePoints; ++point) {
    const std::unique_ptr<Table> table = MakeTable(spec);
    CHECK_OK(table->Assign(first.batch(), rows.data()));
    // Free every other record, so that new rows are written between old rows.
    std::vector<int64_t> odd;
    for (int64_t key = 1; key < kKeys; key += 2) odd.push_back(key);
    size_t removed = 0;
    CHECK_OK(table->Remove(KeyBatch(odd.data(), odd.size()), &removed));
    // A new thread, which has no buffers of earlier calls.
    Outcome outcome;
    std::thread([&] { outcome = CallWithFailure(false, point, *table, assign_more); }).join();
    failed = outcome.failed;
    failures += !outcome.status.ok();
    CHECK(outcome.status.ok() || outcome.status.code() == StatusCode::kOutOfMemory);
    CHECK_OK(assign_more(*table));
    CHECK_EQ(table->size(), static_cast<uint64_t>(kKeys / 2 + 1000));
    CHECK_OK(table->Clear());
    CHECK_OK(table->Shrink());
    CHECK_EQ(table->stats().slow_bytes, 0u);
  }
  CHECK(failures > 3 && point < kMaxFailurePoints);
}

}  // namespace
}  // namespace tfra::test
