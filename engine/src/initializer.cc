#include "initializer.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "dispatch.h"
#include "hash.h"

namespace tfra {
namespace {

static_assert(FLT_EVAL_METHOD == 0, "initial rows need arithmetic in the type it is written in");
static_assert(std::numeric_limits<double>::is_iec559);

// The generator of wyrand: a counter that steps by kStep, and the folded product of it and its xor.
constexpr uint64_t kStep = 0xA0761D6478BD642Fu;
constexpr uint64_t kXor = 0xE7037ED1A0B428DBu;

constexpr double kProbabilityWithinTwo = 0.9544997361036416;  // erf(sqrt(2)).
// Up to this |t| a rational function of t is enough: for every truncated normal, 95 % of others.
constexpr double kBodyEdge = 0.955;
static_assert(kProbabilityWithinTwo < kBodyEdge);
// From this 1 - |t| down it takes a logarithm and a square root: 0.4 % of normals, and three times
// the latency. Without the piece between the two a row of 32 took 170 ns, not 153.
constexpr double kTailEdge = 0x1p-8;

constexpr int64_t kBlock = 64;

constexpr double kLargest = std::numeric_limits<double>::max();

// Minimax (Remez, relative error 1.03e-10) for quantile(t) / t in t^2, |t| <= kBodyEdge. Even and
// odd powers apart, as the two short chains of multiplies take less time than one long one.
inline double BodyQuantile(double t) {
  const double s = t * t, s2 = s * s;
  double p_even = 0.007709020399920253 * s2 + 1.6309679496669225;
  p_even = p_even * s2 + 6.683093580439619;
  p_even = p_even * s2 + 1.2533141373409034;
  double p_odd = -0.2374936197075177 * s2 - 4.708085555493759;
  p_odd = p_odd * s2 - 4.62945635800551;
  double q_even = 0.024195185900365727 * s2 + 2.005062274772081;
  q_even = q_even * s2 + 6.2239714808007065;
  q_even = q_even * s2 + 1.0;
  double q_odd = -0.3833716351839395 * s2 - 4.914271307713181;
  q_odd = q_odd * s2 - 3.955571137808492;
  return t * (p_even + s * p_odd) / (q_even + s * q_odd);
}

// Rational (relative error 3.3e-11) in u = 1 - |t|, for kTailEdge <= u <= 1 - kBodyEdge. Here and
// in TailQuantile sums are in pairs: one element at a time, latency is what counts.
inline double ShoulderQuantile(double u) {
  const double u2 = u * u, u4 = u2 * u2;
  const double p = ((3.929278554179953 + u * 9402.42114713199) +
                    u2 * (3858674.3390930854 + u * 415169345.79580307)) +
                   u4 * ((12215722267.291874 + u * 71727201768.2921) - u2 * 49975269971.54765);
  const double q =
      ((1.0 + u * 2839.359843619131) + u2 * (1340871.2814769137 + u * 168472240.81597796)) +
      u4 * ((6154122119.137727 + u * 56425674903.1055) + u2 * 62925311386.20105);
  return p / q;
}

// -log(x) for a normal x in (0, 1), by x = 2^e * m with m in [sqrt(1/2), sqrt(2)) and
// log(m) = 2 atanh((m - 1) / (m + 1)); eight terms of the series leave 1e-14.
inline double MinusLog(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const uint64_t sqrt_half = 0x3FE6A09E667F3BCDu;
  const int64_t exponent = static_cast<int64_t>(bits - sqrt_half) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(exponent) << 52));
  const double y = (m - 1.0) / (m + 1.0);
  const double s = y * y, s2 = s * s, s4 = s2 * s2;
  const double low = (2.0 + s * (2.0 / 3)) + s2 * (2.0 / 5 + s * (2.0 / 7));
  const double high = (2.0 / 9 + s * (2.0 / 11)) + s2 * (2.0 / 13 + s * (2.0 / 15));
  return static_cast<double>(-exponent) * 0.6931471805599453 - y * (low + s4 * high);
}

