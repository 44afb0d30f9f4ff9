// Distinct keys and sums over equal keys, compared with a std::map and plain loops.
#include "tfra/unique_keys.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "table_helpers.h"

namespace tfra::test {
namespace {

constexpr ValueType kFloatTypes[] = {ValueType::kFloat32, ValueType::kFloat16, ValueType::kBfloat16,
                                     ValueType::kFloat64};

// Random keys, most of them repeated. skewed: one key is as frequent as all others together.
std::vector<int64_t> RandomNumbers(size_t n, int64_t distinct, bool skewed, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> numbers(n);
  for (int64_t& number : numbers) {
    number = static_cast<int64_t>(random() % static_cast<uint64_t>(distinct)) - distinct / 2;
    if (skewed && random() % 2 == 0) number = 7;
  }
  return numbers;
}

UniqueKeys Find(const TestKeys& keys) {
  UniqueKeys unique;
  CHECK_OK(UniqueKeys::Find(keys.batch(), &unique));
  return unique;
}

// The index of the distinct key of each key, and the first occurrence of each distinct key.
// Distinct keys are in the order of their first occurrences.
struct Model {
  explicit Model(const TestKeys& keys) {
    std::map<std::string, size_t> known;
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto [entry, is_new] = known.emplace(keys.Name(i), first.size());
      if (is_new) first.push_back(static_cast<uint32_t>(i));
      distinct.push_back(entry->second);
    }
  }

