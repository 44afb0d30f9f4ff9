// The initial value of a row, as a pure function of (seed, key): the same bits on every platform,
// with any compiler, thread count or order of calls.
//
// Element j of a row comes from one 64-bit number, a mix of (seed, key, j), whose top 53 bits are a
// centered uniform t in (-1, 1). One row is then, element by element,
//
//   kUniform           (low + high) / 2 + t * (high - low) / 2
//   kNormal            mean + stddev * CenteredNormalQuantile(t)
//   kTruncatedNormal   mean + stddev * CenteredNormalQuantile(t * P(|N| < 2))
//
// in double, rounded to the stored type (once for float64 and float32, by way of float32 for
// float16 and bfloat16) and clamped to those of its values that the distribution allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/update_kernels.h"
#include "tfra/spec.h"
#include "tfra/status.h"
#include "tfra/types.h"

namespace tfra {

// The x with P(|N| < |x|) = |t| and the sign of t, for a standard normal N; to 2e-10 of its
// value. Only + - * / sqrt, which IEEE 754 defines to the bit: libm differs between platforms.
// REQUIRES: -1 < t < 1.
double CenteredNormalQuantile(double t);

// Makes rows of one table. Immutable after Create; any thread may call Fill.
class Initializer {
 public:
  // REQUIRES: dim elements fit in memory.
  static Status Create(const InitializerSpec& spec, ValueType type, int64_t dim, Initializer* out);

  // Writes dim elements of the value type to row, which needs no alignment. key_bits is the key
  // itself for int64 keys, HashBytes of it for strings. REQUIRES: the value type is not kString.
  void Fill(uint64_t key_bits, std::byte* row) const;

  // True if every key gets the same row, as it also does from a distribution of zero width.
  bool is_constant() const { return is_constant_; }
  // The bytes of that row. REQUIRES: is_constant() and the value type is not kString.
  const std::byte* constant_row() const { return constant_row_.data(); }

  // The dim strings of a missing row. REQUIRES: the value type is kString.
  const std::vector<std::string>& string_row() const { return string_row_; }

 private:
  Status InitConstant(const InitializerSpec& spec);
  Status InitRandom(const InitializerSpec& spec);

  ValueType type_ = ValueType::kFloat32;
  InitializerKind kind_ = InitializerKind::kZeros;
  int64_t dim_ = 0;
  bool is_constant_ = true;
  std::vector<std::byte> constant_row_;
  std::vector<std::string> string_row_;

  // Two bits of the seed, so that a row is no function of any simple sum of seed and key.
  uint64_t seed_bits_[2] = {0, 0};
  RandomRows random_;
  FillRandomKernel fill_random_ = nullptr;
};

}  // namespace tfra
