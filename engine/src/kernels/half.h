// float16 and bfloat16 as storage types: conversions to and from float, rounding to nearest even.
// They use integers, so that every compiler and CPU gives the same bits, and loops vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace tfra {

struct Bfloat16 {
  uint16_t bits;

  Bfloat16() = default;
  explicit Bfloat16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    const uint32_t nan = (u >> 16) | 0x40u;
    bits = static_cast<uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

struct Float16 {
  uint16_t bits;

  Float16() = default;
  explicit Float16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t magnitude = u & 0x7FFFFFFFu;
    // Subnormal halves: adding 0.5 leaves the rounded mantissa in the low bits of the sum.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - 0x3F000000u;
    // Normal halves: rebias the exponent by 112, round the 13 lost bits to nearest even.
    const uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t special = magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    bits = static_cast<uint16_t>(sign | (magnitude >= 0x47800000u ? special : finite));
  }
  explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7FFFu) << 13;
    const uint32_t normal = magnitude + 0x38000000u;
    const uint32_t special = magnitude + 0x70000000u;
    // Subnormal halves: (2^-14 + mantissa) - 2^-14 is exact.
    const float small = std::bit_cast<float>(magnitude + 0x38800000u) - 0x1p-14f;
    const uint32_t finite = magnitude < 0x00800000u ? std::bit_cast<uint32_t>(small) : normal;
    return std::bit_cast<float>(sign | (magnitude >= 0x0F800000u ? special : finite));
  }
};

}  // namespace tfra
