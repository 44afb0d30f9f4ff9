// Which keys enter, stay and leave: random histories on a table and on a model of it.
//
// KeyModel knows keys, metadata, keys that wait, and counters. Values and slots are compared with
// those of a plain table, without metadata and admission, which is told only what got through.
#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "key_model.h"

namespace tfra::test {
namespace {

class KeepModel {
 public:
  // min_count: 0 for no admission.
  KeepModel(KeyType key_type, ValueType type, uint32_t min_count, uint64_t seed)
      : key_type_(key_type), type_(type), random_(seed), keys_{min_count} {
    TableSpec spec = SpecOf(key_type, type, kDim);
    if (IsFloating(type)) {
      spec.rule.kind = RuleKind::kAdam;
      spec.initializer.kind = InitializerKind::kUniform;
    }
    plain_ = MakeTable(spec);
    spec.metadata = true;
    if (min_count > 0) spec.admission.kind = AdmissionKind::kMinCount;
    spec.admission.min_count = std::max(min_count, 1u);
    table_ = MakeTable(spec);
    table_->upkeep().SetClock(keys_.now);
  }

  void Run(int operations) {
    const int failures = FailureCount();
    // One wrong step makes all later ones wrong.
    for (int step = 0; step < operations && FailureCount() == failures; ++step) {
      if (Pick(3) == 0) table_->upkeep().SetClock(keys_.now += static_cast<uint32_t>(Pick(3)));
      const char* what = Step();
      Compare();
      if (FailureCount() != failures) {
        std::printf("  step %d, %s, %s keys, %s, count %u\n", step, what,
                    key_type_ == KeyType::kString ? "string" : "int", NameOf(type_),
                    keys_.min_count);
      }
    }
  }

 private:
  static constexpr size_t kDim = KeyModel::kDim;

  using Call = KeyModel::Call;

  int Pick(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }

  TestKeys Keys(const std::vector<int64_t>& numbers) const { return TestKeys(key_type_, numbers); }
  TestRows Rows(const Call& call) const {
    return TestRows::Make(type_, call.numbers.size(), kDim,
                          [&](size_t i, size_t j) { return call.elements[i * kDim + j]; });
  }

  // A function of the keys, so that a part of a call has the same slots as the whole.
  std::vector<std::byte> SlotsOf(const Call& call) const {
    std::vector<std::byte> bytes;
    for (int64_t number : call.numbers) {
      for (size_t j = 0; j < table_->slot_elements(); ++j) {
        const double wide = std::fabs(static_cast<double>(number)) + 0.5;
        const float narrow = static_cast<float>(wide);
        const bool is_wide = ComputeType(type_) == ValueType::kFloat64;
        const auto* from = is_wide ? reinterpret_cast<const std::byte*>(&wide)
                                   : reinterpret_cast<const std::byte*>(&narrow);
        bytes.insert(bytes.end(), from, from + SizeOf(ComputeType(type_)));
      }
    }
    return bytes;
  }

  const char* Step() {
    // Few keys and batches with duplicates; sometimes a batch for several threads.
    Call call;
    call.numbers.resize(Pick(100) == 0 ? 9000 : static_cast<size_t>(Pick(40)));
    for (int64_t& number : call.numbers) number = Pick(300) - 150;
    for (size_t i = 0; i < call.numbers.size() * kDim; ++i) call.elements.push_back(Pick(5) - 2);
    call.new_keys = Pick(4) == 0   ? NewKeys::kInsert
                    : Pick(5) == 0 ? NewKeys::kDrop
                                   : NewKeys::kAdmit;
    switch (Pick(16)) {
      case 0:
      case 1:
        return Assign(call), "Assign";
      case 2:
        return Accumulate(call), "Accumulate";
      case 3:
        if (IsFloating(type_)) AddToRows(call);
        return "AddToRows";
      case 4:
      case 5:
      case 6:
        if (IsFloating(type_)) ApplyGradients(call);
        return "ApplyGradients";
      case 7:
        return Touch(call), "Touch";
      case 8:
        return Remove(call), "Remove";
      case 9:
        return Lookup(call), "Lookup";
      case 10:
        return Restrict(), "Restrict";
      case 11:
        return Expire(), "Expire";
      default:
        return Rare();
    }
  }