// Rational (relative error 3.1e-12) in sqrt(-log(u)), for 2^-53 <= u <= kTailEdge.
inline double TailQuantile(double u) {
  const double r = std::sqrt(MinusLog(u));
  const double r2 = r * r, r4 = r2 * r2;
  const double p = (-0.050668042240671944 + r * 0.31050839901855043) +
                   r2 * (0.41826895185027013 + r * 2.9017341255429314) +
                   r4 * (1.356644962666959 + r * 0.10722367369620599);
  const double q = (1.0 + r * 1.3553918212895937) +
                   r2 * (2.209688678766774 + r * 0.9604384341355282) + r4 * 0.07580744515674233;
  return p / q;
}

// For kBodyEdge < |t| < 1.
inline double OuterQuantile(double t) {
  const double u = 1.0 - std::fabs(t);
  return std::copysign(u < kTailEdge ? TailQuantile(u) : ShoulderQuantile(u), t);
}

struct BitTable {
  uint64_t bit[kBlock];
};
constexpr BitTable kBitTable = [] {
  BitTable table{};
  for (int64_t i = 0; i < kBlock; ++i) table.bit[i] = uint64_t{1} << i;
  return table;
}();

// Makes `count` centered uniforms; bit i of the result says that t[i] is beyond kBodyEdge. That is
// read from a table because a shift by i would keep the loop scalar on plain x86-64.
inline uint64_t MakeUniforms(uint64_t state, int64_t count, double* t) {
  uint64_t bits[kBlock];
  for (int64_t i = 0; i < count; ++i) {
    state += kStep;
    bits[i] = FoldMultiply(state, state ^ kXor);
  }
  // The top bit is the sign and the next 52, as a mantissa, the magnitude; half a unit more keeps
  // t off 0 and symmetric. All of it exact.
  uint64_t tail = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double one_to_two =
        std::bit_cast<double>(((bits[i] >> 11) & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u);
    const double magnitude = (one_to_two - 1.0) + 0x1p-53;
    tail |= magnitude > kBodyEdge ? kBitTable.bit[i] : 0;
    t[i] =
        std::bit_cast<double>(std::bit_cast<uint64_t>(magnitude) | (bits[i] & 0x8000000000000000u));
  }
  return tail;
}

template <typename T>
T RoundTo(double value) {
  return static_cast<T>(static_cast<typename ComputeOf<T>::type>(value));
}

template <typename T>
double Widen(T value) {
  return static_cast<typename ComputeOf<T>::type>(value);
}

// The neighbour of a value of type T, by its bits.
template <typename T>
double Next(double value, bool up) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  if (value == 0.0) {
    const double tiny = Widen(std::bit_cast<T>(static_cast<Bits>(1)));
    return up ? tiny : -tiny;
  }
  const Bits bits = std::bit_cast<Bits>(RoundTo<T>(value));
  return Widen(std::bit_cast<T>(static_cast<Bits>((value > 0) == up ? bits + 1 : bits - 1)));
}

template <typename T>
double SmallestFrom(double bound) {
  const double value = Widen(RoundTo<T>(bound));
  return (value < bound ? Next<T>(value, true) : value) + 0.0;  // -0 becomes 0.
}

template <typename T>
double LargestUpTo(double bound) {
  const double value = Widen(RoundTo<T>(bound));
  return (value > bound ? Next<T>(value, false) : value) + 0.0;
}

const char* NameOf(InitializerKind kind) {
  switch (kind) {
    case InitializerKind::kZeros:
      return "zeros";
    case InitializerKind::kOnes:
      return "ones";
    case InitializerKind::kConstant:
      return "constant";
    case InitializerKind::kUniform:
      return "uniform";
    case InitializerKind::kNormal:
      return "normal";
    case InitializerKind::kTruncatedNormal:
      return "truncated normal";
  }
  return "unknown";
}

std::string Show(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

}  // namespace

