// Reads the input as a sequence of calls with arbitrary keys, and makes each call on a table and on
// a model of it. After each call both have the same keys, rows, metadata and scores.
//
// The model is that of the engine's tests (bounded_reference.h). A row of the model is a vector of
// numbers: the value and, if the table has metadata, the time of the last write and the number of
// writes.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "bounded_reference.h"
#include "input.h"

namespace tfra::fuzz {
namespace {

using test::Flags;
using test::Item;
using test::Items;
using test::Reference;
using test::TestKeys;
using test::TestRows;
using Row = std::vector<int>;

// With so few calls and keys, the numbers of a row are exact in float32.
constexpr int kMostCalls = 200;
constexpr uint32_t kMostKeys = 24;

TableSpec SpecOf(Input* input) {
  constexpr ValueType kTypes[] = {ValueType::kFloat32, ValueType::kFloat64, ValueType::kInt32,
                                  ValueType::kInt64, ValueType::kString};
  TableSpec spec;
  spec.key_type = input->Flag() ? KeyType::kString : KeyType::kInt64;
  spec.value_type = kTypes[input->Below(std::size(kTypes))];
  spec.dim = 1 + input->Below(3);
  spec.metadata = input->Flag();
  if (input->Flag()) spec.bound.max_capacity = 1 + input->Below(40);
  spec.bound.strategy = static_cast<EvictStrategy>(input->Below(5));
  spec.bound.remember_counts = false;
  if (IsFloating(spec.value_type)) spec.rule.kind = RuleKind::kSgd;
  return spec;
}

// Returns the bound of the model. For an unbounded table it is so large that the model is never
// full.
Bound BoundOf(const TableSpec& spec) {
  Bound bound = spec.bound;
  if (bound.max_capacity == 0) bound.max_capacity = INT64_MAX;
  return bound;
}

// A table, its model, and the calls on both.
class Program {
 public:
  Program(const TableSpec& spec, Input* input)
      : spec_(spec),
        dim_(static_cast<size_t>(spec.dim)),
        bounded_(spec.bound.max_capacity > 0),
        input_(*input),
        reference_(BoundOf(spec)) {
    REQUIRE_OK(Table::Create(spec, &table_));
    SetClock(1000);
  }

  void Run() {
    for (int call = 0; call < kMostCalls && !input_.empty(); ++call) {
      Call();
      Compare();
      // The model reports failures to the test harness.
      REQUIRE(test::FailureCount() == 0);
    }
    const TableStats stats = table_->stats();
    REQUIRE(stats.inserts - stats.removals - stats.evictions - stats.expirations == stats.size);
  }

 private:
  // The arguments of one writing call.
  struct Batch {
    TestKeys keys;
    TestRows rows;
    Scores scores;
    std::vector<size_t> first;  // (n): the position of the first equal key.
    size_t size() const { return keys.size(); }
  };

  TestKeys Keys(size_t n) {
    std::vector<int64_t> ints;
    std::vector<std::string> strings;
    for (size_t i = 0; i < n; ++i) {
      if (spec_.key_type == KeyType::kString) {
        strings.push_back(input_.StringKey());
      } else {
        ints.push_back(input_.IntKey());
      }
    }
    return spec_.key_type == KeyType::kString ? TestKeys(std::move(strings))
                                              : TestKeys(KeyType::kInt64, ints);
  }
  TestKeys Keys() { return Keys(input_.Below(kMostKeys)); }

  uint64_t Score() {
    return input_.Flag() ? input_.Below(50) : static_cast<uint64_t>(input_.Integer());
  }

  Batch MakeBatch() {
    TestKeys keys = Keys();
    const size_t n = keys.size();
    TestRows rows = TestRows::Make(spec_.value_type, n, dim_, [&](size_t, size_t) {
      return static_cast<int>(input_.Below(100));
    });
    Batch batch{std::move(keys), std::move(rows), {}, std::vector<size_t>(n)};
    std::map<std::string, size_t> first;
    for (size_t i = 0; i < n; ++i) {
      batch.first[i] = first.emplace(batch.keys.Name(i), i).first->second;
    }
    if (!bounded_ || input_.Below(3) > 0) return batch;
    const EvictStrategy strategy = spec_.bound.strategy;
    const bool counts = strategy == EvictStrategy::kLfu || strategy == EvictStrategy::kEpochLfu;
    given_.resize(n);
    for (uint64_t& score : given_) score = Score();
    batch.scores = {counts && input_.Flag() ? Scores::kCounts : Scores::kExact, given_.data()};
    return batch;
  }

