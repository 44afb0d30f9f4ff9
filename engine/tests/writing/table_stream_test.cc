// Large tables, whose rows are replaced by stores past the caches, compared with a model and with
// concurrent readers.
#include <algorithm>
#include <random>

#include "concurrency_helpers.h"
#include "writing/streamer.h"

namespace tfra::test {
namespace {

// A table that is large enough for streaming. All elements of a row are the same number.
class LargeTable {
 public:
  LargeTable(size_t dim, RuleKind rule)
      : dim_(dim), initial_slot_(rule == RuleKind::kAdagrad ? 0.1f : 0.0f) {
    TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, static_cast<int64_t>(dim));
    spec.rule.kind = rule;
    table_ = MakeTable(spec);
    const size_t slots = table_->slot_elements();
    written_.resize(kStreamFrom / ((dim + slots) * sizeof(float)) + 1000);
    std::vector<int64_t> keys(written_.size());
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = KeyOf(i);
    for (size_t begin = 0; begin < keys.size(); begin += kBatch) {
      Write({keys.begin() + static_cast<ptrdiff_t>(begin),
             keys.begin() + static_cast<ptrdiff_t>(std::min(begin + kBatch, keys.size()))});
    }
    CHECK_EQ(table_->size(), keys.size());
  }

  static constexpr size_t kBatch = 65'536;

  Table& table() { return *table_; }
  size_t dim() const { return dim_; }
  size_t size() const { return written_.size(); }
  static int64_t KeyOf(size_t number) { return static_cast<int64_t>(number) * 3 - 1000; }

  // Writes to each key a larger number than any that was written before.
  void Write(const std::vector<int64_t>& keys) {
    std::vector<float> values(keys.size() * dim_);
    for (size_t i = 0; i < keys.size(); ++i) {
      std::fill_n(values.begin() + static_cast<ptrdiff_t>(i * dim_), dim_, ++last_);
      const auto number = static_cast<size_t>((keys[i] + 1000) / 3);
      if (number >= written_.size()) written_.resize(number + 1);
      written_[number] = last_;
    }
    CHECK_OK(table_->Assign(KeyBatch(keys.data(), keys.size()), values.data()));
  }

  // Checks all rows of the table.
  void Check() {
    size_t wrong = 0;
    for (size_t begin = 0; begin < written_.size(); begin += kBatch) {
      const size_t n = std::min(kBatch, written_.size() - begin);
      std::vector<int64_t> keys(n);
      for (size_t i = 0; i < n; ++i) keys[i] = KeyOf(begin + i);
      std::vector<float> values(n * dim_), slots(n * table_->slot_elements());
      CHECK_OK(table_->Lookup(KeyBatch(keys.data(), n), {}, values.data(), nullptr, slots.data()));
      for (size_t i = 0; i < n; ++i) {
        const float* row = values.data() + i * dim_;
        wrong += std::count(row, row + dim_, written_[begin + i]) != static_cast<ptrdiff_t>(dim_);
      }
      CHECK_EQ(std::count(slots.begin(), slots.end(), initial_slot_),
               static_cast<ptrdiff_t>(slots.size()));
    }
    CHECK_EQ(wrong, 0u);
  }

 private:
  size_t dim_;
  float initial_slot_;
  std::unique_ptr<Table> table_;
  std::vector<float> written_;  // The last number written to each key, below 2^24; 0: none.
  float last_ = 0;
};

// Random keys of [0, end). Keys below `hot` are more frequent. If `hot` is 0, all keys are
// distinct.
std::vector<int64_t> RandomKeys(size_t n, size_t end, size_t hot, std::mt19937_64* random) {
  std::vector<int64_t> keys(n);
  for (int64_t& key : keys) {
    key = LargeTable::KeyOf((*random)() % (hot > 0 && (*random)() % 2 == 0 ? hot : end));
  }
  if (hot == 0) {
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    std::shuffle(keys.begin(), keys.end(), *random);
  }
  return keys;
}

}  // namespace

