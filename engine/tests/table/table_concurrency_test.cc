// Real threads on one table: lookups, writes, removals, growth, exports.
// Made for the sanitizers: ThreadSanitizer for races, AddressSanitizer for memory freed too early.
#include <algorithm>
#include <chrono>
#include <random>

#include "concurrency_helpers.h"
#include "memory/read_guard.h"

namespace tfra::test {
namespace {

// Rows whose elements all say the same: the key's number (below 1000) and a version. Of any type
// that holds such numbers, strings among them.
class Marked {
 public:
  static constexpr size_t kDim = 19;  // More than a cache line; no power of two.

  Marked(KeyType key_type, ValueType type)
      : key_type_(key_type), type_(type), table_(MakeTable(SpecOf(key_type, type, kDim))) {}

  Table& table() { return *table_; }
  TestKeys Keys(int begin, int end) const { return TestKeys::Range(key_type_, begin, end); }

  // Writes version `version` of keys begin .. end - 1.
  void Write(int begin, int end, int version) {
    const auto number = [&](size_t i, size_t) {
      return version * 1000 + begin + static_cast<int>(i);
    };
    const TestRows rows = TestRows::Make(type_, static_cast<size_t>(end - begin), kDim, number);
    errors_ += !table_->Assign(Keys(begin, end).batch(), rows.in()).ok();
  }

  // Counts rows that are torn, another key's, or older than `versions` says this watcher has seen.
  // must_exist: also those that are missing.
  void Read(int begin, int end, bool must_exist, std::vector<int>* versions) {
    const size_t n = static_cast<size_t>(end - begin);
    TestRows rows(type_, n, kDim);
    Flags exists(n);
    errors_ += !table_->Lookup(Keys(begin, end).batch(), {}, rows.out(), exists.data()).ok();
    for (size_t i = 0; i < n; ++i) {
      const std::vector<int> row = rows.Row(i);
      errors_ += must_exist && !exists[i];
      errors_ += std::count(row.begin(), row.end(), row[0]) != static_cast<int64_t>(kDim);
      if (!exists[i]) {
        errors_ += row[0] != 0;
        continue;
      }
      errors_ += row[0] % 1000 != begin + static_cast<int>(i);
      if (versions == nullptr) continue;
      errors_ += row[0] / 1000 < (*versions)[i];
      (*versions)[i] = row[0] / 1000;
    }
  }

  void Remove(int begin, int end, size_t expected) {
    size_t removed = 0;
    errors_ += !table_->Remove(Keys(begin, end).batch(), &removed).ok();
    errors_ += removed != expected;
  }

  void Count(bool error) { errors_ += error; }
  int64_t errors() const { return errors_; }

