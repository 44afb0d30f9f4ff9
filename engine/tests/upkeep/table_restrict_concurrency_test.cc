// Restrict, Expire and Histograms while other threads look up, train and remove.
#include <numeric>
#include <random>

#include "admission_helpers.h"
#include "concurrency_helpers.h"

namespace tfra::test {
namespace {

constexpr size_t kDim = 19;  // A row is larger than a cache line, and not a power of two.
constexpr int64_t kKeys = 400;

TableSpec Spec(KeyType key_type, const AdmissionSpec& admission) {
  TableSpec spec = SpecOf(key_type, ValueType::kFloat32, kDim);
  spec.rule.kind = RuleKind::kSgd;
  spec.metadata = true;
  spec.admission = admission;
  return spec;
}

// All elements of a row equal the number of steps that it was trained.
Status Train(Table& table, const TestKeys& keys, NewKeys new_keys) {
  const std::vector<float> gradients(kDim * keys.size(), -1.0f);
  UpdateParams params;
  params.learning_rate = 1;
  return table.training().ApplyGradients(keys.batch(), gradients.data(), ValueType::kFloat32,
                                         params, {}, new_keys);
}

int64_t TornRows(Table& table, const TestKeys& keys) {
  std::vector<float> rows(kDim * keys.size());
  int64_t torn = !table.Lookup(keys.batch(), {}, rows.data(), nullptr).ok();
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t j = 1; j < kDim; ++j) torn += rows[i * kDim + j] != rows[i * kDim];
  }
  return torn;
}

void CheckCounters(Table& table) {
  const TableStats stats = table.stats();
  CHECK_EQ(stats.inserts - stats.removals - stats.evictions - stats.expirations, stats.size);
  CHECK_EQ(Contents(table).size(), stats.size);
}

TEST(ConcurrentRestrictExpireAndHistograms) {
  for (KeyType key_type : kKeyTypes) {
    for (const AdmissionSpec& spec :
         {AdmissionSpec(), MinCount(2), Bloom(2, kKeys, 0.01), Probability(0.5, 1)}) {
      std::unique_ptr<Table> table = MakeTable(Spec(key_type, spec));
      table->upkeep().SetClock(1);
      Errors errors{0};
      std::atomic<uint64_t> evicted{0}, expired{0}, removed{0}, runs{0};
      std::atomic<uint32_t> now{1};
      const auto keys_of = [&](std::mt19937_64& random) {
        std::vector<int64_t> numbers(50);
        for (int64_t& number : numbers) number = static_cast<int64_t>(random() % kKeys);
        return TestKeys(key_type, numbers);
      };
      const auto train = [&](uint64_t seed) {
        return [&, seed] {
          std::mt19937_64 random(seed);
          for (int step = 0; step < 150 * kScale; ++step) {
            if (seed == 1) table->upkeep().SetClock(++now);
            const TestKeys keys = keys_of(random);
            errors += !Train(*table, keys, NewKeys::kAdmit).ok();
            if (step % 10 == 0) errors += !table->upkeep().Touch(keys.batch()).ok();
            if (step % 7 != 0) continue;
            size_t count = 0;
            errors += !table->Remove(keys_of(random).batch(), &count).ok();
            removed += count;
          }
        };
      };
      const auto read = [&, random = std::mt19937_64(9)]() mutable {
        const TestKeys keys = keys_of(random);
        errors += TornRows(*table, keys);
        std::vector<RowMetadata> metadata(keys.size());
        Flags exists(keys.size());
        errors +=
            !table->upkeep().LookupMetadata(keys.batch(), metadata.data(), exists.data()).ok();
        for (size_t i = 0; i < keys.size(); ++i) {
          errors += exists[i] != (metadata[i].count > 0);
          errors += metadata[i].time > now;
        }
      };
      const auto restrict = [&, random = std::mt19937_64(8)]() mutable {
        uint64_t count = 0;
        const Ranking ranking = random() % 2 ? Ranking::kNewest : Ranking::kMostFrequent;
        errors += !table->upkeep().Restrict(random() % kKeys, ranking, &count).ok();
        evicted += count;
        ++runs;
      };
      const auto expire = [&] {
        uint64_t count = 0;
        ExpiryRule rule;
        const uint32_t before = now;
        rule.written_before = before > 5 ? before - 5 : 0;
        rule.norm_below = 5;
        rule.norm_writes = 3;
        errors += !table->upkeep().Expire(rule, &count).ok();
        expired += count;
        RowHistograms histograms;
        errors += !table->upkeep().Histograms(&histograms).ok();
        const auto sum = [](const auto& bins) {
          return std::accumulate(bins.begin(), bins.end(), uint64_t{0});
        };
        errors += sum(histograms.age) != sum(histograms.norm);
        errors += sum(histograms.age) != sum(histograms.writes);
        errors += sum(histograms.age) > kKeys;
        AdmissionState state;
        errors += !table->upkeep().ExportAdmission(&state).ok();
        errors += table->stats().waiting > static_cast<uint64_t>(kKeys);
      };
      Run({train(1), train(2)}, {read, restrict, expire});
      CHECK_EQ(errors.load(), 0);
      const TableStats stats = table->stats();
      CHECK_EQ(stats.evictions, evicted.load());
      CHECK_EQ(stats.expirations, expired.load());
      CHECK_EQ(stats.removals, removed.load());
      CHECK_EQ(stats.restrict_runs, runs.load());
      CheckCounters(*table);
      // Restrict is exact if no other thread writes.
      uint64_t count = 0;
      CHECK_OK(table->upkeep().Restrict(10, Ranking::kNewest, &count));
      CHECK_EQ(table->size(), std::min<uint64_t>(stats.size, 10));
      // Keys that are trained after the last Restrict are in the table.
      const TestKeys all = TestKeys::Range(key_type, 0, kKeys);
      CHECK_OK(Train(*table, all, NewKeys::kInsert));
      CHECK_EQ(There(*table, all).Count(), all.size());
      CHECK_EQ(TornRows(*table, all), 0);
      CheckCounters(*table);
    }
  }
}

