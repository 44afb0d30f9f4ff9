// Pooled lookups against a plain loop over looked-up rows.
#include <cmath>
#include <limits>
#include <random>

#include "kernels/update_kernels.h"
#include "table_helpers.h"

namespace tfra::test {
namespace {

constexpr ValueType kFloatTypes[] = {ValueType::kFloat32, ValueType::kFloat16, ValueType::kBfloat16,
                                     ValueType::kFloat64};
constexpr Pooling::Combiner kCombiners[] = {Pooling::kSum, Pooling::kMean, Pooling::kSqrtN};

// `n` elements of a type as doubles.
std::vector<double> Widen(ValueType type, const void* data, size_t n) {
  return DispatchFloating(type, [&]<typename T>(T*) {
    using Compute = typename ComputeOf<T>::type;
    std::vector<double> wide(n);
    for (size_t i = 0; i < n; ++i) {
      wide[i] = static_cast<double>(static_cast<Compute>(static_cast<const T*>(data)[i]));
    }
    return wide;
  });
}

struct Batch {
  std::vector<int64_t> numbers;
  std::vector<int64_t> splits;
  std::vector<float> weights;

  Pooling Of(Pooling::Combiner combiner, bool weighted, double max_norm = 0) const {
    return {combiner, splits.data(), splits.size() - 1, weighted ? weights.data() : nullptr,
            max_norm};
  }
};

// Segments of 0 .. longest keys; some keys are repeated, and some are not in the table.
Batch RandomBatch(size_t segments, int longest, uint64_t seed) {
  std::mt19937_64 random(seed);
  Batch batch;
  batch.splits.push_back(0);
  for (size_t s = 0; s < segments; ++s) {
    const size_t length = random() % static_cast<uint64_t>(longest + 1);
    for (size_t k = 0; k < length; ++k) {
      batch.numbers.push_back(static_cast<int64_t>(random() % 300));
      batch.weights.push_back(static_cast<float>(static_cast<int>(random() % 9) - 3) / 4);
    }
    batch.splits.push_back(static_cast<int64_t>(batch.numbers.size()));
  }
  return batch;
}

// The result that the contract requires, computed from the rows of all keys.
std::vector<double> Pooled(const std::vector<double>& rows, const Pooling& pooling, size_t dim) {
  std::vector<double> out(pooling.segments * dim);
  for (size_t s = 0; s < pooling.segments; ++s) {
    double sum = 0, squares = 0;
    for (auto i = static_cast<size_t>(pooling.splits[s]);
         i < static_cast<size_t>(pooling.splits[s + 1]); ++i) {
      const double weight = pooling.weights == nullptr ? 1 : pooling.weights[i];
      double norm = 0;
      for (size_t j = 0; j < dim; ++j) norm += rows[i * dim + j] * rows[i * dim + j];
      norm = std::sqrt(norm);
      const bool clip = pooling.max_norm > 0 && norm > pooling.max_norm;
      const double scale = clip ? pooling.max_norm / norm : 1;
      for (size_t j = 0; j < dim; ++j) out[s * dim + j] += weight * scale * rows[i * dim + j];
      sum += weight;
      squares += weight * weight;
    }
    const double divisor = pooling.combiner == Pooling::kSum    ? 1
                           : pooling.combiner == Pooling::kMean ? sum
                                                                : std::sqrt(squares);
    for (size_t j = 0; j < dim; ++j) {
      out[s * dim + j] = divisor == 0 ? 0 : out[s * dim + j] / divisor;
    }
  }
  return out;
}

// A table with the keys 0 .. 199. Batches have keys of 0 .. 299.
std::unique_ptr<Table> PooledTable(KeyType key_type, ValueType type, size_t dim) {
  TableSpec spec = SpecOf(key_type, type, static_cast<int64_t>(dim));
  spec.initializer.kind = InitializerKind::kUniform;
  spec.initializer.low = -2;
  spec.initializer.high = 2;
  auto table = MakeTable(spec);
  AssignNumbers(*table, TestKeys::Range(key_type, 0, 200),
                [](size_t i, size_t j) { return static_cast<int>((i * 7 + j * 3) % 19) - 9; });
  return table;
}

// Compares a pooled lookup with the model. Returns its bytes.
std::vector<std::byte> CheckPooled(Table& table, const TestKeys& keys, const Defaults& defaults,
                                   const Pooling& pooling) {
  const ValueType type = table.spec().value_type, compute = ComputeType(type);
  const size_t dim = static_cast<size_t>(table.spec().dim), n = keys.size();
  TestRows rows(type, n, dim);
  CHECK_OK(table.Lookup(keys.batch(), defaults, rows.out(), nullptr));
  const auto expected = Pooled(Widen(type, rows.in(), n * dim), pooling, dim);
  std::vector<std::byte> out(pooling.segments * dim * SizeOf(compute), std::byte{0xFF});
  CHECK_OK(table.LookupPooled(keys.batch(), defaults, pooling, out.data()));
  const auto received = Widen(compute, out.data(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const double unit = compute == ValueType::kFloat64 ? 1e-12 : 2e-5;
    CHECK_NEAR(received[i], expected[i], unit * (1 + std::fabs(expected[i])));
  }
  return out;
}

TEST(PooledLookupAgreesWithAPlainLoop) {
  for (KeyType key_type : kKeyTypes) {
    for (ValueType type : kFloatTypes) {
      for (size_t dim : {1, 8, 16, 43}) {
        const auto table = PooledTable(key_type, type, dim);
        const Batch batch = RandomBatch(60, 9, dim);
        const TestKeys keys(key_type, batch.numbers);
        const TestRows own = TestRows::Make(type, keys.size(), dim, [](size_t i, size_t j) {
          return static_cast<int>((i + j) % 50);
        });
        for (Pooling::Combiner combiner : kCombiners) {
          for (bool weighted : {false, true}) {
            CheckPooled(*table, keys, {}, batch.Of(combiner, weighted));
            CheckPooled(*table, keys, {}, batch.Of(combiner, weighted, 3));
            const Pooling pooling = batch.Of(combiner, weighted);
            CheckPooled(*table, keys, {Defaults::kOneRow, own.in()}, pooling);
            CheckPooled(*table, keys, {Defaults::kRowPerKey, own.in()}, pooling);
          }
        }
      }
    }
  }
}

// Long segments, which span several blocks, and many short segments, on one and several threads.
TEST(PooledLookupDoesNotDependOnThreads) {
  for (KeyType key_type : kKeyTypes) {
    for (ValueType type : {ValueType::kFloat32, ValueType::kFloat16}) {
      const auto table = PooledTable(key_type, type, 32);
      for (const Batch& batch : {RandomBatch(20, 3000, 1), RandomBatch(9000, 5, 2),
                                 RandomBatch(1, 30000, 3), RandomBatch(30000, 0, 4)}) {
        const TestKeys keys(key_type, batch.numbers);
        const Pooling pooling = batch.Of(Pooling::kSqrtN, true, 20);
        ScopedNumThreads one(1);
        const auto alone = CheckPooled(*table, keys, {}, pooling);
        for (int threads : {2, 3, 8}) {
          ScopedNumThreads several(threads);
          CHECK(CheckPooled(*table, keys, {}, pooling) == alone);
        }
      }
    }
  }
}

TEST(PooledLookupOfNothing) {
  const auto table = PooledTable(KeyType::kInt64, ValueType::kFloat32, 4);
  const TestKeys none(KeyType::kInt64, {});
  Batch batch;
  batch.splits = {0};
  CheckPooled(*table, none, {}, batch.Of(Pooling::kMean, false));
  batch.splits = {0, 0, 0, 0};
  for (Pooling::Combiner combiner : kCombiners) {
    CheckPooled(*table, none, {}, batch.Of(combiner, false));
  }
}

TEST(PooledLookupCountsItsKeys) {
  const auto table = PooledTable(KeyType::kInt64, ValueType::kFloat32, 4);
  const Batch batch{{1, 1, 250, 2}, {0, 4}, {}};
  CheckPooled(*table, TestKeys(KeyType::kInt64, batch.numbers), {}, batch.Of(Pooling::kSum, false));
  CHECK_EQ(table->stats().hits, 6u);  // In two lookups.
  CHECK_EQ(table->stats().misses, 2u);
  CHECK_EQ(table->size(), 200u);
}

// Like tf.math.divide_no_nan: if the divisor is zero, the result is zero.
TEST(PooledLookupDividesByZero) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto table = MakeTable(SpecOf(KeyType::kInt64, ValueType::kFloat32, 2));
  const int64_t key = 5;
  const float row[] = {kInfinity, 1};
  CHECK_OK(table->Assign(KeyBatch(&key, 1), row));
  const Batch batch{{5, 5, 5}, {0, 2, 3}, {1, -1, 0}};
  const TestKeys keys(KeyType::kInt64, batch.numbers);
  for (Pooling::Combiner combiner : kCombiners) {
    float out[4];
    CHECK_OK(table->LookupPooled(keys.batch(), {}, batch.Of(combiner, true), out));
    CHECK_EQ(out[1], 0.0f);
    CHECK_EQ(out[3], 0.0f);
    CHECK_EQ(std::isnan(out[0]), combiner != Pooling::kMean);
    CHECK_EQ(std::isnan(out[2]), combiner == Pooling::kSum);
  }
}

TEST(PooledLookupRejectsWrongArguments) {
  const auto table = PooledTable(KeyType::kInt64, ValueType::kFloat32, 2);
  const TestKeys keys(KeyType::kInt64, {1, 2, 3});
  std::vector<float> out(20, 7);
  const auto fails = [&](std::vector<int64_t> splits, double max_norm, const char* received) {
    const Pooling pooling{Pooling::kSum, splits.data(), splits.size() - 1, nullptr, max_norm};
    const Status status = table->LookupPooled(keys.batch(), {}, pooling, out.data());
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(status.message().find("expected") != std::string::npos);
    CHECK(status.message().find(received) != std::string::npos);
  };
  fails({1, 3}, 0, "received 1");
  fails({-1, 3}, 0, "received -1");
  fails({0, 2, 1, 3}, 0, "received 1 after 2 at 2");
  fails({0, 2}, 0, "received 2");
  fails({0, 4}, 0, "received 4");
  fails({0}, 0, "received 0");
  fails({0, 3}, -1, "received -1");
  fails({0, 3}, std::numeric_limits<double>::quiet_NaN(), "received ");
  CHECK(out == std::vector<float>(20, 7));
  const int64_t splits[] = {0, 3};
  const Pooling pooling{Pooling::kSum, splits, 1, nullptr, 0};
  const TestKeys strings(KeyType::kString, {1, 2, 3});
  CHECK(table->LookupPooled(strings.batch(), {}, pooling, out.data()).code() ==
        StatusCode::kWrongType);
  for (ValueType type : kValueTypes) {
    if (IsFloating(type)) continue;
    const auto other = MakeTable(SpecOf(KeyType::kInt64, type, 2));
    const Status status = other->LookupPooled(keys.batch(), {}, pooling, out.data());
    CHECK(status.code() == StatusCode::kWrongType);
    CHECK(status.message().find(NameOf(type)) != std::string::npos);
  }
}

TEST(SumsAreTheSameForEveryInstructionSet) {
  constexpr size_t kRows = 5;
  std::mt19937 random(1);
  for (ValueType type : kFloatTypes) {
    for (size_t dim : {1, 7, 8, 31, 32, 77}) {
      const TestRows rows = TestRows::Make(
          type, kRows, dim, [&](size_t, size_t) { return static_cast<int>(random() % 100); });
      const auto* bytes = static_cast<const std::byte*>(rows.in());
      DispatchFloating(type, [&]<typename Stored>(Stored*) {
        using T = typename ComputeOf<Stored>::type;
        const T scales[kRows] = {T(0.1), T(-0.3), T(7.7), T(1e-3), T(1) / 3};
        const auto run = [&](Isa isa) {
          const TypeKernels& kernels = KernelsFor(isa)->For(type);
          std::vector<T> results(2 * dim + kRows);
          auto* out = reinterpret_cast<std::byte*>(results.data());
          kernels.add_rows(bytes, kRows, reinterpret_cast<const std::byte*>(scales), out, dim);
          kernels.add_rows(bytes, kRows, nullptr, out + dim * sizeof(T), dim);
          kernels.row_norms(bytes, kRows, out + 2 * dim * sizeof(T), dim);
          return results;
        };
        for (Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
          if (KernelsFor(isa) != nullptr) CHECK(run(isa) == run(Isa::kPortable));
        }
      });
    }
  }
}

}  // namespace
}  // namespace tfra::test
