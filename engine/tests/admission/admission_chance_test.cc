// Admission by a counting Bloom filter and by probability. Tests of chance use fixed seeds and a
// margin of four standard deviations.
#include <cmath>
#include <random>

#include "admission/admission.h"
#include "admission_helpers.h"

namespace tfra::test {
namespace {

// The largest number of successes in `trials` trials that chance explains.
double AtMost(double probability, double trials) {
  return probability * trials + 4 * std::sqrt(probability * (1 - probability) * trials) + 1;
}

TEST(BloomFilterCountsAlone) {
  // The largest counts of 4, 8 and 16 bits, and the next counts.
  for (uint32_t min_count : {1u, 2u, 15u, 16u, 255u, 256u, 65535u}) {
    const AdmissionSpec spec = Bloom(min_count, 1000, 0.001);
    CHECK_EQ(FilterShape::For(spec).bits, min_count <= 15 ? 4u : min_count <= 255 ? 8u : 16u);
    std::unique_ptr<Table> table = AdmittingTable(KeyType::kInt64, spec);
    const TestKeys key(KeyType::kInt64, {7});
    uint32_t sights = 0;
    while (table->size() == 0 && sights < 70000) {
      See(*table, key);
      ++sights;
    }
    CHECK_EQ(sights, min_count);
    CHECK_EQ(table->stats().not_admitted, min_count - 1);
  }
}

// With far more keys than the filter is made for, many keys enter early, but none enters late.
TEST(BloomFilterIsNeverLate) {
  for (KeyType key_type : kKeyTypes) {
    for (uint32_t min_count : {2, 5, 20, 300}) {
      std::unique_ptr<Table> table = AdmittingTable(key_type, Bloom(min_count, 300, 0.1));
      std::mt19937_64 random(min_count);
      const int64_t keys = min_count < 100 ? 3000 : 300;
      std::vector<uint32_t> seen(static_cast<size_t>(keys));
      for (int round = 0; round < 40 * static_cast<int>(min_count) / kSlowdown; ++round) {
        std::vector<int64_t> numbers;
        for (int64_t i = 0; i < keys; ++i) {
          if (random() % 20 == 0) numbers.push_back(i);
        }
        const TestKeys batch(key_type, numbers);
        See(*table, batch);
        const Flags there = There(*table, batch);
        size_t late = 0;
        for (size_t i = 0; i < numbers.size(); ++i) {
          late += ++seen[static_cast<size_t>(numbers[i])] >= min_count && !there[i];
        }
        CHECK_EQ(late, 0u);
      }
    }
  }
}

// In a filter with as many keys as it is made for, few keys enter when they are first seen.
TEST(BloomFilterIsRarelyEarly) {
  for (KeyType key_type : kKeyTypes) {
    for (double error : {0.1, 0.01}) {
      for (uint32_t min_count : {2, 5, 20, 300}) {
        const int64_t capacity = min_count < 100 ? 20000 : 2000;
        std::unique_ptr<Table> table = AdmittingTable(key_type, Bloom(min_count, capacity, error));
        const TestKeys first = TestKeys::Range(key_type, 0, capacity);
        for (uint32_t sight = 1; sight < min_count; ++sight) See(*table, first);
        // While the filter had fewer keys, there were fewer errors.
        CHECK(static_cast<double>(table->size()) <= AtMost(error, static_cast<double>(capacity)));
        AdmissionState full;
        CHECK_OK(table->upkeep().ExportAdmission(&full));
        const uint64_t before = table->size();
        const int64_t trials = 20000 / kSlowdown, few = capacity / 100;
        for (int64_t begin = 0; begin < trials; begin += few) {
          See(*table, TestKeys::Range(key_type, 1000000 + begin, 1000000 + begin + few));
          CHECK_OK(table->upkeep().RestoreAdmission(full));  // Removes the new keys of the filter.
        }
        const double early = static_cast<double>(table->size() - before);
        // Before it is restored, the filter has 1 % more keys than it is made for.
        CHECK(early <= AtMost(error * 1.1, static_cast<double>(trials)));
        // Far fewer errors would mean that the filter is too large. A small filter may be: it has
        // room for stripes of unequal size.
        if (capacity > 10000) CHECK(early >= 0.2 * error * static_cast<double>(trials));
      }
    }
  }
}

TEST(BloomFilterMemoryIsKnownAndConstant) {
  for (uint32_t min_count : {2, 100, 1000}) {
    for (int64_t keys : {1, 1000, 300000}) {
      const AdmissionSpec admission = Bloom(min_count, keys, 0.01);
      const TableSpec spec = AdmittingSpec(KeyType::kInt64, admission);
      std::unique_ptr<Table> table = MakeTable(spec);
      const uint64_t bytes = table->stats().admission_bytes;
      CHECK_EQ(bytes, FilterShape::For(admission).StripeBytes() * kStripes);
      See(*table, TestKeys::Range(KeyType::kInt64, 0, 20000));
      CHECK_EQ(table->stats().admission_bytes, bytes);
      CHECK_EQ(table->stats().waiting, 0u);  // A filter does not know this number.
      AdmissionState state;
      CHECK_OK(table->upkeep().ExportAdmission(&state));
      CHECK(state.filter.size() >= bytes && state.filter.size() <= bytes + 64);
      for (int64_t size : {0, 1000, 1000000}) {
        TableStats estimate;
        CHECK_OK(EstimateMemory(spec, size, 0, &estimate));
        CHECK_EQ(estimate.admission_bytes, bytes);
      }
    }
  }
}

// The first versions had another hash of strings. Their filters are wrong for the present hash.
TEST(BloomFiltersOfTheFormerHashAreRefused) {
  for (KeyType key_type : kKeyTypes) {
    std::unique_ptr<Table> table = AdmittingTable(key_type, Bloom(2, 1000, 0.01));
    const TestKeys keys = TestKeys::Range(key_type, 0, 100);
    See(*table, keys);
    AdmissionState state, former, after;
    CHECK_OK(table->upkeep().ExportAdmission(&state));
    former = state;
    former.filter[7] = std::byte{0};  // The last byte of the shape, which names the hash.
    const Status status = table->upkeep().RestoreAdmission(former);
    CHECK_EQ(status.ok(), key_type == KeyType::kInt64);
    CHECK_OK(table->upkeep().ExportAdmission(&after));
    CHECK(Same(state, after));
  }
}

// The filters of two tables are restored into a third: no key of either table enters late.
TEST(BloomFiltersAreSavedAndMerged) {
  for (KeyType key_type : kKeyTypes) {
    for (uint32_t min_count : {4, 40, 400}) {
      const AdmissionSpec spec = Bloom(min_count, 2000, 0.01);
      std::unique_ptr<Table> tables[2], merged = AdmittingTable(key_type, spec);
      AdmissionState both;
      for (int64_t t : {0, 1}) {
        tables[t] = AdmittingTable(key_type, spec);
        // The first 500 keys may enter when they are seen once more, the others after two times.
        for (uint32_t sight = 1; sight < min_count; ++sight) {
          const int64_t end = sight + 1 < min_count ? 1000 : 500;
          See(*tables[t], TestKeys::Range(key_type, 10000 * t, 10000 * t + end));
        }
        AdmissionState state, again;
        CHECK_OK(tables[t]->upkeep().ExportAdmission(&state));
        CHECK_OK(merged->upkeep().RestoreAdmission(state));
        CHECK_OK(merged->upkeep().ExportAdmission(&again));
        CHECK(Same(state, again));
        both.filter.insert(both.filter.end(), state.filter.begin(), state.filter.end());
      }
      CHECK_OK(merged->upkeep().RestoreAdmission(both));
      for (int64_t t : {0, 1}) {
        const TestKeys often = TestKeys::Range(key_type, 10000 * t, 10000 * t + 500);
        const TestKeys rarely = TestKeys::Range(key_type, 10000 * t + 500, 10000 * t + 1000);
        See(*merged, often);
        CHECK_EQ(There(*merged, often).Count(), 500u);
        See(*merged, rarely);
        CHECK(static_cast<double>(There(*merged, rarely).Count()) <= AtMost(0.02, 500));
        See(*merged, rarely);
        CHECK_EQ(There(*merged, rarely).Count(), 500u);
      }
      // The merged filter has as many keys as it is made for, so few new keys enter early.
      const TestKeys fresh = TestKeys::Range(key_type, 50000, 50100);
      See(*merged, fresh);
      CHECK(static_cast<double>(There(*merged, fresh).Count()) <= AtMost(0.02, 100));
    }
  }
}

TEST(ProbabilityAppliesEachTimeAKeyIsSeen) {
  for (KeyType key_type : kKeyTypes) {
    for (double p : {0.0, 0.001, 0.3, 0.9, 1.0}) {
      std::unique_ptr<Table> table = AdmittingTable(key_type, Probability(p, 5));
      const TestKeys keys = TestKeys::Range(key_type, 0, 40000);
      double outside = 40000;
      for (int sight = 0; sight < 4; ++sight) {
        const double before = static_cast<double>(table->size());
        See(*table, keys);
        const double entered = static_cast<double>(table->size()) - before;
        CHECK(entered <= AtMost(p, outside));
        CHECK(outside - entered <= AtMost(1 - p, outside));
        if (p == 0.0) CHECK_EQ(entered, 0.0);
        if (p == 1.0) CHECK_EQ(entered, outside);
        outside -= entered;
      }
      CHECK_EQ(table->stats().inserts, 40000 - static_cast<uint64_t>(outside));
    }
  }
}

TEST(ProbabilityDependsOnTheSeed) {
  const TestKeys keys = TestKeys::Range(KeyType::kInt64, 0, 10000);
  std::vector<Flags> entered;
  for (uint64_t seed : {1, 2, 1}) {
    std::unique_ptr<Table> table = AdmittingTable(KeyType::kInt64, Probability(0.5, seed));
    See(*table, keys);
    entered.push_back(There(*table, keys));
  }
  size_t same = 0, again = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    same += entered[0][i] == entered[1][i];
    again += entered[0][i] == entered[2][i];
  }
  CHECK(std::fabs(static_cast<double>(same) - 5000) <= 200);
  CHECK_EQ(again, keys.size());
}

TEST(ProbabilityGoesOnFromARestoredState) {
  for (KeyType key_type : kKeyTypes) {
    const AdmissionSpec spec = Probability(0.1, 3);
    std::unique_ptr<Table> table = AdmittingTable(key_type, spec);
    std::unique_ptr<Table> other = AdmittingTable(key_type, spec);
    See(*table, TestKeys::Range(key_type, 0, 5000));
    AdmissionState state;
    CHECK_OK(table->upkeep().ExportAdmission(&state));
    CHECK_OK(other->upkeep().RestoreAdmission(state));
    const TestKeys keys = TestKeys::Range(key_type, 10000, 30000);
    for (int sight = 0; sight < 3; ++sight) {
      See(*table, keys);
      See(*other, keys);
      const Flags a = There(*table, keys), b = There(*other, keys);
      size_t different = 0;
      for (size_t i = 0; i < keys.size(); ++i) different += a[i] != b[i];
      CHECK_EQ(different, 0u);
      CHECK(a.Count() > 0);
    }
  }
}

// Which keys enter does not depend on the number of threads.
TEST(AdmissionDoesNotDependOnThreads) {
  for (KeyType key_type : kKeyTypes) {
    for (const AdmissionSpec& spec :
         {MinCount(3), Bloom(3, 5000, 0.2), Probability(0.1, 1), Probability(0.7, 2)}) {
      std::vector<ContentsMap> contents;
      std::vector<AdmissionState> states(2);
      for (size_t way : {0, 1}) {
        const ScopedNumThreads scoped(way == 0 ? 1 : 4);
        std::unique_ptr<Table> table = AdmittingTable(key_type, spec);
        table->upkeep().SetClock(1);
        std::mt19937_64 random(9);
        for (int round = 0; round < 12; ++round) {
          std::vector<int64_t> numbers(20000);
          for (int64_t& number : numbers) number = static_cast<int64_t>(random() % 60000);
          See(*table, TestKeys(key_type, numbers));
        }
        contents.push_back(Contents(*table));
        CHECK_OK(table->upkeep().ExportAdmission(&states[way]));
      }
      size_t different = 0;
      for (const auto& [key, row] : contents[0]) different += !contents[1].contains(key);
      CHECK_EQ(different, 0u);
      CHECK(contents[0] == contents[1]);
      CHECK(Same(states[0], states[1]));
    }
  }
}

}  // namespace
}  // namespace tfra::test
