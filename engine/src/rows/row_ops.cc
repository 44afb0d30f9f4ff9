#include "rows/row_ops.h"

#include <type_traits>

namespace tfra {
namespace {

template <typename Stored>
void AddRow(std::byte* value, const std::byte* delta, size_t dim) {
  auto* to = reinterpret_cast<Stored*>(value);
  const auto* from = reinterpret_cast<const Stored*>(delta);
  for (size_t j = 0; j < dim; ++j) {
    if constexpr (std::is_same_v<Stored, bool>) {
      to[j] = to[j] || from[j];
    } else if constexpr (std::is_integral_v<Stored>) {
      using Unsigned = std::make_unsigned_t<Stored>;  // Wraps around, as NumPy does.
      to[j] = static_cast<Stored>(static_cast<Unsigned>(to[j]) + static_cast<Unsigned>(from[j]));
    } else {
      using Compute = typename ComputeOf<Stored>::type;
      to[j] = Stored(static_cast<Compute>(to[j]) + static_cast<Compute>(from[j]));
    }
  }
}

template <typename Gradient, typename Compute>
void SumRow(std::byte* sum, const std::byte* gradient, size_t dim, bool add) {
  auto* to = reinterpret_cast<Compute*>(sum);
  const auto* from = reinterpret_cast<const Gradient*>(gradient);
  if (add) {
    for (size_t j = 0; j < dim; ++j) to[j] += static_cast<Compute>(from[j]);
  } else {
    for (size_t j = 0; j < dim; ++j) to[j] = static_cast<Compute>(from[j]);
  }
}

template <typename Stored>
double SquaredNormOf(const std::byte* value, size_t dim) {
  const auto* elements = reinterpret_cast<const Stored*>(value);
  double sum = 0.0;
  for (size_t j = 0; j < dim; ++j) {
    const double element =
        static_cast<double>(static_cast<typename ComputeOf<Stored>::type>(elements[j]));
    sum += element * element;
  }
  return sum;
}

}  // namespace

SquaredNorm SquaredNormFor(ValueType type) {
  return DispatchFloating(
      type, []<typename Stored>(Stored*) -> SquaredNorm { return SquaredNormOf<Stored>; });
}

AccumulateOp::Add AddFor(ValueType type) {
  return DispatchNumeric(
      type, []<typename Stored>(Stored*) -> AccumulateOp::Add { return AddRow<Stored>; });
}

GradientOp::Sum SumFor(ValueType gradient_type, ValueType value_type) {
  if (value_type == ValueType::kFloat64) return SumRow<double, double>;
  return DispatchFloating(gradient_type, []<typename Gradient>(Gradient*) -> GradientOp::Sum {
    if constexpr (std::is_same_v<Gradient, double>) {
      return nullptr;  // Such values take no float64 gradients.
    } else {
      return SumRow<Gradient, float>;
    }
  });
}

}  // namespace tfra