  void Assign(const Call& call) {
    std::vector<RowMetadata> metadata(call.numbers.size());
    for (RowMetadata& row : metadata) {
      row = {keys_.now - static_cast<uint32_t>(Pick(5)), static_cast<uint32_t>(Pick(4))};
    }
    const RowMetadata* given = Pick(3) == 0 ? metadata.data() : nullptr;
    const bool with_slots = table_->slot_elements() > 0 && Pick(2) == 0;
    const std::vector<std::byte> slots = SlotsOf(call);
    CHECK_OK(table_->Assign(Keys(call.numbers).batch(), Rows(call).in(),
                            with_slots ? slots.data() : nullptr, given, {}, call.new_keys));
    const Call through = keys_.Write(call, false, given);
    const std::vector<std::byte> some = SlotsOf(through);
    CHECK_OK(plain_->Assign(Keys(through.numbers).batch(), Rows(through).in(),
                            with_slots ? some.data() : nullptr));
  }

  void Accumulate(const Call& call) {
    Flags exists(call.numbers.size());
    for (size_t i = 0; i < call.numbers.size(); ++i) exists.Set(i, Pick(2) == 0);
    CHECK_OK(table_->training().Accumulate(Keys(call.numbers).batch(), Rows(call).in(),
                                           exists.data(), {}, call.new_keys));
    const Call through = keys_.Write(
        call, false, nullptr, &TableStats::exists_mismatch, [&](size_t i) { return exists[i]; },
        [&](size_t i) { return !exists[i]; });
    Flags some(through.places.size());
    for (size_t k = 0; k < through.places.size(); ++k) some.Set(k, exists[through.places[k]]);
    CHECK_OK(plain_->training().Accumulate(Keys(through.numbers).batch(), Rows(through).in(),
                                           some.data()));
  }

  void AddToRows(const Call& call) {
    const bool with_slots = Pick(2) == 0;
    const std::vector<std::byte> slots = SlotsOf(call);
    CHECK_OK(table_->training().AddToRows(Keys(call.numbers).batch(), Rows(call).in(),
                                          with_slots ? slots.data() : nullptr, {}, call.new_keys));
    const Call through = keys_.Write(call, false);
    const std::vector<std::byte> some = SlotsOf(through);
    CHECK_OK(plain_->training().AddToRows(Keys(through.numbers).batch(), Rows(through).in(),
                                          with_slots ? some.data() : nullptr));
  }

  void ApplyGradients(const Call& call) {
    UpdateParams params;
    params.learning_rate = 0.5;
    params.step = 1 + Pick(10);
    CHECK_OK(table_->training().ApplyGradients(Keys(call.numbers).batch(), Rows(call).in(), type_,
                                               params, {}, call.new_keys));
    const Call through = keys_.Write(call, true);
    CHECK_OK(plain_->training().ApplyGradients(Keys(through.numbers).batch(), Rows(through).in(),
                                               type_, params));
  }

  void Touch(const Call& call) {
    CHECK_OK(table_->upkeep().Touch(Keys(call.numbers).batch(), call.new_keys));
    // New rows have what a lookup says of keys that are not there; others stay as they are.
    const TestKeys keys = Keys(keys_.Write(call, true).numbers);
    TestRows values(type_, keys.size(), kDim);
    std::vector<double> slots(keys.size() * plain_->slot_elements());
    CHECK_OK(plain_->Lookup(keys.batch(), {}, values.out(), nullptr, slots.data()));
    CHECK_OK(plain_->Assign(keys.batch(), values.in(), slots.empty() ? nullptr : slots.data()));
  }

  void Remove(const Call& call) {
    size_t removed = 0;
    CHECK_OK(table_->Remove(Keys(call.numbers).batch(), &removed));
    CHECK_EQ(removed, Drop(call.numbers));
    keys_.counters.removals += removed;
  }

  // Takes keys out of the model; returns how many of them were there.
  uint64_t Drop(const std::vector<int64_t>& keys) {
    uint64_t dropped = 0;
    for (int64_t key : keys) dropped += keys_.rows.erase(key);
    size_t removed = 0;
    CHECK_OK(plain_->Remove(Keys(keys).batch(), &removed));
    CHECK_EQ(removed, dropped);
    return dropped;
  }