TEST(StreamedRowsAgreeWithAModel) {
  std::mt19937_64 random(7);
  for (const auto& [dim, rule] : {std::pair(16, RuleKind::kSgd), std::pair(32, RuleKind::kSgd),
                                  std::pair(64, RuleKind::kAdam), std::pair(112, RuleKind::kSgd),
                                  std::pair(32, RuleKind::kAdagrad)}) {
    LargeTable large(static_cast<size_t>(dim), rule);
    // Batches of distinct keys, with many equal keys, with some new keys, and with few keys.
    large.Write(RandomKeys(100'000, large.size(), 0, &random));
    for (const size_t hot : {1, 50, 5'000}) {
      large.Write(RandomKeys(50'000, large.size(), hot, &random));
    }
    large.Write(RandomKeys(20'000, large.size() + 5'000, 100, &random));
    // Nearly all keys are new, and some come twice.
    std::vector<int64_t> fresh;
    for (size_t i = 0; i < 30'000; ++i) {
      fresh.push_back(LargeTable::KeyOf(large.size() + (i % 11 == 0 ? i / 2 : i)));
    }
    large.Write(fresh);
    for (const size_t n : {0, 1, 7, 300, 2500, 2600, 3001, 9000}) {
      large.Write(RandomKeys(n, large.size(), 0, &random));
      large.Write(RandomKeys(n, large.size(), 3, &random));
    }
    large.Check();
  }
}

TEST(StreamedRowsAreSeenWhole) {
  LargeTable large(32, RuleKind::kSgd);
  constexpr size_t kKeys = 3000;
  std::vector<int64_t> keys(kKeys);
  for (size_t i = 0; i < kKeys; ++i) keys[i] = LargeTable::KeyOf(i * 100);
  Errors errors{0};
  // The number of a row must only grow.
  const auto watch = [&](std::vector<float>* seen) {
    std::vector<float> values(kKeys * large.dim());
    errors += !large.table().Lookup(KeyBatch(keys.data(), kKeys), {}, values.data(), nullptr).ok();
    for (size_t i = 0; i < kKeys; ++i) {
      const float* row = values.data() + i * large.dim();
      errors += std::count(row, row + large.dim(), row[0]) != static_cast<ptrdiff_t>(large.dim());
      errors += row[0] < (*seen)[i];
      (*seen)[i] = row[0];
    }
  };
  std::vector<float> seen[2] = {std::vector<float>(kKeys), std::vector<float>(kKeys)};
  Run({[&] {
        std::mt19937_64 random(4);
        std::vector<int64_t> shuffled = keys;
        for (int round = 0; round < 500 * kScale; ++round) {
          std::shuffle(shuffled.begin(), shuffled.end(), random);
          large.Write(shuffled);
        }
      }},
      {[&] { watch(&seen[0]); }, [&] { watch(&seen[1]); }});
  CHECK_EQ(errors.load(), 0);
  large.Check();
}

TEST(StreamedRowsAreCounted) {
  LargeTable large(64, RuleKind::kSgd);
  std::mt19937_64 random(5);
  const uint64_t before = large.table().stats().updates;
  uint64_t written = 0;
  for (const size_t hot : {0, 0, 10}) {
    const std::vector<int64_t> keys = RandomKeys(20'000, large.size(), hot, &random);
    large.Write(keys);
    written += keys.size();
  }
  CHECK_EQ(large.table().stats().updates - before, written);
  // With kDrop, missing keys are not inserted, and the others are written.
  std::vector<int64_t> keys = RandomKeys(20'000, large.size(), 0, &random);
  const size_t there = keys.size();
  for (size_t i = 0; i < 5'000; ++i) keys.push_back(LargeTable::KeyOf(large.size() + i));
  std::shuffle(keys.begin(), keys.end(), random);
  std::vector<float> values(keys.size() * large.dim(), 1.0f);
  const uint64_t size = large.table().size();
  CHECK_OK(large.table().Assign(KeyBatch(keys.data(), keys.size()), values.data(), nullptr, nullptr,
                                {}, NewKeys::kDrop));
  CHECK_EQ(large.table().size(), size);
  CHECK_EQ(large.table().stats().updates - before, written + there);
}

TEST(LargeTablesKeepSlotsAndMetadata) {
  constexpr size_t kDim = 32, kKeys = 600'000, kSome = 20'000;
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, kDim);
  spec.rule.kind = RuleKind::kAdagrad;
  spec.metadata = true;
  const auto table = MakeTable(spec);
  std::vector<int64_t> keys(kKeys);
  for (size_t i = 0; i < kKeys; ++i) keys[i] = static_cast<int64_t>(i);
  std::vector<float> values(kKeys * kDim, 1.0f), slots(kKeys * kDim, 2.0f);
  CHECK_OK(table->Assign(KeyBatch(keys.data(), kKeys), values.data(), slots.data()));
  std::mt19937_64 random(6);
  std::shuffle(keys.begin(), keys.end(), random);
  std::fill_n(values.begin(), kSome * kDim, 3.0f);
  std::fill_n(slots.begin(), kSome * kDim, 4.0f);
  CHECK_OK(table->Assign(KeyBatch(keys.data(), kSome), values.data(), slots.data()));
  CHECK_OK(table->Lookup(KeyBatch(keys.data(), kSome), {}, values.data(), nullptr, slots.data()));
  CHECK_EQ(std::count(values.begin(), values.begin() + kSome * kDim, 3.0f), kSome * kDim);
  CHECK_EQ(std::count(slots.begin(), slots.begin() + kSome * kDim, 4.0f), kSome * kDim);
  std::vector<RowMetadata> metadata(kKeys);
  Flags exists(kKeys);
  CHECK_OK(
      table->upkeep().LookupMetadata(KeyBatch(keys.data(), kKeys), metadata.data(), exists.data()));
  const auto writes = [&](uint32_t count) {
    return std::count_if(metadata.begin(), metadata.end(),
                         [=](const RowMetadata& m) { return m.count == count; });
  };
  CHECK_EQ(writes(2), static_cast<ptrdiff_t>(kSome));
  CHECK_EQ(writes(1), static_cast<ptrdiff_t>(kKeys - kSome));
}

}  // namespace tfra::test