  // Returns the row of the model after one more write: `value`, and the new metadata. `count` says
  // whether the write is counted.
  Row Written(Row value, const Row* found, bool count = true) const {
    if (!spec_.metadata) return value;
    uint32_t writes = found == nullptr ? 0 : static_cast<uint32_t>(found->back());
    if (count && writes < UINT32_MAX) ++writes;
    value.resize(dim_);
    value.push_back(static_cast<int>(now_));
    value.push_back(static_cast<int>(writes));
    return value;
  }
  Row ValueOf(const Row* found) const {
    return found == nullptr ? Row(dim_, 0) : Row(found->begin(), found->begin() + dim_);
  }

  NewKeys TakeNewKeys() {
    return input_.Below(4) == 0   ? NewKeys::kDrop
           : input_.Below(4) == 0 ? NewKeys::kAdmit
                                  : NewKeys::kInsert;
  }

  void SetClock(uint32_t now) {
    now_ = now;
    table_->upkeep().SetClock(now);
  }

  bool numeric() const { return spec_.value_type != ValueType::kString; }
  bool floating() const { return IsFloating(spec_.value_type); }

  void Call() {
    switch (input_.Below(18)) {
      case 0:
      case 1:
        return Assign();
      case 2:
        return AssignAndEvict();
      case 3:
        return AssignExisting();
      case 4:
      case 5:
        return FindOrInsert();
      case 6:
        return Accumulate();
      case 7:
        return AddToRows();
      case 8:
        return ApplyGradients();
      case 9:
        return Touch();
      case 10:
        return Remove();
      case 11:
        return Lookup();
      case 12:
        return Restrict();
      case 13:
        return Expire();
      case 14:
        return AssignScores();
      case 15:
        return BySelection();
      case 16:
        return Export();
      default:
        return Rare();
    }
  }

  void Assign() {
    const Batch batch = MakeBatch();
    const NewKeys new_keys = TakeNewKeys();
    std::vector<RowMetadata> metadata(batch.size());
    const bool given = spec_.metadata && input_.Flag();
    for (RowMetadata& row : metadata) row = {input_.Take<uint32_t>(), input_.Take<uint32_t>()};
    REQUIRE_OK(table_->Assign(batch.keys.batch(), batch.rows.in(), nullptr,
                              given ? metadata.data() : nullptr, batch.scores, new_keys));
    reference_.Write(batch.keys, batch.scores,
                     [&](size_t i, const Row* found) -> std::optional<Row> {
                       if (found == nullptr && new_keys == NewKeys::kDrop) return std::nullopt;
                       Row row = Written(batch.rows.Row(i), found);
                       if (given) {
                         row[dim_] = static_cast<int>(metadata[i].time);
                         row[dim_ + 1] = static_cast<int>(metadata[i].count);
                       }
                       return row;
                     });
  }

  void AssignAndEvict() {
    const Batch batch = MakeBatch();
    ExportBatch evicted;
    Flags rejected(batch.size(), true);
    REQUIRE_OK(table_->scores().AssignAndEvict(batch.keys.batch(), batch.rows.in(), nullptr,
                                               nullptr, batch.scores, &evicted, rejected.data()));
    reference_.Write(batch.keys, batch.scores, [&](size_t i, const Row* found) {
      return std::optional(Written(batch.rows.Row(i), found));
    });
    const Items items = ItemsOf(evicted);
    REQUIRE(test::ScoresOf(items) == test::ScoresOf(reference_.evicted));
    REQUIRE(AllKnown(items));
    for (size_t i = 0; i < batch.size(); ++i) {
      REQUIRE(rejected[i] == reference_.rejected.contains(batch.keys.Name(i)));
    }
  }

  void AssignExisting() {
    const Batch batch = MakeBatch();
    REQUIRE_OK(table_->training().AssignExisting(batch.keys.batch(), batch.rows.in(), nullptr,
                                                 nullptr, batch.scores));
    reference_.Write(batch.keys, batch.scores, [&](size_t i, const Row* found) {
      return found ? std::optional(Written(batch.rows.Row(i), found)) : std::nullopt;
    });
  }

