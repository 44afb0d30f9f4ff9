// The only switch over value types: calls `visit` with a null pointer to the C++ type that stores
// the value type.
#pragma once

#include <cstdint>

#include "kernels/half.h"
#include "tfra/types.h"

namespace tfra {

// The type in which a stored type is computed.
template <typename Stored>
struct ComputeOf {
  using type = float;
};
template <>
struct ComputeOf<double> {
  using type = double;
};

template <typename Visitor>
decltype(auto) DispatchFloating(ValueType type, Visitor&& visit) {
  switch (type) {
    case ValueType::kFloat16:
      return visit(static_cast<Float16*>(nullptr));
    case ValueType::kBfloat16:
      return visit(static_cast<Bfloat16*>(nullptr));
    case ValueType::kFloat64:
      return visit(static_cast<double*>(nullptr));
    default:
      return visit(static_cast<float*>(nullptr));
  }
}

// REQUIRES: type is not kString.
template <typename Visitor>
decltype(auto) DispatchNumeric(ValueType type, Visitor&& visit) {
  switch (type) {
    case ValueType::kInt8:
      return visit(static_cast<int8_t*>(nullptr));
    case ValueType::kInt32:
      return visit(static_cast<int32_t*>(nullptr));
    case ValueType::kInt64:
      return visit(static_cast<int64_t*>(nullptr));
    case ValueType::kBool:
      return visit(static_cast<bool*>(nullptr));
    default:
      return DispatchFloating(type, visit);
  }
}

}  // namespace tfra
