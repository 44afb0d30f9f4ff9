#include "kernels/initializer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "base/hash.h"
#include "check.h"
#include "kernels/dispatch.h"
#include "kernels/update_kernels.h"

namespace tfra {
namespace {

using Kind = InitializerKind;
using Type = ValueType;

constexpr Kind kRandomKinds[] = {Kind::kUniform, Kind::kNormal, Kind::kTruncatedNormal};
constexpr Type kFloatingTypes[] = {Type::kFloat32, Type::kFloat16, Type::kBfloat16, Type::kFloat64};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

InitializerSpec Spec(Kind kind, uint64_t seed = 1) {
  InitializerSpec spec;
  spec.kind = kind;
  spec.seed = seed;
  spec.low = -1.0, spec.high = 1.0;
  spec.stddev = 1.0;
  return spec;
}

Initializer Make(const InitializerSpec& spec, Type type, int64_t dim) {
  Initializer initializer;
  CHECK_OK(Initializer::Create(spec, type, dim, &initializer));
  return initializer;
}

std::vector<std::byte> Row(const Initializer& initializer, Type type, int64_t dim, uint64_t key) {
  // The row starts at byte 1, and one byte follows it: Fill needs no alignment and writes no more
  // than the row.
  std::vector<std::byte> bytes(static_cast<size_t>(dim) * SizeOf(type) + 2, std::byte{0x5A});
  initializer.Fill(key, bytes.data() + 1);
  CHECK(bytes.front() == std::byte{0x5A} && bytes.back() == std::byte{0x5A});
  return {bytes.begin() + 1, bytes.end() - 1};
}

std::vector<double> Values(const std::vector<std::byte>& bytes, Type type) {
  return DispatchNumeric(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    std::vector<double> values;
    for (size_t i = 0; i < bytes.size(); i += sizeof(T)) {
      T element;
      std::memcpy(&element, bytes.data() + i, sizeof(T));
      values.push_back(static_cast<typename ComputeOf<T>::type>(element));
    }
    return values;
  });
}

std::vector<double> RowValues(const InitializerSpec& spec, Type type, int64_t dim, uint64_t key) {
  return Values(Row(Make(spec, type, dim), type, dim, key), type);
}

// Element `column` of the rows of the keys 0 .. count - 1.
std::vector<double> Column(const InitializerSpec& spec, int64_t dim, int column, uint64_t count) {
  const Initializer initializer = Make(spec, Type::kFloat64, dim);
  std::vector<double> row(static_cast<size_t>(dim)), values;
  for (uint64_t key = 0; key < count; ++key) {
    initializer.Fill(key, reinterpret_cast<std::byte*>(row.data()));
    values.push_back(row[column]);
  }
  return values;
}

double Phi(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

double Cdf(Kind kind, double x) {
  if (kind == Kind::kUniform) return (x + 1.0) / 2.0;
  if (kind == Kind::kNormal) return Phi(x);
  return (Phi(x) - Phi(-2.0)) / (Phi(2.0) - Phi(-2.0));
}

double Correlation(const std::vector<double>& a, const std::vector<double>& b) {
  double ab = 0.0, aa = 0.0, bb = 0.0;
  for (size_t i = 0; i < a.size(); ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  return ab / std::sqrt(aa * bb);
}

bool Fails(const InitializerSpec& spec, Type type, int64_t dim, StatusCode code,
           const std::string& received) {
  Initializer initializer;
  const Status status = Initializer::Create(spec, type, dim, &initializer);
  const bool named = status.message().find("received " + received) != std::string::npos;
  if (status.code() != code || !named) std::fprintf(stderr, "  %s\n", status.message().c_str());
  return status.code() == code && named;
}

uint64_t LoadBits(const std::byte* data, size_t size) {
  uint16_t half = 0;
  uint32_t single = 0;
  uint64_t full = 0;
  if (size == 2) std::memcpy(&half, data, size);
  if (size == 4) std::memcpy(&single, data, size);
  if (size == 8) std::memcpy(&full, data, size);
  return half + single + full;
}

TEST(GoldenRows) {
  struct Golden {
    Kind kind;
    Type type;
    uint64_t seed, key;
    uint64_t bits[3];
  };
  const Golden goldens[] = {
      {Kind::kUniform, Type::kFloat32, 0, 0, {0xBD00B142, 0x3CE1384E, 0xBD396D7E}},
      {Kind::kUniform, Type::kFloat32, 12345, ~uint64_t{0}, {0x3CAFD9CB, 0xBC65404F, 0x3C5F1463}},
      {Kind::kUniform, Type::kFloat16, 12345, 678, {0xA4A4, 0xA90A, 0x2870}},
      {Kind::kUniform, Type::kBfloat16, 12345, 678, {0xBC94, 0xBD21, 0x3D0E}},
      {Kind::kUniform,
       Type::kFloat64,
       12345,
       678,
       {0xBF928F3F36BDC315, 0xBFA42712818F32B9, 0x3FA1BF50ED945CE9}},
      {Kind::kNormal, Type::kFloat32, 0, 0, {0xBD36FA3C, 0x3D1AA8B0, 0xBDAB2D93}},
      {Kind::kNormal, Type::kFloat32, 1, 0, {0x3DD82AEB, 0x3D05AB07, 0x3D647F3A}},
      {Kind::kNormal, Type::kFloat32, 0, 1, {0xBC21751B, 0x3E01AD84, 0x3D1C116C}},
      {Kind::kNormal, Type::kFloat32, 12345, ~uint64_t{0}, {0x3CE84405, 0xBC92BDC8, 0x3C8E9FF9}},
      {Kind::kNormal, Type::kFloat16, 12345, 678, {0xA608, 0xABF9, 0x2A8B}},
      {Kind::kNormal, Type::kBfloat16, 12345, 678, {0xBCC1, 0xBD7F, 0x3D51}},
      {Kind::kNormal,
       Type::kFloat64,
       12345,
       678,
       {0xBF981FEA847D0AFC, 0xBFAFE55D0E55311C, 0x3FAA2A46D2CB9AA0}},
      {Kind::kTruncatedNormal, Type::kFloat32, 0, 0, {0xBD2C497B, 0x3D123F6D, 0xBD98BF09}},
      {Kind::kTruncatedNormal,
       Type::kFloat32,
       12345,
       ~uint64_t{0},
       {0x3CDC94F7, 0xBC8BCAD2, 0x3C87E2BE}},
      {Kind::kTruncatedNormal, Type::kFloat16, 12345, 678, {0xA5BD, 0xAB62, 0x2A21}},
      {Kind::kTruncatedNormal, Type::kBfloat16, 12345, 678, {0xBCB8, 0xBD6C, 0x3D44}},
      {Kind::kTruncatedNormal,
       Type::kFloat64,
       12345,
       678,
       {0xBF96F2C52E74D7E7, 0xBFAD892818E4305F, 0x3FA8836B2C21001A}},
  };
  for (const Golden& golden : goldens) {
    InitializerSpec spec;
    spec.kind = golden.kind, spec.seed = golden.seed;
    const auto row = Row(Make(spec, golden.type, 3), golden.type, 3, golden.key);
    for (size_t i = 0; i < 3; ++i) {
      CHECK_EQ(LoadBits(row.data() + i * SizeOf(golden.type), SizeOf(golden.type)), golden.bits[i]);
    }
  }
}

// A checksum over all kinds, types and branches of the quantile.
TEST(GoldenChecksum) {
  uint64_t sum = 0;
  for (const Kind kind : kRandomKinds) {
    for (const Type type : kFloatingTypes) {
      const Initializer initializer = Make(Spec(kind), type, 65);
      for (uint64_t key = 0; key < 2000; ++key) {
        for (const double value : Values(Row(initializer, type, 65, key), type)) {
          sum = MixInt64(sum + std::bit_cast<uint64_t>(value));
        }
      }
    }
  }
  CHECK_EQ(sum, 0x3C023E244083014Au);
}

TEST(RandomRowsAreTheSameForEveryInstructionSet) {
  constexpr size_t kDims = 70;
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    const KernelTable* kernels = KernelsFor(isa);
    if (kernels == nullptr) continue;
    for (const Kind kind : kRandomKinds) {
      const RandomRows rows{kind, 0.25, 3.0, -10.0, 10.0};
      for (const Type type : kFloatingTypes) {
        for (size_t dim = 1; dim <= kDims; ++dim) {
          for (uint64_t seed = 0; seed < 40; ++seed) {
            const uint64_t state = MixInt64(seed * kDims + dim);
            // The buffer has one element more than the row, which must not change.
            std::vector<std::byte> expected((dim + 1) * SizeOf(type), std::byte{0x5A});
            std::vector<std::byte> row = expected;
            KernelsFor(Isa::kPortable)->For(type).fill_random(rows, state, expected.data(), dim);
            kernels->For(type).fill_random(rows, state, row.data(), dim);
            CHECK(row == expected);
          }
        }
      }
    }
  }
}

TEST(QuantileIsAccurate) {
  double worst = 0.0, last = -kInfinity;
  const auto check = [&](double t) {
    const double x = CenteredNormalQuantile(t);
    // Newton's step to the exact quantile, in the tail, so that no digits are lost.
    const long double u = 1.0L - std::fabs(static_cast<long double>(t));
    const long double a = std::fabs(x) / std::sqrt(2.0L);
    const long double density = std::exp(-a * a) * std::sqrt(2.0L / std::acos(-1.0L));
    const double error = static_cast<double>(std::fabs(std::erfc(a) - u) / density);
    worst = std::max(worst, error / std::max(1.0, std::fabs(x)));
    CHECK_EQ(CenteredNormalQuantile(-t), -x);
  };
  for (int i = 1; i < 100000; ++i) {
    const double t = i / 100000.0;
    check(t);
    CHECK(CenteredNormalQuantile(t) > last);
    last = CenteredNormalQuantile(t);
  }
  for (double u = 0.1; u > 0x1p-53; u *= 0.99) check(1.0 - u);
  for (double t = 0.1; t > 1e-15; t *= 0.9) check(t);
  check(1.0 - 0x1p-53);
  CHECK(worst < 2e-10);
}

TEST(Distributions) {
  for (const Kind kind : kRandomKinds) {
    const bool uniform = kind == Kind::kUniform, normal = kind == Kind::kNormal;
    const double variance = uniform ? 1.0 / 3 : normal ? 1.0 : 0.7737413;
    const double kurtosis = uniform ? 1.8 : normal ? 3.0 : 2.3655;
    for (const int column : {0, 31, 64}) {
      constexpr size_t kCount = 200000;
      std::vector<double> values = Column(Spec(kind), 65, column, kCount);
      double sum = 0.0, squares = 0.0, fourths = 0.0;
      for (const double x : values) sum += x, squares += x * x, fourths += x * x * x * x;
      CHECK_NEAR(sum / kCount, 0.0, 0.01);
      CHECK_NEAR(squares / kCount, variance, 0.01);
      CHECK_NEAR(fourths * kCount / (squares * squares), kurtosis, 0.05);
      std::sort(values.begin(), values.end());
      double distance = 0.0;
      for (size_t i = 0; i < kCount; ++i) {
        distance = std::max(distance, std::fabs(Cdf(kind, values[i]) - (i + 0.5) / kCount));
      }
      CHECK(distance * std::sqrt(static_cast<double>(kCount)) < 1.7);  // Probability: 99.4 %.
      CHECK(std::adjacent_find(values.begin(), values.end()) == values.end());
    }
  }
}

TEST(DifferentElementsKeysAndSeedsAreIndependent) {
  constexpr uint64_t kCount = 100000;
  for (const Kind kind : kRandomKinds) {
    const std::vector<double> base = Column(Spec(kind, 7), 65, 5, kCount + 2);
    const std::vector<double> first(base.begin(), base.end() - 2);
    const double limit = 5.0 / std::sqrt(static_cast<double>(kCount));
    for (const int lag : {1, 2}) {
      const std::vector<double> next(base.begin() + lag, base.end() - (2 - lag));
      CHECK(std::fabs(Correlation(first, next)) < limit);
    }
    for (const int column : {0, 4, 6, 63, 64}) {
      CHECK(std::fabs(Correlation(first, Column(Spec(kind, 7), 65, column, kCount))) < limit);
    }
    for (const uint64_t seed : {0, 6, 8, 1000}) {
      CHECK(std::fabs(Correlation(first, Column(Spec(kind, seed), 65, 5, kCount))) < limit);
    }
  }
}

TEST(RelatedSeedsAndKeysShareNothing) {
  // 4096 rows of 8 elements, with related seeds and keys: no two elements are equal.
  std::vector<double> all;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    const Initializer initializer = Make(Spec(Kind::kUniform, seed), Type::kFloat64, 8);
    for (uint64_t key = 0; key < 64; ++key) {
      const auto row = Values(Row(initializer, Type::kFloat64, 8, key), Type::kFloat64);
      all.insert(all.end(), row.begin(), row.end());
    }
  }
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
}

TEST(ASmallerDimGivesThePrefixOfTheRow) {
  for (const Kind kind : kRandomKinds) {
    for (const Type type : kFloatingTypes) {
      for (const uint64_t key : {uint64_t{0}, uint64_t{42}, ~uint64_t{0}}) {
        const auto longest = Row(Make(Spec(kind), type, 1000), type, 1000, key);
        for (const int64_t dim : {1, 2, 3, 7, 63, 64, 65, 128, 999}) {
          const auto row = Row(Make(Spec(kind), type, dim), type, dim, key);
          CHECK(std::equal(row.begin(), row.end(), longest.begin()));
        }
      }
    }
  }
}

TEST(NarrowTypesRoundTheSameDoubles) {
  for (const Kind kind : kRandomKinds) {
    const auto exact = RowValues(Spec(kind), Type::kFloat64, 1000, 9);
    for (const Type type : kFloatingTypes) {
      const bool wide = SizeOf(type) > 2;
      const double ulp = wide ? (type == Type::kFloat64 ? 0.0 : 0x1p-24)
                              : (type == Type::kFloat16 ? 0x1p-11 : 0x1p-8);
      const auto rounded = RowValues(Spec(kind), type, 1000, 9);
      for (size_t i = 0; i < exact.size(); ++i) {
        CHECK_NEAR(rounded[i], exact[i], std::fabs(exact[i]) * ulp * 1.001 + ulp * 0x1p-14);
      }
    }
  }
}

TEST(Bounds) {
  for (const Type type : kFloatingTypes) {
    InitializerSpec spec = Spec(Kind::kUniform);
    spec.low = 1.0, spec.high = 1.0 + 0x1p-6;  // The range has two bfloat16 values; high is out.
    for (const double x : RowValues(spec, type, 1000, 3)) CHECK(x >= spec.low && x < spec.high);
    spec.low = -0.1, spec.high = 0.1;  // The narrower types cannot represent these bounds.
    for (uint64_t key = 0; key < 200; ++key) {
      for (const double x : RowValues(spec, type, 1000, key)) CHECK(x >= spec.low && x < spec.high);
    }
    spec = Spec(Kind::kTruncatedNormal);
    spec.mean = 0.3, spec.stddev = 0.1;
    for (uint64_t key = 0; key < 200; ++key) {
      for (const double x : RowValues(spec, type, 1000, key)) CHECK(std::fabs(x - 0.3) <= 0.2);
    }
    const bool half = type == Type::kFloat16, full = type == Type::kFloat64;
    const double greatest = half ? 65504.0 : full ? 1.7e308 : 3e38;
    spec = Spec(Kind::kNormal);
    spec.stddev = greatest;  // Many elements would overflow.
    for (const double x : RowValues(spec, type, 1000, 3)) CHECK(std::isfinite(x));
    spec = Spec(Kind::kUniform);
    spec.low = -greatest, spec.high = greatest;  // high - low overflows.
    double sum = 0.0;
    for (const double x : RowValues(spec, type, 1000, 3)) {
      CHECK(x >= spec.low && x < spec.high);
      sum += x / greatest / 1000;
    }
    CHECK_NEAR(sum, 0.0, 0.1);
  }
}

TEST(ZeroWidthIsConstant) {
  for (const Type type : kFloatingTypes) {
    for (const Kind kind : kRandomKinds) {
      InitializerSpec spec = Spec(kind);
      spec.low = spec.high = spec.mean = 0.75;
      spec.stddev = 0.0;
      const Initializer initializer = Make(spec, type, 65);
      CHECK(initializer.is_constant());
      for (const double x : Values(Row(initializer, type, 65, 3), type)) CHECK_EQ(x, 0.75);
      CHECK(!Make(Spec(kind), type, 65).is_constant());
    }
  }
  // No bfloat16 value is in the range: all elements are the nearest value.
  InitializerSpec spec = Spec(Kind::kUniform);
  spec.low = 1.001, spec.high = 1.002;
  CHECK(RowValues(spec, Type::kBfloat16, 1, 3) == std::vector<double>{1.0});
}

TEST(ConstantRows) {
  for (const Type type : {Type::kFloat32, Type::kFloat16, Type::kBfloat16, Type::kFloat64,
                          Type::kInt8, Type::kInt32, Type::kInt64, Type::kBool}) {
    for (const int64_t dim : {1, 3, 64, 65, 1000}) {
      const size_t size = static_cast<size_t>(dim) * SizeOf(type);
      for (const double x : RowValues(Spec(Kind::kZeros), type, dim, 5)) CHECK_EQ(x, 0.0);
      for (const double x : RowValues(Spec(Kind::kOnes), type, dim, 5)) CHECK_EQ(x, 1.0);
      InitializerSpec spec = Spec(Kind::kConstant);
      for (size_t i = 0; i < size; ++i) spec.row.push_back(static_cast<std::byte>(i % 2));
      const Initializer initializer = Make(spec, type, dim);
      CHECK(initializer.is_constant());
      CHECK(Row(initializer, type, dim, 5) == spec.row);
      CHECK_EQ(std::memcmp(initializer.constant_row(), spec.row.data(), size), 0);
    }
  }
}

TEST(StringRows) {
  const std::vector<std::string> empty(3), bits = {"a", "", "ccc"};
  CHECK(Make(Spec(Kind::kZeros), Type::kString, 3).string_row() == empty);
  InitializerSpec spec = Spec(Kind::kConstant);
  spec.string_row = bits;
  const Initializer initializer = Make(spec, Type::kString, 3);
  CHECK(initializer.string_row() == bits);
  CHECK(initializer.is_constant());
}

TEST(Validation) {
  constexpr StatusCode kInvalid = StatusCode::kInvalidArgument, kType = StatusCode::kWrongType;
  for (const Kind kind : kRandomKinds) {
    for (const Type type : {Type::kInt8, Type::kInt32, Type::kInt64, Type::kBool, Type::kString}) {
      CHECK(Fails(Spec(kind), type, 2, kType, NameOf(type)));
    }
  }
  CHECK(Fails(Spec(Kind::kOnes), Type::kString, 2, kType, "ones"));
  CHECK(Fails(Spec(Kind::kZeros), Type::kFloat32, 0, kInvalid, "0"));
  CHECK(Fails(Spec(Kind::kZeros), Type::kFloat32, -1, kInvalid, "-1"));
  InitializerSpec spec = Spec(Kind::kUniform);
  spec.low = 2.0;
  CHECK(Fails(spec, Type::kFloat32, 2, kInvalid, "low=2 and high=1"));
  for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
    for (double InitializerSpec::* field : {&InitializerSpec::low, &InitializerSpec::high}) {
      spec = Spec(Kind::kUniform);
      spec.*field = bad;
      CHECK(Fails(spec, Type::kFloat64, 2, kInvalid, "low="));
    }
    for (double InitializerSpec::* field : {&InitializerSpec::mean, &InitializerSpec::stddev}) {
      for (const Kind kind : {Kind::kNormal, Kind::kTruncatedNormal}) {
        spec = Spec(kind);
        spec.*field = bad;
        CHECK(Fails(spec, Type::kFloat64, 2, kInvalid, "mean="));
      }
    }
  }
  spec = Spec(Kind::kNormal);
  spec.stddev = -1.0;
  CHECK(Fails(spec, Type::kFloat32, 2, kInvalid, "mean=0 and stddev=-1"));
  spec.stddev = 1e5;  // Finite, but not as a float16.
  CHECK(Fails(spec, Type::kFloat16, 2, kInvalid, "mean=0 and stddev=100000"));
  spec = Spec(Kind::kConstant);
  spec.row.resize(7);
  CHECK(Fails(spec, Type::kFloat32, 2, kInvalid, "7 bytes"));
  spec.row.assign(2, std::byte{2});
  CHECK(Fails(spec, Type::kBool, 2, kInvalid, "2"));
  spec.string_row.resize(1);
  CHECK(Fails(spec, Type::kString, 2, kInvalid, "1"));
}

TEST(FailureLeavesTheInitializerAlone) {
  Initializer initializer = Make(Spec(Kind::kOnes), Type::kInt8, 1);
  CHECK(!Initializer::Create(Spec(Kind::kNormal), Type::kInt8, 4, &initializer).ok());
  CHECK(*initializer.constant_row() == std::byte{1});
}

}  // namespace
}  // namespace tfra