  void FindOrInsert() {
    const Batch batch = MakeBatch();
    TestRows values(spec_.value_type, batch.size(), dim_);
    Flags exists(batch.size());
    const Items before = reference_.items;
    REQUIRE_OK(table_->training().FindOrInsert(batch.keys.batch(),
                                               {Defaults::kRowPerKey, batch.rows.in()},
                                               values.out(), exists.data(), batch.scores));
    reference_.Write(batch.keys, batch.scores, [&](size_t i, const Row* found) {
      return std::optional(Written(found ? ValueOf(found) : batch.rows.Row(i), found));
    });
    for (size_t i = 0; i < batch.size(); ++i) {
      const std::string name = batch.keys.Name(i);
      const bool inserted = batch.first[i] != i && !reference_.rejected.contains(name);
      REQUIRE(exists[i] == (before.contains(name) || inserted));
      const Row expected = before.contains(name) ? ValueOf(&before.at(name).row)
                                                 : batch.rows.Row(inserted ? batch.first[i] : i);
      REQUIRE(values.Row(i) == expected);
    }
  }

  void Accumulate() {
    const Batch batch = MakeBatch();
    Flags exists(batch.size());
    for (size_t i = 0; i < batch.size(); ++i) exists.Set(i, input_.Flag());
    const NewKeys new_keys = input_.Below(4) == 0 ? NewKeys::kDrop : NewKeys::kInsert;
    const Status status = table_->training().Accumulate(batch.keys.batch(), batch.rows.in(),
                                                        exists.data(), batch.scores, new_keys);
    REQUIRE(status.ok() == numeric());
    if (!status.ok()) return;
    reference_.Write(batch.keys, batch.scores,
                     [&](size_t i, const Row* found) -> std::optional<Row> {
                       if ((found != nullptr) != exists[i]) return std::nullopt;
                       if (found == nullptr && new_keys == NewKeys::kDrop) return std::nullopt;
                       return Written(Sum(ValueOf(found), batch.rows.Row(i), 1), found);
                     });
  }

  static Row Sum(Row row, const Row& other, int scale) {
    for (size_t j = 0; j < row.size(); ++j) row[j] += scale * other[j];
    return row;
  }

  void AddToRows() {
    const Batch batch = MakeBatch();
    const NewKeys new_keys = TakeNewKeys();
    const Status status = table_->training().AddToRows(batch.keys.batch(), batch.rows.in(), nullptr,
                                                       batch.scores, new_keys);
    REQUIRE(status.ok() == floating());
    if (!status.ok()) return;
    reference_.Write(batch.keys, batch.scores,
                     [&](size_t i, const Row* found) -> std::optional<Row> {
                       if (found == nullptr && new_keys == NewKeys::kDrop) return std::nullopt;
                       return Written(Sum(ValueOf(found), batch.rows.Row(i), 1), found);
                     });
  }

  void ApplyGradients() {
    const Batch batch = MakeBatch();
    const NewKeys new_keys = TakeNewKeys();
    UpdateParams params;
    params.learning_rate = 1;
    const Status status = table_->training().ApplyGradients(
        batch.keys.batch(), batch.rows.in(), spec_.value_type, params, batch.scores, new_keys);
    REQUIRE(status.ok() == floating());
    if (!status.ok()) return;
    reference_.Write(batch.keys, batch.scores,
                     [&](size_t i, const Row* found) -> std::optional<Row> {
                       if (found == nullptr && new_keys == NewKeys::kDrop) return std::nullopt;
                       // All gradients of a key count as one write.
                       return Written(Sum(ValueOf(found), batch.rows.Row(i), -1), found,
                                      found == nullptr || batch.first[i] == i);
                     });
  }

  void Touch() {
    const TestKeys keys = Keys();
    const NewKeys new_keys = numeric() ? TakeNewKeys() : NewKeys::kDrop;
    const Status status = table_->upkeep().Touch(keys.batch(), new_keys);
    REQUIRE(status.ok() == spec_.metadata);
    if (!status.ok()) return;
    std::set<std::string> met;
    std::vector<bool> first(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) first[i] = met.insert(keys.Name(i)).second;
    reference_.Write(keys, {}, [&](size_t i, const Row* found) -> std::optional<Row> {
      if (!first[i] || (found == nullptr && new_keys == NewKeys::kDrop)) return std::nullopt;
      return Written(ValueOf(found), found);
    });
  }

  void Remove() {
    const TestKeys keys = Keys(input_.Below(6));
    size_t removed = 0, expected = 0;
    REQUIRE_OK(table_->Remove(keys.batch(), &removed));
    for (size_t i = 0; i < keys.size(); ++i) expected += reference_.items.erase(keys.Name(i));
    REQUIRE(removed == expected);
  }

