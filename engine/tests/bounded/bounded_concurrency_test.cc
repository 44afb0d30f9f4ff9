// Real threads on a full table: its bound holds at every moment, rows are whole, counters add up.
#include <atomic>
#include <random>
#include <thread>

#include "whole_rows.h"

namespace tfra::test {
namespace {

constexpr size_t kDim = 19;  // More than a cache line; no power of two.

struct Setting {
  int64_t max_capacity;
  KeyType key_type;
  ValueType value_type;
  EvictStrategy strategy;
};

class Crowd {
 public:
  explicit Crowd(const Setting& setting) : setting_(setting), keys_(4 * setting.max_capacity) {
    TableSpec spec = SpecOf(setting.key_type, setting.value_type, kDim);
    spec.bound = {setting.max_capacity, setting.strategy};
    table_ = MakeTable(spec);
  }

  void Run() {
    std::atomic<bool> stop{false};
    std::vector<std::thread> writers, watchers;
    const auto watch = [&](auto body) {
      watchers.emplace_back([&, body] {
        std::mt19937_64 random(99);
        do {
          body(random);
        } while (!stop);
      });
    };
    watch([&](std::mt19937_64&) { errors_ += table_->size() > Bounded(); });
    watch([&](std::mt19937_64& random) { Read(random); });
    watch([&](std::mt19937_64&) { Export(); });
    for (uint64_t w = 0; w < 3; ++w) {
      writers.emplace_back([&, w] {
        std::mt19937_64 random(w);
        for (int call = 0; call < 400 / kSlowdown; ++call) Write(random, call);
      });
    }
    for (std::thread& thread : writers) thread.join();
    stop = true;
    for (std::thread& thread : watchers) thread.join();
    CHECK_EQ(errors_.load(), 0);

    const TableStats stats = table_->stats();
    CHECK_EQ(stats.inserts - stats.removals - stats.evictions, stats.size);
    CHECK_EQ(stats.inserts + stats.updates + stats.score_too_low + stats.exists_mismatch,
             written_.load());
    CHECK(stats.evictions > 0);
    CHECK_EQ(Contents(*table_).size(), stats.size);
    // The room that removals gave back is there: the table fills up again, to the last key.
    for (int64_t begin = 0; begin < keys_; begin += 1000) {
      AssignNumbers(*table_, TestKeys::Range(setting_.key_type, begin, begin + 1000),
                    [&](size_t i, size_t) { return static_cast<int>(i); });
    }
    if (setting_.strategy != EvictStrategy::kCustomized) CHECK_EQ(table_->size(), Bounded());
    CHECK_OK(table_->Clear());
    CHECK_EQ(table_->stats().string_bytes, 0u);
  }

 private:
  uint64_t Bounded() const { return static_cast<uint64_t>(setting_.max_capacity); }

  std::vector<int64_t> Pick(std::mt19937_64& random, size_t n) const {
    std::vector<int64_t> numbers(n);
    for (int64_t& number : numbers) {
      number = static_cast<int64_t>(random() % static_cast<uint64_t>(keys_));
    }
    return numbers;
  }

  // A row says which key it belongs to, in every element.
  static bool IsWhole(const std::vector<int>& row, int64_t key) {
    for (int element : row) {
      if (element % 100000 != key || element != row[0]) return false;
    }
    return true;
  }

