// Random operations on a table and on a std::map, which must agree. After long use, a small table
// must not need more memory or longer searches.
#include <algorithm>
#include <mutex>
#include <random>

#include "index/stripe.h"
#include "table_helpers.h"

namespace tfra::test {
namespace {

class Model {
 public:
  Model(KeyType key_type, ValueType type, uint64_t seed)
      : type_(type), random_(seed), table_(MakeTable(Spec(key_type, type))) {}

  void Run(int operations) {
    for (int step = 0; step < operations; ++step) {
      // Few different keys, so that batches have duplicates. Some batches need several threads.
      const size_t n = Pick(200) == 0 ? 9000 : static_cast<size_t>(Pick(40));
      std::vector<int64_t> numbers(n);
      for (int64_t& number : numbers) number = Pick(300) - 150;
      Step(TestKeys(table_->spec().key_type, numbers));
      CHECK_EQ(table_->size(), rows_.size());
      if (step % 8 == 0) CHECK(Contents(*table_) == rows_);
    }
    CHECK(Contents(*table_) == rows_);
    const TableStats stats = table_->stats();
    CHECK_EQ(stats.inserts - stats.removals, stats.size);
    CHECK_EQ(stats.hits + stats.misses, looked_up_);
  }

 private:
  static constexpr size_t kDim = 2;

  static TableSpec Spec(KeyType key_type, ValueType type) {
    TableSpec spec = SpecOf(key_type, type, kDim);
    if (IsFloating(type)) spec.rule.kind = RuleKind::kSgd;
    return spec;
  }

  int Pick(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }

  void Step(const TestKeys& keys) {
    const size_t n = keys.size();
    const TestRows rows =
        TestRows::Make(type_, n, kDim, [&](size_t, size_t) { return Pick(5) - 2; });
    switch (Pick(10)) {
      case 0:
      case 1:
        CHECK_OK(table_->Assign(keys.batch(), rows.in()));
        for (size_t i = 0; i < n; ++i) rows_[keys.Name(i)] = rows.Row(i);
        break;
      case 2:
      case 3:
        if (type_ != ValueType::kString) Accumulate(keys, rows);
        break;
      case 4:
        if (IsFloating(type_)) ApplyGradients(keys, rows);
        break;
      case 5:
      case 6:
        Remove(keys);
        break;
      case 7:
      case 8:
        Lookup(keys, rows);
        break;
      default:
        Rare();
    }
  }

  void Accumulate(const TestKeys& keys, const TestRows& deltas) {
    Flags exists(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) exists.Set(i, Pick(2) == 0);
    CHECK_OK(table_->training().Accumulate(keys.batch(), deltas.in(), exists.data()));
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto row = rows_.find(keys.Name(i));
      if ((row != rows_.end()) != exists[i]) continue;
      std::vector<int> sum = deltas.Row(i);
      for (size_t j = 0; j < kDim && exists[i]; ++j) sum[j] += row->second[j];
      rows_[keys.Name(i)] = sum;
    }
  }

  void ApplyGradients(const TestKeys& keys, const TestRows& gradients) {
    UpdateParams params;
    params.learning_rate = 1;
    CHECK_OK(table_->training().ApplyGradients(keys.batch(), gradients.in(), type_, params));
    for (size_t i = 0; i < keys.size(); ++i) {
      std::vector<int>& row = rows_.try_emplace(keys.Name(i), kDim, 0).first->second;
      const std::vector<int> gradient = gradients.Row(i);
      for (size_t j = 0; j < kDim; ++j) row[j] -= gradient[j];
    }
  }

  void Remove(const TestKeys& keys) {
    size_t removed = 0, expected = 0;
    CHECK_OK(table_->Remove(keys.batch(), &removed));
    for (size_t i = 0; i < keys.size(); ++i) expected += rows_.erase(keys.Name(i));
    CHECK_EQ(removed, expected);
  }

  void Lookup(const TestKeys& keys, const TestRows& defaults) {
    const size_t n = keys.size();
    TestRows found(type_, n, kDim);
    Flags exists(n), contained(n);
    CHECK_OK(table_->Lookup(keys.batch(), {Defaults::kRowPerKey, defaults.in()}, found.out(),
                            exists.data()));
    CHECK_OK(table_->Contains(keys.batch(), contained.data()));
    looked_up_ += n;
    for (size_t i = 0; i < n; ++i) {
      const auto row = rows_.find(keys.Name(i));
      CHECK_EQ(exists[i], row != rows_.end());
      CHECK_EQ(contained[i], exists[i]);
      CHECK(found.Row(i) == (exists[i] ? row->second : defaults.Row(i)));
    }
  }

  void Rare() {
    switch (Pick(12)) {
      case 0:
        CHECK_OK(table_->Clear());
        rows_.clear();
        break;
      case 1:
        CHECK_OK(table_->Shrink());
        break;
      case 2:
        CHECK_OK(table_->Reserve(Pick(20000)));
        break;
    }
  }