double CenteredNormalQuantile(double t) {
  return std::fabs(t) > kBodyEdge ? OuterQuantile(t) : BodyQuantile(t);
}

Status Initializer::Create(const InitializerSpec& spec, ValueType type, int64_t dim,
                           Initializer* out) {
  if (dim < 1) {
    return Status::InvalidArgument("dim must be at least 1, received " + std::to_string(dim));
  }
  Initializer made;
  made.type_ = type;
  made.kind_ = spec.kind;
  made.dim_ = dim;
  const bool random = spec.kind == InitializerKind::kUniform ||
                      spec.kind == InitializerKind::kNormal ||
                      spec.kind == InitializerKind::kTruncatedNormal;
  TFRA_RETURN_IF_ERROR(random ? made.InitRandom(spec) : made.InitConstant(spec));
  *out = std::move(made);
  return Status::Ok();
}

Status Initializer::InitConstant(const InitializerSpec& spec) {
  const size_t dim = static_cast<size_t>(dim_);
  if (type_ == ValueType::kString) {
    if (kind_ == InitializerKind::kOnes) {
      return Status::WrongType(
          "the initializer of a string table must be zeros or constant, received ones");
    }
    if (kind_ == InitializerKind::kConstant && spec.string_row.size() != dim) {
      return Status::InvalidArgument("the constant row must have " + std::to_string(dim) +
                                     " strings, received " +
                                     std::to_string(spec.string_row.size()));
    }
    string_row_ =
        kind_ == InitializerKind::kConstant ? spec.string_row : std::vector<std::string>(dim);
    return Status::Ok();
  }
  const size_t size = dim * SizeOf(type_);
  if (kind_ != InitializerKind::kConstant) {
    constant_row_.assign(size, std::byte{0});
    if (kind_ == InitializerKind::kOnes) {
      DispatchNumeric(type_, [&](auto* tag) {
        const auto one = static_cast<std::remove_pointer_t<decltype(tag)>>(1.0f);
        for (size_t i = 0; i < size; i += sizeof(one)) {
          std::memcpy(constant_row_.data() + i, &one, sizeof(one));
        }
      });
    }
    return Status::Ok();
  }
  if (spec.row.size() != size) {
    return Status::InvalidArgument("the constant row must have " + std::to_string(dim) + " " +
                                   tfra::NameOf(type_) + " elements (" + std::to_string(size) +
                                   " bytes), received " + std::to_string(spec.row.size()) +
                                   " bytes");
  }
  if (type_ == ValueType::kBool) {
    for (const std::byte element : spec.row) {
      if (element > std::byte{1}) {
        return Status::InvalidArgument("a bool row must be of bytes 0 and 1, received " +
                                       std::to_string(std::to_integer<int>(element)));
      }
    }
  }
  constant_row_ = spec.row;
  return Status::Ok();
}