  std::vector<uint32_t> first;
  std::vector<size_t> distinct;
};

TEST(UniqueKeysInOrderOfFirstOccurrence) {
  for (KeyType key_type : kKeyTypes) {
    for (size_t n : {0, 1, 2, 100, 9000, 40000}) {
      for (int64_t distinct : {1, 50, 1 << 20}) {
        const TestKeys keys(key_type, RandomNumbers(n, distinct, n % 3 == 0, n));
        const Model model(keys);
        for (int threads : {1, 2, 5}) {
          ScopedNumThreads scoped(threads);
          const UniqueKeys unique = Find(keys);
          CHECK_EQ(unique.size(), model.first.size());
          CHECK(std::vector<uint32_t>(unique.first(), unique.first() + unique.size()) ==
                model.first);
        }
      }
    }
  }
}

TEST(TheFirstDuplicateIsFound) {
  const auto duplicate = [](const TestKeys& keys) {
    size_t found;
    CHECK_OK(FindDuplicate(keys.batch(), &found));
    return found;
  };
  for (KeyType type : {KeyType::kInt64, KeyType::kString}) {
    CHECK_EQ(duplicate(TestKeys(type, {})), 0u);
    CHECK_EQ(duplicate(TestKeys(type, {5})), 1u);
    CHECK_EQ(duplicate(TestKeys(type, {5, 6, 0, 6, 5})), 3u);
    CHECK_EQ(duplicate(TestKeys(type, {0, 0})), 1u);
    for (const size_t n : {100u, 5000u, 200'000u}) {
      std::vector<int64_t> numbers(n);
      for (size_t i = 0; i < n; ++i) numbers[i] = static_cast<int64_t>(i) * 4096 - 7;
      std::shuffle(numbers.begin(), numbers.end(), std::mt19937_64(n));
      CHECK_EQ(duplicate(TestKeys(type, numbers)), n);
      numbers[n - 1] = numbers[n / 2];
      CHECK_EQ(duplicate(TestKeys(type, numbers)), n - 1);
      numbers[n / 3] = numbers[0];
      CHECK_EQ(duplicate(TestKeys(type, numbers)), n / 3);
    }
  }
}

TEST(SumsOverEqualKeys) {
  for (KeyType key_type : kKeyTypes) {
    for (ValueType type : kFloatTypes) {
      for (size_t n : {0, 1, 300, 20000}) {
        constexpr size_t kDim = 3, kRows = 40;
        const TestKeys keys(key_type, RandomNumbers(n, 500, n == 300, n + 1));
        const Model model(keys);
        const UniqueKeys unique = Find(keys);
        std::vector<int64_t> row(n);
        for (size_t i = 0; i < n; ++i) row[i] = static_cast<int64_t>(i * 13 % kRows);
        const auto number = [](size_t i, size_t j) { return static_cast<int>((i + j) % 11) - 5; };
        const TestRows gradients = TestRows::Make(type, std::max(n, kRows), kDim, number);
        DispatchFloating(type, [&]<typename Stored>(Stored*) {
          using Compute = typename ComputeOf<Stored>::type;
          std::vector<Compute> scale(n);
          for (size_t i = 0; i < n; ++i) scale[i] = static_cast<Compute>(i % 5) - 2;
          for (bool rows : {false, true}) {
            for (bool scaled : {false, true}) {
              // Sums of small integers are exact in any order.
              std::vector<Compute> expected(unique.size() * kDim), sums(expected.size(), 99);
              for (size_t i = 0; i < n; ++i) {
                const size_t from = rows ? static_cast<size_t>(row[i]) : i;
                for (size_t j = 0; j < kDim; ++j) {
                  expected[model.distinct[i] * kDim + j] +=
                      (scaled ? scale[i] : 1) * static_cast<Compute>(number(from, j));
                }
              }
              CHECK_OK(unique.Sum(gradients.in(), type, kDim, rows ? row.data() : nullptr,
                                  scaled ? scale.data() : nullptr, sums.data()));
              CHECK(sums == expected);
            }
          }
        });
      }
    }
  }
}

// Gradients are added in the order of the keys, on which the last bits of a sum depend.
TEST(SumsDoNotDependOnThreads) {
  constexpr size_t kKeys = 50000, kDim = 5;
  const TestKeys keys(KeyType::kInt64, RandomNumbers(kKeys, 100, true, 1));
  const Model model(keys);
  std::mt19937_64 random(2);
  std::vector<float> gradients(kKeys * kDim);
  for (float& g : gradients) g = static_cast<float>(random() % 100000) * 1e-4f;
  std::vector<float> expected(model.first.size() * kDim);
  for (size_t i = 0; i < kKeys; ++i) {
    for (size_t j = 0; j < kDim; ++j) {
      expected[model.distinct[i] * kDim + j] += gradients[i * kDim + j];
    }
  }
  for (int found_by : {1, 2, 6}) {
    ScopedNumThreads finding(found_by);
    const UniqueKeys unique = Find(keys);
    for (int threads : {1, 3}) {
      ScopedNumThreads summing(threads);
      std::vector<float> sums(expected.size());
      CHECK_OK(
          unique.Sum(gradients.data(), ValueType::kFloat32, kDim, nullptr, nullptr, sums.data()));
      CHECK(sums == expected);
    }
  }
}

TEST(SumsOfNotFiniteGradients) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  const UniqueKeys unique = Find(TestKeys(KeyType::kInt64, {4, 4, 5, 5, 6, 6}));
  const float gradients[] = {kInfinity, 1, kInfinity, -kInfinity, kNan, 1};
  float sums[3];
  CHECK_OK(unique.Sum(gradients, ValueType::kFloat32, 1, nullptr, nullptr, sums));
  CHECK_EQ(sums[0], kInfinity);
  CHECK(std::isnan(sums[1]));
  CHECK(std::isnan(sums[2]));
}

// The gradient of a pooled lookup: each key gets its share of the gradient of its segment.
TEST(SumsOfPooledGradients) {
  const std::vector<int64_t> numbers = {3, 1, 3, 2, 1, 1, 8};
  const std::vector<int64_t> splits = {0, 3, 3, 6, 7};
  const std::vector<float> weights = {1, 2, 0.5f, -1, 3, 0, 0};
  constexpr size_t kDim = 2;
  const std::vector<double> gradients = {1, 2, 30, 40, -5, 6, 7, 8};
  for (KeyType key_type : kKeyTypes) {
    const TestKeys keys(key_type, numbers);
    const Model model(keys);
    const UniqueKeys unique = Find(keys);
    for (Pooling::Combiner combiner : {Pooling::kSum, Pooling::kMean, Pooling::kSqrtN}) {
      for (bool weighted : {false, true}) {
        std::vector<double> expected(unique.size() * kDim), sums(expected.size(), 99);
        for (size_t s = 0; s + 1 < splits.size(); ++s) {
          const auto begin = static_cast<size_t>(splits[s]),
                     end = static_cast<size_t>(splits[s + 1]);
          double sum = 0, squares = 0;
          for (size_t i = begin; i < end; ++i) {
            const double weight = weighted ? weights[i] : 1;
            sum += weight;
            squares += weight * weight;
          }
          const double divisor = combiner == Pooling::kSum    ? 1
                                 : combiner == Pooling::kMean ? sum
                                                              : std::sqrt(squares);
          for (size_t k = begin * kDim; k < end * kDim; ++k) {
            const size_t i = k / kDim, j = k % kDim;
            const double share = divisor == 0 ? 0 : (weighted ? weights[i] : 1) / divisor;
            expected[model.distinct[i] * kDim + j] += share * gradients[s * kDim + j];
          }
        }
        const Pooling pooling{combiner, splits.data(), splits.size() - 1,
                              weighted ? weights.data() : nullptr, 0};
        CHECK_OK(
            unique.SumPooled(gradients.data(), ValueType::kFloat64, kDim, pooling, sums.data()));
        for (size_t i = 0; i < sums.size(); ++i) CHECK_NEAR(sums[i], expected[i], 1e-12);
      }
    }
  }
}

TEST(SumsRejectWrongArguments) {
  const UniqueKeys unique = Find(TestKeys(KeyType::kInt64, {1, 2}));
  float sums[4], gradients[4] = {};
  for (ValueType type : kValueTypes) {
    if (IsFloating(type)) continue;
    CHECK(unique.Sum(gradients, type, 1, nullptr, nullptr, sums).code() == StatusCode::kWrongType);
  }
  int64_t splits[] = {0, 3};
  Pooling pooling{Pooling::kSum, splits, 1, nullptr, 0};
  const auto code = [&] {
    return unique.SumPooled(gradients, ValueType::kFloat32, 1, pooling, sums).code();
  };
  CHECK(code() == StatusCode::kInvalidArgument);
  splits[1] = 2;
  CHECK(code() == StatusCode::kOk);
  pooling.max_norm = 1;
  CHECK(code() == StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tfra::test