  void Lookup() {
    const TestKeys keys = Keys();
    const size_t n = keys.size();
    TestRows values(spec_.value_type, n, dim_);
    Flags exists(n), contains(n), scored(n), dated(n);
    std::vector<uint64_t> scores(n, 7);
    std::vector<RowMetadata> metadata(n, RowMetadata{7, 7});
    REQUIRE_OK(table_->Lookup(keys.batch(), {}, values.out(), exists.data()));
    REQUIRE_OK(table_->Contains(keys.batch(), contains.data()));
    REQUIRE(table_->scores().Lookup(keys.batch(), scores.data(), scored.data()).ok() == bounded_);
    REQUIRE(table_->upkeep().LookupMetadata(keys.batch(), metadata.data(), dated.data()).ok() ==
            spec_.metadata);
    for (size_t i = 0; i < n; ++i) {
      const auto item = reference_.items.find(keys.Name(i));
      const bool found = item != reference_.items.end();
      const Row* row = found ? &item->second.row : nullptr;
      REQUIRE(exists[i] == found && contains[i] == found);
      REQUIRE(values.Row(i) == ValueOf(row));
      if (bounded_) REQUIRE(scored[i] == found && scores[i] == (found ? item->second.score : 0));
      if (!spec_.metadata) continue;
      REQUIRE(dated[i] == found);
      REQUIRE(static_cast<int>(metadata[i].time) == (found ? (*row)[dim_] : 0));
      REQUIRE(static_cast<int>(metadata[i].count) == (found ? (*row)[dim_ + 1] : 0));
    }
  }

  // Rows of equal rank are kept in any order, so the model copies the choice of the table.
  void Restrict() {
    const Ranking ranking = input_.Flag() ? Ranking::kNewest : Ranking::kMostFrequent;
    const uint64_t keep =
        input_.Flag() ? input_.Below(64) : static_cast<uint64_t>(input_.Integer());
    uint64_t evicted = 0;
    const Status status = table_->upkeep().Restrict(keep, ranking, &evicted);
    REQUIRE(status.ok() == spec_.metadata);
    if (!status.ok()) return;
    const uint64_t size = reference_.items.size();
    REQUIRE(evicted == (size > keep ? size - keep : 0));
    const Items left = ItemsOf(Exported());
    REQUIRE(left.size() == size - evicted);
    const auto rank_of = [&](const Row& row) {
      const std::pair<uint32_t, uint32_t> rank(row[dim_], row[dim_ + 1]);
      return ranking == Ranking::kNewest ? rank : std::pair(rank.second, rank.first);
    };
    std::optional<std::pair<uint32_t, uint32_t>> lowest,
        highest;  // Lowest rank kept, highest removed.
    for (const auto& [name, item] : reference_.items) {
      const auto rank = rank_of(item.row);
      if (left.contains(name)) {
        lowest = std::min(lowest.value_or(rank), rank);
      } else {
        highest = std::max(highest.value_or(rank), rank);
      }
    }
    if (lowest && highest) REQUIRE(*highest <= *lowest);
    std::erase_if(reference_.items, [&](const auto& item) { return !left.contains(item.first); });
  }

  void Expire() {
    ExpiryRule rule;
    rule.written_before = input_.Flag() ? now_ : input_.Take<uint32_t>();
    uint64_t expired = 0;
    const Status status = table_->upkeep().Expire(rule, &expired);
    if (!spec_.metadata) {
      REQUIRE(!status.ok() || rule.written_before == 0);
      return;
    }
    REQUIRE_OK(status);
    REQUIRE(expired == std::erase_if(reference_.items, [&](const auto& item) {
              return static_cast<uint32_t>(item.second.row[dim_]) < rule.written_before;
            }));
  }

  void AssignScores() {
    const TestKeys keys = Keys();
    std::vector<uint64_t> scores(keys.size());
    for (uint64_t& score : scores) score = Score();
    REQUIRE(table_->scores().Assign(keys.batch(), scores.data()).ok() == bounded_);
    if (!bounded_) return;
    reference_.AdvancePast(scores);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto item = reference_.items.find(keys.Name(i));
      if (item != reference_.items.end()) item->second.score = std::min(scores[i], kMaxScore);
    }
  }

  void BySelection() {
    const uint64_t threshold = Score();
    const auto below = [=](uint64_t score) { return score < threshold; };
    uint64_t count = 0, removed = 0;
    ExportBatch batch;
    REQUIRE(table_->scores().CountIf(below, &count).ok() == bounded_);
    if (!bounded_) return;
    Items expected = reference_.items;
    std::erase_if(expected, [&](const auto& item) { return !below(item.second.score); });
    REQUIRE(count == expected.size());
    REQUIRE_OK(table_->scores().ExportIf(below, &batch));
    REQUIRE(ItemsOf(batch) == expected);
    if (!input_.Flag()) return;
    REQUIRE_OK(table_->scores().RemoveIf(below, &removed));
    REQUIRE(removed == expected.size());
    for (const auto& item : expected) reference_.items.erase(item.first);
  }