 private:
  const KeyType key_type_;
  const ValueType type_;
  std::unique_ptr<Table> table_;
  Errors errors_{0};
};

void ForEachKind(const std::function<void(Marked&)>& body) {
  for (KeyType key_type : kKeyTypes) {
    for (ValueType type : {ValueType::kInt32, ValueType::kFloat64, ValueType::kString}) {
      Marked marked(key_type, type);
      body(marked);
      CHECK_EQ(marked.errors(), 0);
    }
  }
}

TEST(ConcurrentRowsAreNeverTorn) {
  ForEachKind([](Marked& marked) {
    marked.Write(0, 60, 1);
    const auto write = [&](int begin, int end) {
      return [&, begin, end] {
        for (int version = 2; version < 60 * kScale; ++version) marked.Write(begin, end, version);
      };
    };
    std::vector<int> versions(60);
    Run({write(0, 1), write(1, 60)},
        {[&] { marked.Read(0, 60, true, &versions); }, [&] { marked.Read(0, 1, true, nullptr); }});
  });
}

TEST(ConcurrentRemovalAndReinsertion) {
  ForEachKind([](Marked& marked) {
    const auto churn = [&](int begin, int end) {
      return [&, begin, end] {
        for (int version = 1; version < 40 * kScale; ++version) {
          marked.Write(begin, end, version);
          marked.Read(begin, end, true, nullptr);
          marked.Remove(begin, end, static_cast<size_t>(end - begin));
          marked.Remove(begin, end, 0);
        }
      };
    };
    std::vector<int> versions(60);
    Run({churn(0, 30), churn(30, 60)}, {[&] { marked.Read(0, 60, false, &versions); }});
    CHECK_EQ(marked.table().size(), 0u);
  });
}

TEST(ConcurrentClear) {
  ForEachKind([](Marked& marked) {
    const auto write = [&] {
      for (int version = 1; version < 40 * kScale; ++version) marked.Write(0, 80, version);
    };
    Run({write, write}, {[&] { marked.Read(0, 80, false, nullptr); },
                         [&] { marked.Count(!marked.table().Clear().ok()); }});
    CHECK(Contents(marked.table()).size() <= 80);
    CHECK_OK(marked.table().Clear());
    CHECK_EQ(marked.table().stats().string_bytes, 0u);
  });
}

TEST(ConcurrentShrink) {
  ForEachKind([](Marked& marked) {
    marked.Write(0, 40, 1);
    const auto churn = [&] {
      for (int round = 0; round < 15 * kScale; ++round) {
        marked.Write(100, 900, round);
        marked.Remove(100, 900, 800);
      }
    };
    const auto update = [&] {
      for (int version = 2; version < 100 * kScale; ++version) marked.Write(0, 40, version);
    };
    std::vector<int> versions(40);
    Run({churn, update}, {[&] { marked.Read(0, 40, true, &versions); },
                          [&] { marked.Count(!marked.table().Shrink().ok()); }});
    CHECK_EQ(marked.table().size(), 40u);
  });
}

TEST(ConcurrentExportSeesStableKeysOnce) {
  ForEachKind([](Marked& marked) {
    marked.Write(0, 100, 1);
    const auto churn = [&] {
      for (int round = 0; round < 10 * kScale; ++round) {
        for (int begin = 100; begin < 900; begin += 100) marked.Write(begin, begin + 100, 1);
        marked.Remove(100, 900, 800);
        if (round % 4 == 0) marked.Count(!marked.table().Shrink().ok());
      }
    };
    const auto update = [&] {
      for (int version = 2; version < 20 * kScale; ++version) marked.Write(0, 100, version);
    };
    const auto export_by = [&](size_t max_rows) {
      return [&, max_rows] {
        const TableSpec& spec = marked.table().spec();
        std::vector<int> seen(1000);
        ExportCursor cursor;
        while (!cursor.done) {
          ExportBatch batch;
          marked.Count(!marked.table().Export(max_rows, &cursor, &batch).ok());
          const TestRows rows = TestRows::Of(spec.value_type, Marked::kDim, batch);
          for (size_t i = 0; i < batch.size; ++i) {
            const std::vector<int> row = rows.Row(i);
            const int key = row[0] % 1000;
            const std::string name = spec.key_type == KeyType::kString
                                         ? std::string(batch.string_keys[i])
                                         : std::to_string(batch.int_keys[i]);
            marked.Count(marked.Keys(key, key + 1).Name(0) != name);
            marked.Count(std::count(row.begin(), row.end(), row[0]) != int64_t{Marked::kDim});
            ++seen[static_cast<size_t>(key)];
          }
        }
        for (size_t key = 0; key < 100; ++key) marked.Count(seen[key] != 1);
      };
    };
    Run({churn, update}, {export_by(3), export_by(SIZE_MAX)});
  });
}

TEST(ConcurrentUpdatesAreNotLost) {
  constexpr int kThreads = 4, kKeys = 50, kHot = 3;
  const int rounds = 60 * kScale;
  for (KeyType key_type : kKeyTypes) {
    constexpr ValueType type = ValueType::kFloat64;
    TableSpec spec = SpecOf(key_type, type, 3);
    spec.rule.kind = RuleKind::kSgd;
    spec.metadata = true;
    std::unique_ptr<Table> table = MakeTable(spec);
    std::vector<int64_t> numbers(kKeys + kHot - 1);  // Key 0 is in it kHot times.
    for (int64_t i = 0; i < kKeys; ++i) numbers[static_cast<size_t>(i)] = i;
    const TestKeys keys(key_type, numbers);
    const size_t n = keys.size();
    const std::vector<double> minus(3 * n, -1.0), plus(3 * n, 1.0);
    Errors errors{0};
    // From empty: the first updates of a key insert it.
    const auto train = [&] {
      UpdateParams params;
      params.learning_rate = 1;
      Flags exists(n, true);
      const TestKeys mine = keys;
      for (int round = 0; round < rounds; ++round) {
        errors += !table->training().ApplyGradients(mine.batch(), minus.data(), type, params).ok();
        errors += !table->training().Accumulate(mine.batch(), plus.data(), exists.data()).ok();
      }
    };
    // Growing, shrinking and scanning must not lose any either.
    const auto disturb = [&] {
      const TestKeys others = TestKeys::Range(key_type, 1000, 1500);
      AssignNumbers(*table, others, [](size_t, size_t) { return 0; });
      size_t removed = 0;
      errors += !table->Remove(others.batch(), &removed).ok();
      errors += !table->Shrink().ok();
      uint64_t count = 0;
      errors += !table->upkeep().CountIf([](const RowMetadata&) { return true; }, &count).ok();
    };
    Run(std::vector<Work>(kThreads, train), {disturb});
    CHECK_EQ(errors.load(), 0);
    ContentsMap contents = Contents(*table);
    const int expected = 2 * kThreads * rounds;
    for (size_t i = 0; i < kKeys; ++i) {
      CHECK(contents[keys.Name(i)] == std::vector<int>(3, expected * (i == 0 ? kHot : 1)));
    }
  }
}

// Readers see every key that was inserted before they asked, while the table grows from nothing.
TEST(ConcurrentGrowthHidesNoKey) {
  const ScopedNumThreads scoped(2);  // Batches are large enough for the pool.
  const int64_t keys = 40000 * kScale, batch = 10000;
  std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kInt64, ValueType::kInt64, 2));
  std::atomic<int64_t> inserted[2] = {0, 0};
  Errors errors{0};
  const auto insert = [&](int64_t parity) {
    return [&, parity] {
      for (int64_t begin = 0; begin < keys; begin += batch) {
        std::vector<int64_t> numbers, values;
        for (int64_t i = begin; i < begin + batch; ++i) {
          numbers.push_back(2 * i + parity);
          values.insert(values.end(), 2, 2 * i + parity);
        }
        errors += !table->Assign(KeyBatch(numbers.data(), numbers.size()), values.data()).ok();
        inserted[parity] = begin + batch;
      }
    };
  };
  const auto read = [&](uint64_t seed) {
    return [&, random = std::mt19937_64(seed)]() mutable {
      std::vector<int64_t> numbers;
      for (int64_t parity : {0, 1}) {
        const int64_t watermark = inserted[parity];
        for (int i = 0; i < 200 && watermark > 0; ++i) {
          const int64_t among = i % 2 ? 100 : watermark;  // Half of them among the last.
          const int64_t back = static_cast<int64_t>(random() >> 1) % among;
          numbers.push_back(2 * (watermark - 1 - back) + parity);
        }
      }
      std::vector<int64_t> values(2 * numbers.size());
      Flags exists(numbers.size());
      errors +=
          !table->Lookup(KeyBatch(numbers.data(), numbers.size()), {}, values.data(), exists.data())
               .ok();
      for (size_t i = 0; i < numbers.size(); ++i) {
        errors += !exists[i] || values[2 * i] != numbers[i] || values[2 * i + 1] != numbers[i];
      }
    };
  };
  Run({insert(0), insert(1)}, {read(1), read(2)});
  CHECK_EQ(errors.load(), 0);
  CHECK_EQ(table->size(), static_cast<uint64_t>(2 * keys));
}