  void Lookup(const Call& call) {
    const TestKeys keys = Keys(call.numbers);
    std::vector<RowMetadata> metadata(keys.size(), RowMetadata{7, 7});
    Flags exists(keys.size(), true);
    CHECK_OK(table_->upkeep().LookupMetadata(keys.batch(), metadata.data(), exists.data()));
    TestRows values(type_, keys.size(), kDim);
    CHECK_OK(table_->Lookup(keys.batch(), {}, values.out(), nullptr));
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto row = keys_.rows.find(call.numbers[i]);
      const bool found = row != keys_.rows.end();
      ++(found ? keys_.counters.hits : keys_.counters.misses);
      CHECK_EQ(exists[i], found);
      CHECK_EQ(metadata[i].time, found ? row->second.first : 0);
      CHECK_EQ(metadata[i].count, found ? row->second.second : 0);
    }
  }

  // Of equal rows the model cannot know which ones stay: it checks how many, and that another table
  // with the same rows keeps the same ones.
  void Restrict() {
    const Ranking ranking = Pick(2) == 0 ? Ranking::kNewest : Ranking::kMostFrequent;
    const int size = static_cast<int>(keys_.rows.size());
    const uint64_t keep =
        static_cast<uint64_t>(Pick(3) == 0 ? Pick(size + 20) : size - Pick(size / 8 + 1));
    using Rank = std::pair<uint32_t, uint32_t>;
    const auto rank_of = [&](const Rank& row) {
      return ranking == Ranking::kNewest ? row : Rank(row.second, row.first);
    };
    std::vector<Rank> ranks;
    for (const auto& [key, row] : keys_.rows) ranks.push_back(rank_of(row));
    std::sort(ranks.begin(), ranks.end());
    const uint64_t gone = ranks.size() > keep ? ranks.size() - keep : 0;

    const std::unique_ptr<Table> twin = Twin(*table_, random_());
    uint64_t evicted = 0, twin_evicted = 0;
    CHECK_OK(table_->upkeep().Restrict(keep, ranking, &evicted));
    CHECK_OK(twin->upkeep().Restrict(keep, ranking, &twin_evicted));
    CHECK_EQ(evicted, gone);
    CHECK_EQ(twin_evicted, gone);
    const RowsMap left = RowsOf(*table_);
    CHECK(left == RowsOf(*twin));
    std::vector<int64_t> absent;
    for (const auto& [key, row] : keys_.rows) {
      const bool there = left.contains(key);
      if (!there) absent.push_back(key);
      if (gone > 0 && rank_of(row) < ranks[gone - 1]) CHECK(!there);
      if (gone == 0 || rank_of(row) > ranks[gone - 1]) CHECK(there);
    }
    CHECK_EQ(absent.size(), gone);
    Drop(absent);
    keys_.counters.evictions += gone;
    ++keys_.counters.restrict_runs;
  }

  void Expire() {
    ExpiryRule rule;
    if (Pick(3) > 0) rule.written_before = keys_.now - static_cast<uint32_t>(Pick(30));
    if (IsFloating(type_) && Pick(2) == 0) {
      rule.norm_below = std::vector<double>{0.02, 0.07, 1.2, 2.1}[random_() % 4];
      rule.norm_writes = static_cast<uint32_t>(Pick(6));
    }
    const std::map<int64_t, double> norms = Norms();
    std::vector<int64_t> old;
    for (const auto& [key, row] : keys_.rows) {
      const bool late = row.first < rule.written_before;
      const bool small = rule.norm_below > 0 && norms.at(key) < rule.norm_below;
      if (late || (small && row.second >= rule.norm_writes)) old.push_back(key);
    }
    uint64_t expired = 0;
    CHECK_OK(table_->upkeep().Expire(rule, &expired));
    CHECK_EQ(expired, Drop(old));
    keys_.counters.expirations += expired;
    std::erase_if(keys_.waiting,
                  [&](const auto& key) { return key.second.first < rule.written_before; });
  }

  std::map<int64_t, double> Norms() {
    std::map<int64_t, double> norms;
    if (!IsFloating(type_)) return norms;
    for (const auto& [key, row] : RowsOf(*plain_)) norms[key] = NormOf(type_, row.data(), kDim);
    return norms;
  }

  void Histograms() {
    RowHistograms expected, found;
    for (const auto& [key, row] : keys_.rows) {
      ++expected.age[std::bit_width(keys_.now - row.first)];
      ++expected.writes[std::bit_width(row.second)];
    }
    for (const auto& [key, norm] : Norms()) {
      const int bin = norm == 0 ? 0 : std::ilogb(norm) + 32;
      ++expected.norm[static_cast<size_t>(std::clamp(bin, 0, 63))];
    }
    CHECK_OK(table_->upkeep().Histograms(&found));
    CHECK(found.age == expected.age);
    CHECK(found.writes == expected.writes);
    CHECK(found.norm == expected.norm);
  }