  void Write(std::mt19937_64& random, int version) {
    const std::vector<int64_t> numbers = Pick(random, 150);
    const TestKeys keys(setting_.key_type, numbers);
    const TestRows rows = TestRows::Make(
        setting_.value_type, numbers.size(), kDim,
        [&](size_t i, size_t) { return version * 100000 + static_cast<int>(numbers[i]); });
    std::vector<uint64_t> given(numbers.size());
    for (uint64_t& score : given) score = random() % 1000;
    const bool customized = setting_.strategy == EvictStrategy::kCustomized;
    const Scores scores = customized ? Scores{Scores::kExact, given.data()} : Scores();
    size_t removed = 0;
    ExportBatch batch;
    switch (random() % 8) {
      case 0:
        errors_ += !table_->Remove(keys.batch(), &removed).ok();
        return;
      case 1: {
        TestRows values(setting_.value_type, numbers.size(), kDim);
        Flags exists(numbers.size());
        errors_ += !table_->training()
                        .FindOrInsert(keys.batch(), {Defaults::kRowPerKey, rows.in()}, values.out(),
                                      exists.data(), scores)
                        .ok();
        written_ += numbers.size() - exists.Count();
        for (size_t i = 0; i < numbers.size(); ++i) errors_ += !IsWhole(values.Row(i), numbers[i]);
        return;
      }
      case 2:
        errors_ += random() % 10 == 0 && !table_->Shrink().ok();
        return;
      case 3:
        errors_ += !table_->training()
                        .AssignExisting(keys.batch(), rows.in(), nullptr, nullptr, scores)
                        .ok();
        break;
      default:
        errors_ +=
            !table_->scores()
                 .AssignAndEvict(keys.batch(), rows.in(), nullptr, nullptr, scores, &batch, nullptr)
                 .ok();
        Check(batch);
    }
    written_ += numbers.size();
  }

  void Check(const ExportBatch& batch) {
    const TestRows rows = TestRows::Of(setting_.value_type, kDim, batch);
    errors_ += batch.scores.size() != batch.size;
    for (size_t i = 0; i < batch.size; ++i) {
      const int64_t key = setting_.key_type == KeyType::kString
                              ? std::stoll(std::string(batch.string_keys[i]).substr(4))
                              : batch.int_keys[i];
      errors_ += !IsWhole(rows.Row(i), key);
      errors_ += batch.scores[i] > kMaxScore;
    }
  }

  void Read(std::mt19937_64& random) {
    const std::vector<int64_t> numbers = Pick(random, 200);
    const TestKeys keys(setting_.key_type, numbers);
    TestRows rows(setting_.value_type, numbers.size(), kDim);
    Flags exists(numbers.size());
    std::vector<uint64_t> scores(numbers.size());
    errors_ += !table_->Lookup(keys.batch(), {}, rows.out(), exists.data()).ok();
    for (size_t i = 0; i < numbers.size(); ++i) {
      errors_ += exists[i] && !IsWhole(rows.Row(i), numbers[i]);
    }
    errors_ += !table_->scores().Lookup(keys.batch(), scores.data(), exists.data()).ok();
    for (size_t i = 0; i < numbers.size(); ++i) {
      errors_ += scores[i] > kMaxScore || (!exists[i] && scores[i] != 0);
    }
  }

  void Export() {
    ExportCursor cursor;
    ExportBatch batch;
    while (!cursor.done) {
      errors_ += !table_->Export(500, &cursor, &batch).ok();
      Check(batch);
    }
    uint64_t count = 0;
    errors_ += !table_->scores().CountIf([](uint64_t) { return true; }, &count).ok();
  }