Status Initializer::InitRandom(const InitializerSpec& spec) {
  const std::string name = NameOf(kind_);
  if (!IsFloating(type_)) {
    return Status::WrongType("a " + name + " initializer needs a floating value type, received " +
                             tfra::NameOf(type_));
  }
  return DispatchFloating(type_, [&](auto* tag) -> Status {
    using T = std::remove_pointer_t<decltype(tag)>;
    const bool uniform = kind_ == InitializerKind::kUniform;
    // Also false for NaN. A bound the type cannot hold would make infinite rows.
    const auto fits = [](double value) { return std::fabs(Widen(RoundTo<T>(value))) <= kLargest; };
    const std::string finite = std::string("finite as ") + tfra::NameOf(type_);
    if (uniform && !(fits(spec.low) && fits(spec.high) && spec.low <= spec.high)) {
      return Status::InvalidArgument("a uniform initializer needs low <= high, both " + finite +
                                     ", received low=" + Show(spec.low) +
                                     " and high=" + Show(spec.high));
    }
    if (!uniform && !(fits(spec.mean) && fits(spec.stddev) && spec.stddev >= 0.0)) {
      return Status::InvalidArgument("a " + name + " initializer needs mean and stddev " + finite +
                                     ", and stddev >= 0, received mean=" + Show(spec.mean) +
                                     " and stddev=" + Show(spec.stddev));
    }
    // Halved before subtracting: high - low may overflow.
    scale_ = uniform ? spec.high * 0.5 - spec.low * 0.5 : spec.stddev;
    center_ = uniform ? spec.low + scale_ : spec.mean;
    if (uniform) {
      lowest_ = SmallestFrom<T>(spec.low);
      highest_ = LargestUpTo<T>(spec.high);
      if (highest_ == spec.high) highest_ = Next<T>(highest_, false);
    } else {
      const double reach = kind_ == InitializerKind::kNormal ? kLargest : 2.0 * spec.stddev;
      const double greatest = LargestUpTo<T>(kLargest);
      lowest_ = SmallestFrom<T>(std::max(-greatest, spec.mean - reach));
      highest_ = LargestUpTo<T>(std::min(greatest, spec.mean + reach));
    }
    // A distribution narrower than the type's spacing has one value, the nearest to its center.
    if (scale_ == 0.0 || lowest_ > highest_) lowest_ = highest_ = Widen(RoundTo<T>(center_));
    is_constant_ = lowest_ == highest_;
    if (is_constant_) {
      const T value = RoundTo<T>(lowest_);
      constant_row_.resize(static_cast<size_t>(dim_) * sizeof(T));
      for (size_t i = 0; i < constant_row_.size(); i += sizeof(T)) {
        std::memcpy(constant_row_.data() + i, &value, sizeof(T));
      }
    }
    seed_words_[0] = MixInt64(spec.seed + kStep);
    seed_words_[1] = MixInt64(seed_words_[0] + kStep);
    return Status::Ok();
  });
}

void Initializer::Fill(uint64_t key_bits, std::byte* row) const {
  if (is_constant_) {
    std::memcpy(row, constant_row_.data(), constant_row_.size());
    return;
  }
  uint64_t state = MixInt64(MixInt64(key_bits ^ seed_words_[0]) + seed_words_[1]);
  DispatchFloating(type_, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using Compute = typename ComputeOf<T>::type;
    const double center = center_, scale = scale_;
    const Compute lowest = static_cast<Compute>(lowest_), highest = static_cast<Compute>(highest_);
    const auto finish = [=](double standard) {
      Compute value = static_cast<Compute>(center + scale * standard);
      value = value < lowest ? lowest : value;
      value = value > highest ? highest : value;
      return static_cast<T>(value);
    };
    // Loops over small arrays rather than one long loop: shorter chains of operations overlap
    // better, and each loop but the first vectorises.
    double t[kBlock], quantiles[kBlock];
    for (int64_t begin = 0; begin < dim_; begin += kBlock) {
      const int64_t count = std::min(kBlock, dim_ - begin);
      uint64_t tail = MakeUniforms(state, count, t);
      state += static_cast<uint64_t>(count) * kStep;
      const double* standard = quantiles;
      if (kind_ == InitializerKind::kUniform) {
        standard = t;
      } else if (kind_ == InitializerKind::kTruncatedNormal) {
        for (int64_t i = 0; i < count; ++i) {
          quantiles[i] = BodyQuantile(t[i] * kProbabilityWithinTwo);
        }
      } else {
        for (int64_t i = 0; i < count; ++i) quantiles[i] = BodyQuantile(t[i]);
      }
      std::byte* out = row + static_cast<size_t>(begin) * sizeof(T);
      const auto store = [out](int64_t i, T value) {
        std::memcpy(out + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
      };
      for (int64_t i = 0; i < count; ++i) store(i, finish(standard[i]));
      if (kind_ != InitializerKind::kNormal) continue;
      for (; tail != 0; tail &= tail - 1) {
        const int i = std::countr_zero(tail);
        store(i, finish(OuterQuantile(t[i])));
      }
    }
  });
}

}  // namespace tfra
