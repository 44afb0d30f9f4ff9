// The initial value of a row is a pure function of (seed, key): it has the same bits on every
// platform, for any compiler, number of threads and order of calls.
//
// Element j of a row is made from one 64-bit number, which is a mix of (seed, key, j). Its top 53
// bits give a number t that is uniform in (-1, 1). The element is then
//
//   kUniform           (low + high) / 2 + t * (high - low) / 2
//   kNormal            mean + stddev * CenteredNormalQuantile(t)
//   kTruncatedNormal   mean + stddev * CenteredNormalQuantile(t * P(|N| < 2))
//
// computed in double, rounded to the stored type (float16 and bfloat16: first to float32), and
// clamped to the values of that type that the distribution allows.
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

// The x with P(|N| < |x|) = |t| and the sign of t, for a standard normal N; its relative error is
// 2e-10. Uses only + - * / sqrt, whose bits IEEE 754 defines: libm differs between platforms.
// REQUIRES: -1 < t < 1.
double CenteredNormalQuantile(double t);

// Makes rows of one table. Immutable after Create; any thread may call Fill.
class Initializer {
 public:
  // REQUIRES: dim elements fit in memory.
  static Status Create(const InitializerSpec& spec, ValueType type, int64_t dim, Initializer* out);

  // Writes dim elements of the value type to row, which needs no alignment. REQUIRES: the value
  // type is not kString.
  void Fill(uint64_t key_bits, std::byte* row) const;

  // True if every key gets the same row, for example from a distribution with only one value.
  bool is_constant() const { return is_constant_; }
  // The bytes of that row. REQUIRES: is_constant() and the value type is not kString.
  const std::byte* constant_row() const { return constant_row_.data(); }

  // The dim strings of the initial row. REQUIRES: the value type is kString.
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

  // Two numbers made of the seed. With only one, a row would depend only on its xor with the key.
  uint64_t seed_bits_[2] = {0, 0};
  RandomRows random_;
  FillRandomKernel fill_random_ = nullptr;
};

}  // namespace tfra
