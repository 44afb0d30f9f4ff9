#include "kernels/initializer.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/hash.h"
#include "kernels/dispatch.h"

namespace tfra {
namespace {

static_assert(FLT_EVAL_METHOD == 0, "initial rows need arithmetic in the type it is written in");
static_assert(std::numeric_limits<double>::is_iec559);

constexpr double kLargest = std::numeric_limits<double>::max();

template <typename T>
T RoundTo(double value) {
  return static_cast<T>(static_cast<typename ComputeOf<T>::type>(value));
}

template <typename T>
double Widen(T value) {
  return static_cast<typename ComputeOf<T>::type>(value);
}

// The next larger or smaller value of type T.
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

std::string Show(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

}  // namespace

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
    // Also false for NaN. A bound that is infinite in type T would make infinite rows.
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
    random_.scale = uniform ? spec.high * 0.5 - spec.low * 0.5 : spec.stddev;
    random_.center = uniform ? spec.low + random_.scale : spec.mean;
    if (uniform) {
      random_.lowest = SmallestFrom<T>(spec.low);
      random_.highest = LargestUpTo<T>(spec.high);
      if (random_.highest == spec.high) random_.highest = Next<T>(random_.highest, false);
    } else {
      const double reach = kind_ == InitializerKind::kNormal ? kLargest : 2.0 * spec.stddev;
      const double greatest = LargestUpTo<T>(kLargest);
      random_.lowest = SmallestFrom<T>(std::max(-greatest, spec.mean - reach));
      random_.highest = LargestUpTo<T>(std::min(greatest, spec.mean + reach));
    }
    // If no value of the type is in the range, every element is the value nearest to the center.
    if (random_.scale == 0.0 || random_.lowest > random_.highest)
      random_.lowest = random_.highest = Widen(RoundTo<T>(random_.center));
    is_constant_ = random_.lowest == random_.highest;
    if (is_constant_) {
      const T value = RoundTo<T>(random_.lowest);
      constant_row_.resize(static_cast<size_t>(dim_) * sizeof(T));
      for (size_t i = 0; i < constant_row_.size(); i += sizeof(T)) {
        std::memcpy(constant_row_.data() + i, &value, sizeof(T));
      }
    }
    random_.kind = kind_;
    fill_random_ = KernelsFor(BestIsa())->For(type_).fill_random;
    seed_bits_[0] = MixInt64(spec.seed + kRandomStep);
    seed_bits_[1] = MixInt64(seed_bits_[0] + kRandomStep);
    return Status::Ok();
  });
}

void Initializer::Fill(uint64_t key_bits, std::byte* row) const {
  if (is_constant_) {
    std::memcpy(row, constant_row_.data(), constant_row_.size());
    return;
  }
  const uint64_t state = MixInt64(MixInt64(key_bits ^ seed_bits_[0]) + seed_bits_[1]);
  fill_random_(random_, state, row, static_cast<size_t>(dim_));
}

}  // namespace tfra
