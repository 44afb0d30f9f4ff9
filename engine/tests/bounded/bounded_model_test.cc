// Random calls on an exact bounded table (all keys are candidates) and on a reference, which
// follows "Bounded tables" in tfra/table.h. After each call both have the same keys, rows and
// scores.
//
// If several keys have the lowest score, any of them may be evicted, and the table may choose
// another key than the reference. So the test compares the scores of the keys that stay, and checks
// that each key of the table has the row and the score that the reference gave it.
#include <algorithm>
#include <random>

#include "bounded_reference.h"

namespace tfra::test {
namespace {

constexpr size_t kDim = 2;

class History {
 public:
  History(const TableSpec& spec, uint64_t seed)
      : spec_(spec),
        random_(seed),
        table_(MakeTable(spec)),
        reference_(spec.bound),
        range_(static_cast<int>(3 * spec.bound.max_capacity)) {}

  void Run(int calls) {
    for (int call = 0; call < calls && FailureCount() == 0; ++call) Call();
    const TableStats stats = table_->stats();
    CHECK_EQ(stats.evictions, reference_.evictions);
    CHECK_EQ(stats.score_too_low, reference_.score_too_low);
    CHECK_EQ(stats.inserts - stats.removals - stats.evictions, stats.size);
    CHECK(stats.capacity <= static_cast<uint64_t>(spec_.bound.max_capacity));
    CHECK(full_ * 2 > calls);  // The table must be full most of the time.
  }

 private:
  int Pick(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }

  // Few different values, so that scores are often equal, and some at the ends of their ranges.
  uint64_t PickScore() {
    const uint64_t ends[] = {
        0,         1,          UINT32_MAX - 1,         UINT32_MAX, uint64_t{1} << 32, kMaxScore - 1,
        kMaxScore, UINT64_MAX, (uint64_t{3} << 32) - 2};
    return Pick(4) == 0 ? ends[Pick(9)] : static_cast<uint64_t>(Pick(50));
  }

  Scores PickScores(size_t n) {
    given_.resize(n);
    const EvictStrategy strategy = spec_.bound.strategy;
    const bool counts = strategy == EvictStrategy::kLfu || strategy == EvictStrategy::kEpochLfu;
    const int choice = Pick(strategy == EvictStrategy::kCustomized ? 2 : 12);
    for (uint64_t& score : given_) score = PickScore();
    if (choice == 0) return {Scores::kExact, given_.data()};
    if (choice != 1 || !counts) return {};
    for (uint64_t& count : given_) count = Pick(20) == 0 ? PickScore() : uint64_t(Pick(4));
    return {Scores::kCounts, given_.data()};
  }

  void Call() {
    const size_t n = static_cast<size_t>(Pick(std::min(range_, 60)) + 1);
    std::vector<int64_t> numbers(n);
    for (int64_t& number : numbers) number = Pick(Pick(2) ? range_ : range_ / 3 + 1);
    const TestKeys keys(spec_.key_type, numbers);
    const TestRows rows =
        TestRows::Make(spec_.value_type, n, kDim, [&](size_t, size_t) { return Pick(5); });
    const Scores scores = PickScores(n);
    const bool numeric = spec_.value_type != ValueType::kString;
    switch (Pick(14)) {
      case 0:
      case 1:
      case 2:
        Assign(keys, rows, scores);
        break;
      case 3:
        if (numeric) Accumulate(keys, rows, scores);
        break;
      case 4:
        if (numeric) ApplyGradients(keys, rows, scores);
        break;
      case 5:
      case 6:
        FindOrInsert(keys, rows, scores);
        break;
      case 7:
        CHECK_OK(
            table_->training().AssignExisting(keys.batch(), rows.in(), nullptr, nullptr, scores));
        reference_.Write(keys, scores, [&](size_t i, const std::vector<int>* found) {
          return found ? std::optional(rows.Row(i)) : std::nullopt;
        });
        break;
      case 8:
        numbers.resize(std::min<size_t>(n, 2));  // Few keys, so that the table is often full.
        Remove(TestKeys(spec_.key_type, numbers));
        break;
      case 9:
        AssignScores(keys);
        break;
      case 10:
        BySelection();
        break;
      default:
        Rare();
    }
    Compare();
  }