  const char* Rare() {
    switch (Pick(12)) {
      case 0:
        keys_.counters.removals += keys_.rows.size();
        CHECK_OK(table_->Clear());
        CHECK_OK(plain_->Clear());
        keys_.rows.clear();
        keys_.waiting.clear();
        return "Clear";
      case 1:
        CHECK_OK(table_->Shrink());
        return "Shrink";
      case 2: {
        std::unique_ptr<Table> copy;
        CHECK_OK(table_->CopyWithRule(table_->spec().rule, true, &copy));
        table_ = std::move(copy);
        CHECK_EQ(table_->upkeep().clock(), keys_.now);
        return "CopyWithRule";
      }
      case 3: {
        const uint32_t before = keys_.now - static_cast<uint32_t>(Pick(20));
        uint64_t removed = 0;
        CHECK_OK(table_->upkeep().RemoveIf(
            [&](const RowMetadata& row) { return row.time < before; }, &removed));
        std::vector<int64_t> old;
        for (const auto& [key, row] : keys_.rows) {
          if (row.first < before) old.push_back(key);
        }
        CHECK_EQ(removed, Drop(old));
        keys_.counters.removals += removed;
        return "RemoveIf";
      }
      case 4:
      case 5: {
        AdmissionState state;
        CHECK_OK(table_->upkeep().ExportAdmission(&state));
        CHECK_OK(table_->upkeep().RestoreAdmission(state));
        return "RestoreAdmission";
      }
      default:
        return Histograms(), "Histograms";
    }
  }

  void Compare() {
    const ExportBatch batch = Exported(*table_);
    CHECK(RowsOf(*table_) == RowsOf(*plain_));
    CHECK(MetadataOf(NumbersOf(batch.int_keys, batch.string_keys), batch.metadata) == keys_.rows);
    AdmissionState state;
    CHECK_OK(table_->upkeep().ExportAdmission(&state));
    CHECK(MetadataOf(NumbersOf(state.int_keys, state.string_keys), state.seen) == keys_.waiting);

    const TableStats stats = table_->stats();
    CHECK_EQ(stats.size, keys_.rows.size());
    CHECK_EQ(stats.hits, keys_.counters.hits);
    CHECK_EQ(stats.misses, keys_.counters.misses);
    CHECK_EQ(stats.inserts, keys_.counters.inserts);
    CHECK_EQ(stats.updates, keys_.counters.updates);
    CHECK_EQ(stats.removals, keys_.counters.removals);
    CHECK_EQ(stats.exists_mismatch, keys_.counters.exists_mismatch);
    CHECK_EQ(stats.not_admitted, keys_.counters.not_admitted);
    CHECK_EQ(stats.evictions, keys_.counters.evictions);
    CHECK_EQ(stats.expirations, keys_.counters.expirations);
    CHECK_EQ(stats.restrict_runs, keys_.counters.restrict_runs);
    CHECK_EQ(stats.waiting, keys_.waiting.size());
    CHECK_EQ(stats.inserts - stats.removals - stats.evictions - stats.expirations, stats.size);
  }

  const KeyType key_type_;
  const ValueType type_;
  std::mt19937_64 random_;
  std::unique_ptr<Table> table_, plain_;
  KeyModel keys_;
};

void RunModels(KeyType key_type, uint64_t seed) {
  for (ValueType type :
       {ValueType::kFloat32, ValueType::kFloat16, ValueType::kFloat64, ValueType::kInt64}) {
    for (uint32_t min_count : {0, 1, 2, 5}) {
      KeepModel(key_type, type, min_count, ++seed).Run(1000 / kSlowdown);
    }
  }
}

TEST(KeepModelAgreesForIntKeys) { RunModels(KeyType::kInt64, 100); }

TEST(KeepModelAgreesForStringKeys) { RunModels(KeyType::kString, 200); }

TEST(KeepModelAgreesWithSeveralThreads) {
  const ScopedNumThreads scoped(4);
  KeepModel(KeyType::kInt64, ValueType::kFloat32, 2, 301).Run(1000 / kSlowdown);
  KeepModel(KeyType::kString, ValueType::kFloat64, 3, 302).Run(1000 / kSlowdown);
}

}  // namespace
}  // namespace tfra::test