  const ValueType type_;
  std::mt19937_64 random_;
  std::unique_ptr<Table> table_;
  ContentsMap rows_;
  uint64_t looked_up_ = 0;
};

TEST(ModelAgreesForIntKeys) {
  for (uint64_t seed : {1, 2, 3}) {
    for (ValueType type : {ValueType::kFloat32, ValueType::kInt64, ValueType::kString}) {
      Model(KeyType::kInt64, type, seed).Run(2000 / kSlowdown);
    }
  }
}

TEST(ModelAgreesForStringKeys) {
  for (uint64_t seed : {4, 5, 6}) {
    for (ValueType type : {ValueType::kFloat64, ValueType::kInt32, ValueType::kString}) {
      Model(KeyType::kString, type, seed).Run(2000 / kSlowdown);
    }
  }
}

TEST(ModelAgreesWithSeveralThreads) {
  const ScopedNumThreads scoped(4);
  Model(KeyType::kInt64, ValueType::kFloat32, 7).Run(2000 / kSlowdown);
  Model(KeyType::kString, ValueType::kString, 8).Run(2000 / kSlowdown);
}

// With one key group, with few, and with as many as possible.
TEST(KeyGroupsAreRightForAnyNumberOfThreads) {
  for (int threads : {1, 2, 3, 4, 5, 8, 16}) {
    const ScopedNumThreads scoped(threads);
    std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kInt64, ValueType::kInt32, 1));
    std::vector<int64_t> numbers(70'000);
    std::vector<int32_t> values(numbers.size());
    std::mt19937_64 random(1);
    std::map<int64_t, int32_t> expected;
    for (size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = static_cast<int64_t>(random() % 50'000);
      expected[numbers[i]] = values[i] = static_cast<int32_t>(i);
    }
    CHECK_OK(table->Assign(KeyBatch(numbers.data(), numbers.size()), values.data()));
    CHECK_EQ(table->size(), expected.size());
    CHECK_OK(table->Lookup(KeyBatch(numbers.data(), numbers.size()), {}, values.data(), nullptr));
    size_t wrong = 0;
    for (size_t i = 0; i < numbers.size(); ++i) wrong += values[i] != expected[numbers[i]];
    CHECK_EQ(wrong, 0u);
  }
}

// If most keys of a batch are in the table, the index grows only for the new keys, wherever these
// are in the batch.
TEST(IndexGrowsForKeysThatAreNew) {
  const ScopedNumThreads one(1);
  constexpr int64_t kThere = 50'000;
  const auto index_bytes_after = [](size_t column, size_t columns) {
    std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kInt64, ValueType::kFloat32, 32));
    const auto one_each = [](size_t, size_t) { return 1; };
    AssignNumbers(*table, TestKeys::Range(KeyType::kInt64, 0, kThere), one_each);
    std::mt19937_64 random(1);
    std::vector<int64_t> numbers(65'536);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto number = static_cast<int64_t>(i);
      numbers[i] =
          i % columns == column ? 1'000'000 + number : static_cast<int64_t>(random() % kThere);
    }
    AssignNumbers(*table, TestKeys(KeyType::kInt64, numbers), one_each);
    return table->stats().index_bytes;
  };
  const uint64_t unchanged = index_bytes_after(1, 1);
  const uint64_t grown = index_bytes_after(0, 1);
  CHECK(grown > unchanged * 3 / 2);
  // 2048 new keys of 65,536.
  for (size_t column : {0, 1, 31}) CHECK(index_bytes_after(column, 32) < unchanged * 5 / 4);
}

// Replaces all keys of a table many times. The table must not grow.
TEST(ChurnKeepsTheTableSmall) {
  for (KeyType key_type : kKeyTypes) {
    std::unique_ptr<Table> table = MakeTable(SpecOf(key_type, ValueType::kInt32, 1));
    constexpr int64_t kLive = 5000, kBatch = 500;
    AssignNumbers(*table, TestKeys::Range(key_type, 0, kLive), [](size_t, size_t) { return 1; });
    const TableStats before = table->stats();
    for (int64_t next = kLive; next < kLive * 200 / kSlowdown; next += kBatch) {
      const TestKeys fresh = TestKeys::Range(key_type, next, next + kBatch);
      AssignNumbers(*table, fresh, [](size_t, size_t) { return 1; });
      size_t removed = 0;
      CHECK_OK(table->Remove(TestKeys::Range(key_type, next - kLive, next - kLive + kBatch).batch(),
                             &removed));
      CHECK_EQ(removed, static_cast<size_t>(kBatch));
    }
    const TableStats after = table->stats();
    CHECK_EQ(after.size, before.size);
    // At most there are 10 % more keys, in stripes that are not equally full.
    CHECK(after.index_bytes <= before.index_bytes * 3 / 2);
    CHECK(after.row_bytes <= before.row_bytes * 4 / 3);
    CHECK(after.string_bytes <= before.string_bytes * 3 / 2);
  }
}