  void Assign(const TestKeys& keys, const TestRows& rows, const Scores& scores) {
    ExportBatch evicted;
    Flags rejected(keys.size(), true);
    CHECK_OK(table_->scores().AssignAndEvict(keys.batch(), rows.in(), nullptr, nullptr, scores,
                                             &evicted, rejected.data()));
    reference_.Write(keys, scores,
                     [&](size_t i, const std::vector<int>*) { return std::optional(rows.Row(i)); });
    const Items items = ItemsOf(spec_, evicted);
    CHECK(ScoresOf(items) == ScoresOf(reference_.evicted));
    // Each evicted key was in the table before the call, with this row and this score.
    Items known = reference_.items;
    known.insert(reference_.evicted.begin(), reference_.evicted.end());
    for (const auto& [name, item] : items) CHECK(known.contains(name) && known[name] == item);
    for (size_t i = 0; i < keys.size(); ++i) {
      CHECK_EQ(rejected[i], reference_.rejected.contains(keys.Name(i)));
    }
  }

  void Accumulate(const TestKeys& keys, const TestRows& deltas, const Scores& scores) {
    Flags exists(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) exists.Set(i, Pick(2) == 0);
    CHECK_OK(table_->training().Accumulate(keys.batch(), deltas.in(), exists.data(), scores));
    reference_.Write(
        keys, scores,
        [&](size_t i, const std::vector<int>* found) -> std::optional<std::vector<int>> {
          if ((found != nullptr) != exists[i]) return std::nullopt;
          std::vector<int> row = deltas.Row(i);
          for (size_t j = 0; j < kDim && found != nullptr; ++j) row[j] += (*found)[j];
          return row;
        });
  }

  void ApplyGradients(const TestKeys& keys, const TestRows& gradients, const Scores& scores) {
    UpdateParams params;
    params.learning_rate = 1;
    const uint64_t before = reference_.score_too_low;
    CHECK_OK(table_->training().ApplyGradients(keys.batch(), gradients.in(), spec_.value_type,
                                               params, scores));
    reference_.Write(keys, scores, [&](size_t i, const std::vector<int>* found) {
      std::vector<int> row = found ? *found : std::vector<int>(kDim, 0);
      for (size_t j = 0; j < kDim; ++j) row[j] -= gradients.Row(i)[j];
      return std::optional(row);
    });
    // The gradients of equal keys count as one write.
    reference_.score_too_low = before + reference_.rejected.size();
  }

  void FindOrInsert(const TestKeys& keys, const TestRows& defaults, const Scores& scores) {
    const size_t n = keys.size();
    TestRows values(spec_.value_type, n, kDim);
    Flags exists(n);
    const Items before = reference_.items;
    CHECK_OK(table_->training().FindOrInsert(keys.batch(), {Defaults::kRowPerKey, defaults.in()},
                                             values.out(), exists.data(), scores));
    reference_.Write(keys, scores, [&](size_t i, const std::vector<int>* found) {
      return std::optional(found ? *found : defaults.Row(i));
    });
    std::map<std::string, size_t> first;
    for (size_t i = 0; i < n; ++i) {
      const std::string name = keys.Name(i);
      const bool repeated = !first.emplace(name, i).second;
      const bool there = before.contains(name) || (repeated && !reference_.rejected.contains(name));
      CHECK_EQ(exists[i], there);
      const std::vector<int> expected =
          before.contains(name) ? before.at(name).row : defaults.Row(there ? first[name] : i);
      CHECK(values.Row(i) == expected);
    }
  }

  void Remove(const TestKeys& keys) {
    size_t removed = 0, expected = 0;
    CHECK_OK(table_->Remove(keys.batch(), &removed));
    for (size_t i = 0; i < keys.size(); ++i) expected += reference_.items.erase(keys.Name(i));
    CHECK_EQ(removed, expected);
  }

  void AssignScores(const TestKeys& keys) {
    const size_t n = keys.size();
    for (uint64_t& score : given_) score = PickScore();
    CHECK_OK(table_->scores().Assign(keys.batch(), given_.data()));
    reference_.AdvancePast(given_);
    for (size_t i = 0; i < n; ++i) {
      const auto item = reference_.items.find(keys.Name(i));
      if (item != reference_.items.end()) item->second.score = std::min(given_[i], kMaxScore);
    }
    std::vector<uint64_t> scores(n);
    Flags exists(n);
    CHECK_OK(table_->scores().Lookup(keys.batch(), scores.data(), exists.data()));
    for (size_t i = 0; i < n; ++i) {
      const auto item = reference_.items.find(keys.Name(i));
      CHECK_EQ(exists[i], item != reference_.items.end());
      CHECK_EQ(scores[i], exists[i] ? item->second.score : 0);
    }
  }

