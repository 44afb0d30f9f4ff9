// Key and value types, and how many bytes a value takes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tfra {

enum class KeyType : uint8_t {
  kInt64,
  kString,
  kInt32,  // Passed and returned as int64; adapters convert.
};

enum class ValueType : uint8_t {
  kFloat32,
  kFloat16,
  kBfloat16,
  kFloat64,
  kInt8,
  kInt32,
  kInt64,
  kBool,
  kString,
};

constexpr size_t SizeOf(ValueType type) {
  switch (type) {
    case ValueType::kFloat32:
    case ValueType::kInt32:
      return 4;
    case ValueType::kFloat16:
    case ValueType::kBfloat16:
      return 2;
    case ValueType::kInt8:
    case ValueType::kBool:
      return 1;
    case ValueType::kFloat64:
    case ValueType::kInt64:
    case ValueType::kString:  // A pointer to the bytes, which live outside the row.
      return 8;
  }
  return 0;
}

constexpr const char* NameOf(ValueType type) {
  switch (type) {
    case ValueType::kFloat32:
      return "float32";
    case ValueType::kFloat16:
      return "float16";
    case ValueType::kBfloat16:
      return "bfloat16";
    case ValueType::kFloat64:
      return "float64";
    case ValueType::kInt8:
      return "int8";
    case ValueType::kInt32:
      return "int32";
    case ValueType::kInt64:
      return "int64";
    case ValueType::kBool:
      return "bool";
    case ValueType::kString:
      return "string";
  }
  return "unknown";
}

constexpr bool IsFloating(ValueType type) {
  return type == ValueType::kFloat32 || type == ValueType::kFloat16 ||
         type == ValueType::kBfloat16 || type == ValueType::kFloat64;
}

// Gradients, optimizer slots and all arithmetic on a row use this type: float64 for float64
// values, float32 for every other floating type, so that 16-bit values train at full precision.
constexpr ValueType ComputeType(ValueType type) {
  return type == ValueType::kFloat64 ? ValueType::kFloat64 : ValueType::kFloat32;
}

}  // namespace tfra