TEST(ConcurrentTablesComeAndGo) {
  Errors errors{0};
  const auto live = [&] {
    for (int round = 0; round < 20 * kScale; ++round) {
      for (KeyType key_type : kKeyTypes) {
        std::unique_ptr<Table> table = MakeTable(SpecOf(key_type, ValueType::kString, 1));
        const TestKeys keys = TestKeys::Range(key_type, 0, 100);
        AssignNumbers(*table, keys, [](size_t i, size_t) { return static_cast<int>(i); });
        AssignNumbers(*table, keys, [](size_t i, size_t) { return static_cast<int>(i + 1); });
        errors += table->size() != 100;
      }
    }
  };
  Run(std::vector<Work>(4, live), {});
  CHECK_EQ(errors.load(), 0);
}

// An update that has returned renewed the row's metadata, so a removal of old rows must not take
// it: no order of the two calls ends without the key. The predicate is the moment in between.
TEST(RemoveIfDoesNotLoseAnUpdate) {
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kInt32, 1);
  spec.metadata = true;
  std::unique_ptr<Table> table = MakeTable(spec);
  const TestKeys key(KeyType::kInt64, {5});
  const auto one = [](size_t, size_t) { return 1; };
  table->upkeep().SetClock(1);
  AssignNumbers(*table, key, one);
  table->upkeep().SetClock(2);
  std::thread writer;
  uint64_t removed = 0;
  CHECK_OK(table->upkeep().RemoveIf(
      [&](const RowMetadata& metadata) {
        if (metadata.time == 1 && !writer.joinable()) {
          writer = std::thread([&] { AssignNumbers(*table, key, one); });
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
        return metadata.time == 1;
      },
      &removed));
  writer.join();
  CHECK_EQ(table->size(), 1u);
}

TEST(ReadGuardHoldsMemoryBack) {
  static std::atomic<int> freed{0};
  const auto free = [](void*, size_t bytes) { freed += static_cast<int>(bytes); };
  std::atomic<int> stage{0};
  std::thread reader([&] {
    ReadGuard outer;
    {
      ReadGuard nested;
    }
    stage = 1;
    while (stage == 1) std::this_thread::yield();
  });
  while (stage == 0) std::this_thread::yield();
  Retire({{nullptr, 1, free}});
  {
    ReadGuard late;
    Retire({{nullptr, 2, free}, {nullptr, 4, free}});
  }
  Retire({});
  CHECK_EQ(freed.load(), 0);  // Leaving the nested guard is not leaving.
  stage = 2;
  reader.join();
  Retire({});
  CHECK_EQ(freed.load(), 7);
}

TEST(EpochReadersNeverSeeFreedMemory) {
  struct Node {
    std::atomic<int> alive{1};
  };
  std::atomic<Node*> shared{new Node};
  Errors errors{0};
  const auto replace = [&] {
    for (int i = 0; i < 3000 * kScale; ++i) {
      Node* old = shared.exchange(new Node);
      Retire({{old, 0, [](void* node, size_t) {
                 static_cast<Node*>(node)->alive = 0;
                 delete static_cast<Node*>(node);
               }}});
    }
  };
  const auto read = [&] {
    ReadGuard guard;
    const Node* node = shared.load();
    for (int i = 0; i < 10; ++i) errors += node->alive != 1;
  };
  Run({replace, replace}, {read, read});
  CHECK_EQ(errors.load(), 0);
  delete shared.load();
}

}  // namespace
}  // namespace tfra::test