// Restrict removes old rows while other rows are written. These are new: they stay, and no update
// is lost.
TEST(ConcurrentRestrictRemovesNoNewRow) {
  for (KeyType key_type : kKeyTypes) {
    std::unique_ptr<Table> table = MakeTable(Spec(key_type, AdmissionSpec()));
    const TestKeys kept = TestKeys::Range(key_type, 0, 40);
    std::atomic<uint32_t> now{1000};
    table->upkeep().SetClock(now);
    CHECK_OK(Train(*table, kept, NewKeys::kInsert));
    const int steps = 300 * kScale;
    Errors errors{0};
    const auto train = [&] {
      const TestKeys mine = TestKeys::Range(key_type, 0, 40);
      for (int step = 0; step < steps; ++step) errors += !Train(*table, mine, NewKeys::kAdmit).ok();
    };
    // Other keys are inserted with old times, and Restrict removes them.
    const auto restrict = [&] {
      const TestKeys others = TestKeys::Range(key_type, 1000, 1100);
      const std::vector<float> values(kDim * others.size(), 1.0f);
      const std::vector<RowMetadata> old(others.size(), {5, 5});
      errors += !table->Assign(others.batch(), values.data(), nullptr, old.data()).ok();
      uint64_t count = 0;
      errors += !table->upkeep().Restrict(40, Ranking::kNewest, &count).ok();
      errors += count != others.size();
    };
    Run({train, train}, {restrict});
    CHECK_EQ(errors.load(), 0);
    CHECK_EQ(table->size(), 40u);
    for (const auto& [key, row] : Contents(*table)) {
      CHECK(row == std::vector<int>(kDim, 2 * steps + 1));
    }
    CheckCounters(*table);
  }
}

// Several threads see the same keys. Keys enter when they are seen for the last time, not earlier.
TEST(ConcurrentSightsAreAllCounted) {
  constexpr uint32_t kThreads = 4, kSights = 20;
  for (KeyType key_type : kKeyTypes) {
    for (const AdmissionSpec& spec :
         {MinCount(kThreads * kSights), Bloom(kThreads * kSights, 2000, 0.001)}) {
      std::unique_ptr<Table> table = MakeTable(Spec(key_type, spec));
      Errors errors{0};
      const auto see = [&] {
        const TestKeys keys = TestKeys::Range(key_type, 0, 300);
        for (uint32_t sight = 0; sight < kSights; ++sight) {
          errors += !Train(*table, keys, NewKeys::kAdmit).ok();
        }
      };
      Run(std::vector<Work>(kThreads, see), {});
      CHECK_EQ(errors.load(), 0);
      CHECK_EQ(table->size(), 300u);
      if (spec.kind == AdmissionKind::kBloomFilter) continue;
      // Each key was rejected each time, except the last.
      CHECK_EQ(table->stats().not_admitted, 300u * (kThreads * kSights - 1));
      CHECK_EQ(table->stats().updates, 0u);
      CHECK_EQ(table->stats().waiting, 0u);
    }
  }
}

}  // namespace
}  // namespace tfra::test