  const Setting setting_;
  const int64_t keys_;
  std::unique_ptr<Table> table_;
  std::atomic<int64_t> errors_{0};
  std::atomic<uint64_t> written_{0};
};

TEST(BoundedUnderManyThreads) {
  // Exact tables, and larger ones.
  for (int64_t max_capacity : {200, 3000}) {
    for (const Setting& setting :
         {Setting{max_capacity, KeyType::kInt64, ValueType::kInt32, EvictStrategy::kLru},
          Setting{max_capacity, KeyType::kInt64, ValueType::kFloat64, EvictStrategy::kCustomized},
          Setting{max_capacity, KeyType::kString, ValueType::kString, EvictStrategy::kLru},
          Setting{max_capacity, KeyType::kString, ValueType::kInt64, EvictStrategy::kEpochLfu}}) {
      Crowd(setting).Run();
    }
  }
}

// Whoever evicts says so, also while several threads fill the table.
TEST(BoundedEvictionsAreReportedOnce) {
  for (int64_t max_capacity : {200, 3000}) {
    TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kInt32, 1);
    spec.bound = {max_capacity, EvictStrategy::kLru};
    std::unique_ptr<Table> table = MakeTable(spec);
    std::atomic<uint64_t> evicted{0}, errors{0};
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (int64_t round = 0; round < 60 / kSlowdown; ++round) {
          const int64_t begin = (3 * round + t) * 500;
          const TestKeys keys = TestKeys::Range(KeyType::kInt64, begin, begin + 500);
          const std::vector<int32_t> rows(500, 1);
          ExportBatch batch;
          errors +=
              !table->scores()
                   .AssignAndEvict(keys.batch(), rows.data(), nullptr, nullptr, {}, &batch, nullptr)
                   .ok();
          errors += batch.int_keys.size() != batch.size || batch.scores.size() != batch.size;
          evicted += batch.size;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(errors.load(), 0u);
    const TableStats stats = table->stats();
    CHECK_EQ(stats.evictions, evicted.load());
    CHECK_EQ(stats.inserts - stats.evictions, stats.size);
    CHECK_EQ(stats.inserts + stats.score_too_low, static_cast<uint64_t>(60 / kSlowdown * 3 * 500));
  }
}

// Calls so large that they go stripe by stripe. The threads write, among many new keys, the same
// ones: none may get in twice.
TEST(BoundedUnderLargeBatches) {
  struct Call {
    size_t keys;
    int64_t max_capacity;
  };
  // Those of a stripe are inserted at once, or in several turns.
  for (const Call& call : {Call{10'000, 5000}, Call{90'000, 60'000}}) {
    for (const auto& [key_type, strategy] : {std::pair(KeyType::kInt64, EvictStrategy::kLru),
                                             std::pair(KeyType::kString, EvictStrategy::kLfu)}) {
      TableSpec spec = SpecOf(key_type, ValueType::kInt32, 2);
      spec.bound = {call.max_capacity, strategy};
      std::unique_ptr<Table> table = MakeTable(spec);
      std::atomic<uint64_t> evicted{0}, errors{0};
      std::vector<std::thread> threads;
      const int rounds = (call.keys > 50'000 ? 10 : 40) / kSlowdown;
      for (uint64_t t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
          std::mt19937_64 random(t);
          for (int round = 0; round < rounds; ++round) {
            std::vector<int64_t> numbers(call.keys);
            for (int64_t& number : numbers) {
              const uint64_t range = random() % 4 == 0 ? 2000 : 40 * call.max_capacity;
              number = static_cast<int64_t>(random() % range);
            }
            std::vector<int32_t> rows;
            for (int64_t number : numbers) rows.insert(rows.end(), 2, static_cast<int32_t>(number));
            const TestKeys keys(key_type, numbers);
            ExportBatch batch;
            errors += !table->scores()
                           .AssignAndEvict(keys.batch(), rows.data(), nullptr, nullptr, {}, &batch,
                                           nullptr)
                           .ok();
            evicted += batch.size;
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      CHECK_EQ(errors.load(), 0u);
      const TableStats stats = table->stats();
      CHECK_EQ(stats.evictions, evicted.load());
      CHECK_EQ(stats.inserts - stats.evictions, stats.size);
      std::vector<int64_t> numbers;
      for (const auto& [number, row] : RowsOf(*table)) {  // Each of them once.
        numbers.push_back(number);
        int32_t values[2];
        std::memcpy(values, row.data(), sizeof(values));
        CHECK(values[0] == number && values[1] == number);
      }
      CHECK_EQ(numbers.size(), stats.size);
      size_t removed = 0;
      CHECK_OK(table->Remove(TestKeys(key_type, numbers).batch(), &removed));
      CHECK_EQ(removed, numbers.size());
    }
  }
}

}  // namespace
}  // namespace tfra::test