// Large calls whose keys are nearly all new do not search for the keys first. Some of these keys
// are in the table, and some come twice.
void CheckNearlyAllNewKeys(KeyType key_type, bool metadata) {
  constexpr size_t kCall = 20'000, kDim = 2;
  TableSpec spec = SpecOf(key_type, ValueType::kInt32, kDim);
  spec.metadata = metadata;
  const auto table = MakeTable(spec);
  std::mt19937_64 random(3);
  ContentsMap rows;
  for (int call = 0; call < 6; ++call) {
    std::vector<int64_t> numbers(kCall);
    for (size_t i = 0; i < kCall; ++i) {
      const auto fresh = static_cast<int64_t>(rows.size() + i);
      const bool is_new = random() % 16 != 0 || fresh == 0;
      numbers[i] = is_new ? fresh : static_cast<int64_t>(random() % static_cast<uint64_t>(fresh));
    }
    const TestKeys keys(key_type, numbers);
    const TestRows given = TestRows::Make(ValueType::kInt32, kCall, kDim, [&](size_t i, size_t j) {
      return static_cast<int>(i * kDim + j) + call;
    });
    Flags exists(kCall);
    for (size_t i = 0; i < kCall; ++i) exists.Set(i, random() % 40 == 0);
    if (call % 2 == 0) {
      CHECK_OK(table->Assign(keys.batch(), given.in()));
    } else {
      CHECK_OK(table->training().Accumulate(keys.batch(), given.in(), exists.data()));
    }
    for (size_t i = 0; i < kCall; ++i) {
      const auto found = rows.find(keys.Name(i));
      const std::vector<int> row = given.Row(i);
      if (call % 2 == 0) {
        rows[keys.Name(i)] = row;
      } else if (found == rows.end()) {
        if (!exists[i]) rows[keys.Name(i)] = row;
      } else if (exists[i]) {
        for (size_t j = 0; j < kDim; ++j) found->second[j] += row[j];
      }
    }
    CHECK(Contents(*table) == rows);
  }
  const TableStats stats = table->stats();
  CHECK_EQ(stats.inserts, rows.size());
  CHECK_EQ(stats.inserts + stats.updates + stats.exists_mismatch, 6 * kCall);
}

TEST(CallsOfNearlyAllNewKeys) {
  CheckNearlyAllNewKeys(KeyType::kInt64, false);
  CheckNearlyAllNewKeys(KeyType::kInt64, true);
  CheckNearlyAllNewKeys(KeyType::kString, false);
}

// The average number of buckets that the search for a missing key visits.
double BucketsPerMiss(const Stripe& stripe) {
  const BucketArray& array = *stripe.array();
  uint64_t searched = 0;
  for (uint64_t home = 0; home < array.count; ++home) {
    SearchPath path(array, home);
    do {
      ++searched;
    } while ((path.bucket()->state.load() & Bucket::kOverflow) && path.Advance());
  }
  return static_cast<double>(searched) / static_cast<double>(array.count);
}

// Replaces all keys of a stripe many times. Searches for missing keys must not get slower.
TEST(ChurnKeepsSearchesShort) {
  RowArena arena(8);
  Stripe stripe;
  CHECK_OK(stripe.Create(0, true, &arena, 10000));
  std::lock_guard lock(stripe.mutex());
  std::mt19937_64 random(1);
  const auto insert = [&] {
    const uint64_t key_bits = random() >> kStripeBits;
    uint32_t row = 0;
    CHECK_OK(stripe.TakeRow(&row));
    stripe.Insert(key_bits, key_bits, row);
    return key_bits;
  };
  std::vector<uint64_t> bits;
  while (stripe.size() + 1 < stripe.limit()) bits.push_back(insert());
  const double fresh = BucketsPerMiss(stripe);
  for (int turn = 0; turn < 300; ++turn) {
    for (uint64_t& key_bits : bits) {
      const auto entry = stripe.Find(key_bits, key_bits, [](uint32_t) { return true; });
      const uint32_t row = entry.row();
      stripe.Erase(entry);
      stripe.GiveRow(row);
      key_bits = insert();
    }
    stripe.Tidy();  // Tables do so before they write a batch.
  }
  const double used = BucketsPerMiss(stripe);
  CHECK_OK(stripe.Rebuild(stripe.size()));
  const double rebuilt = BucketsPerMiss(stripe);
  std::printf("  buckets per miss: %.2f fresh, %.2f used, %.2f rebuilt\n", fresh, used, rebuilt);
  CHECK(used <= 2 * std::max(fresh, rebuilt));
}

}  // namespace
}  // namespace tfra::test