  void BySelection() {
    const uint64_t threshold = PickScore();
    const auto below = [=](uint64_t score) { return score < threshold; };
    Items expected;
    for (const auto& item : reference_.items) {
      if (below(item.second.score)) expected.insert(item);
    }
    uint64_t count = 0, removed = 0;
    ExportBatch batch;
    CHECK_OK(table_->scores().CountIf(below, &count));
    CHECK_EQ(count, expected.size());
    CHECK_OK(table_->scores().ExportIf(below, &batch));
    CHECK(ItemsOf(spec_, batch) == expected);
    if (Pick(20) > 0) return;
    CHECK_OK(table_->scores().RemoveIf(below, &removed));
    CHECK_EQ(removed, expected.size());
    for (const auto& item : expected) reference_.items.erase(item.first);
  }

  void Rare() {
    switch (Pick(6)) {
      case 0:
        if (Pick(10) > 0) return;
        CHECK_OK(table_->Clear());
        reference_.items.clear();
        break;
      case 1:
        CHECK_OK(table_->Shrink());
        break;
      case 2:
        CHECK_OK(table_->Reserve(Pick(2 * range_)));
        break;
      case 3: {
        const uint32_t epoch = Pick(20) == 0 ? UINT32_MAX : static_cast<uint32_t>(Pick(5));
        table_->scores().SetEpoch(epoch);
        reference_.SetEpoch(epoch);
        break;
      }
      case 4: {
        std::unique_ptr<Table> copy;
        CHECK_OK(table_->CopyWithRule(spec_.rule, true, &copy));
        ExportBatch batch;
        CHECK_OK(copy->ExportAll(&batch));
        CHECK(ItemsOf(spec_, batch) == ItemsOf(spec_, ExportOf(*table_)));
        CHECK_EQ(copy->scores().epoch(), table_->scores().epoch());
        break;
      }
    }
  }

  static ExportBatch ExportOf(Table& table) {
    ExportBatch batch;
    CHECK_OK(table.ExportAll(&batch));
    return batch;
  }

  // Compares the table with the reference, which then takes over the table's choice of evicted
  // keys.
  void Compare() {
    const Items items = ItemsOf(spec_, ExportOf(*table_));
    CHECK_EQ(table_->size(), items.size());
    CHECK(items.size() <= static_cast<size_t>(spec_.bound.max_capacity));
    CHECK(ScoresOf(items) == ScoresOf(reference_.items));
    Items known = reference_.items;
    known.insert(reference_.evicted.begin(), reference_.evicted.end());
    for (const auto& [name, item] : items) CHECK(known.contains(name) && known[name] == item);
    reference_.items = items;
    reference_.evicted.clear();
    full_ += items.size() == static_cast<size_t>(spec_.bound.max_capacity);
  }

  const TableSpec spec_;
  std::mt19937_64 random_;
  std::unique_ptr<Table> table_;
  Reference reference_;
  const int range_;
  int full_ = 0;  // Calls after which the table was full.
  std::vector<uint64_t> given_;
};

void RunHistories(EvictStrategy strategy) {
  for (KeyType key_type : kKeyTypes) {
    for (ValueType type : {ValueType::kFloat32, ValueType::kString}) {
      for (int64_t max_capacity : {1, 7, 60, 300}) {
        TableSpec spec = SpecOf(key_type, type, kDim);
        if (IsFloating(type)) spec.rule.kind = RuleKind::kSgd;
        spec.bound = {max_capacity, strategy, false};
        // With fewer calls, the largest table would not be full most of the time.
        History(spec, static_cast<uint64_t>(max_capacity)).Run(800);
      }
    }
  }
}

TEST(BoundedModelLru) { RunHistories(EvictStrategy::kLru); }
TEST(BoundedModelLfu) { RunHistories(EvictStrategy::kLfu); }
TEST(BoundedModelEpochLru) { RunHistories(EvictStrategy::kEpochLru); }
TEST(BoundedModelEpochLfu) { RunHistories(EvictStrategy::kEpochLfu); }
TEST(BoundedModelCustomized) { RunHistories(EvictStrategy::kCustomized); }

}  // namespace
}  // namespace tfra::test