  // Exports batches of arbitrary sizes; each key is exported once.
  void Export() {
    ExportCursor cursor;
    Items all;
    while (!cursor.done) {
      ExportBatch batch;
      REQUIRE_OK(table_->Export(1 + input_.Below(40), &cursor, &batch));
      Items items = ItemsOf(batch);
      const size_t size = items.size();
      const size_t before = all.size();
      all.merge(items);
      REQUIRE(all.size() == before + size);
    }
    REQUIRE(all == ItemsOf(Exported()));
  }

  void Rare() {
    switch (input_.Below(6)) {
      case 0:
        REQUIRE_OK(table_->Clear());
        reference_.items.clear();
        break;
      case 1:
        REQUIRE_OK(table_->Shrink());
        break;
      case 2:
        REQUIRE_OK(table_->Reserve(input_.Take<uint16_t>() % 20000));
        break;
      case 3: {
        const auto epoch = static_cast<uint32_t>(input_.Integer());
        table_->scores().SetEpoch(epoch);
        reference_.SetEpoch(epoch);
        break;
      }
      case 4:
        SetClock(input_.Flag() ? now_ + input_.Below(4) : input_.Take<uint32_t>());
        break;
      default: {
        std::unique_ptr<Table> copy;
        REQUIRE_OK(table_->CopyWithRule(spec_.rule, true, &copy));
        REQUIRE(copy->upkeep().clock() == now_ &&
                copy->scores().epoch() == table_->scores().epoch());
        table_.swap(copy);
        REQUIRE(ItemsOf(Exported()) == reference_.items);
        // The scores of the copy continue from its highest score, so its later scores may differ
        // from those of the model. The calls that follow use the original table.
        if (bounded_) table_.swap(copy);
      }
    }
  }

  ExportBatch Exported() {
    ExportBatch batch;
    REQUIRE_OK(table_->ExportAll(&batch));
    return batch;
  }

  Items ItemsOf(const ExportBatch& batch) const {
    const TestRows rows = TestRows::Of(spec_.value_type, dim_, batch);
    REQUIRE(batch.metadata.size() == (spec_.metadata ? batch.size : 0));
    REQUIRE(batch.scores.size() == (bounded_ ? batch.size : 0));
    Items items;
    for (size_t i = 0; i < batch.size; ++i) {
      Item item{rows.Row(i), bounded_ ? batch.scores[i] : 0};
      if (spec_.metadata) {
        item.row.push_back(static_cast<int>(batch.metadata[i].time));
        item.row.push_back(static_cast<int>(batch.metadata[i].count));
      }
      const std::string name = spec_.key_type == KeyType::kString
                                   ? std::string(batch.string_keys[i])
                                   : std::to_string(batch.int_keys[i]);
      REQUIRE(items.emplace(name, std::move(item)).second);
    }
    return items;
  }

  // Whether all items are in the model, or the model evicted them in this call.
  bool AllKnown(const Items& items) const {
    return std::all_of(items.begin(), items.end(), [&](const auto& item) {
      const auto is_item = [&](const Items& known) {
        const auto found = known.find(item.first);
        return found != known.end() && found->second == item.second;
      };
      return is_item(reference_.items) || is_item(reference_.evicted);
    });
  }

  // Compares the table with the model. If keys have equal scores, the table may evict another one
  // than the model, so the model then copies the keys of the table.
  void Compare() {
    if (!bounded_) {
      for (auto& item : reference_.items) item.second.score = 0;
    }
    const Items items = ItemsOf(Exported());
    REQUIRE(table_->size() == items.size());
    REQUIRE(!bounded_ || items.size() <= static_cast<size_t>(spec_.bound.max_capacity));
    REQUIRE(test::ScoresOf(items) == test::ScoresOf(reference_.items));
    REQUIRE(AllKnown(items));
    reference_.items = items;
    reference_.evicted.clear();
  }

  const TableSpec spec_;
  const size_t dim_;
  const bool bounded_;
  Input& input_;
  std::unique_ptr<Table> table_;
  Reference reference_;
  uint32_t now_ = 0;
  std::vector<uint64_t> given_;
};

}  // namespace
}  // namespace tfra::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tfra::fuzz::Input input(data, size);
  const tfra::TableSpec spec = tfra::fuzz::SpecOf(&input);
  tfra::fuzz::Program(spec, &input).Run();
  return 0;
}
