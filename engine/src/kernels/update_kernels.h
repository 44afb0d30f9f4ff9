// The arithmetic of the update rules, of sums of rows and of random rows, compiled once for each
// instruction set. All instruction sets give the same bits: they have the same source, without
// fused multiply-add and reassociation, and sums over a row are in a fixed order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tfra/spec.h"
#include "tfra/types.h"

#if defined(__x86_64__)
#define TFRA_X86_KERNELS 1
#endif

namespace tfra {

// What an update reads besides the row: everything that is the same for all rows of a call,
// computed in double and rounded to T once.
template <typename T>
struct KernelConstants {
  T learning_rate;
  T weight_decay;
  T momentum;
  T beta_1, one_minus_beta_1;
  T beta_2, one_minus_beta_2;
  T rho, one_minus_rho;
  T epsilon;
  // Adam and Adamax: the learning rate times the bias corrections of this step.
  T step_size;
  // Nadam: the step is (nadam_m * m + nadam_g * g) / (sqrt(nadam_v * v) + epsilon).
  T nadam_m, nadam_g, nadam_v;
  // Ftrl.
  T inverse_learning_rate, accumulator_power, l1, two_l2, two_l2_shrinkage;
  T clipnorm, clipvalue;
};

struct RuleConstants {
  KernelConstants<float> narrow;
  KernelConstants<double> wide;
};

// A rule together with the values of its switches. Each variant has its own kernel.
enum class KernelVariant : uint8_t {
  kSgd,
  kSgdMomentum,
  kSgdNesterov,
  kAdagrad,
  kRowwiseAdagrad,
  kAdam,
  kAdamAmsgrad,
  kAdamax,
  kNadam,
  kRmsprop,
  kRmspropMomentum,
  kRmspropCentered,
  kRmspropCenteredMomentum,
  kAdadelta,
  kFtrlSqrt,  // learning_rate_power is -0.5.
  kFtrlPower,
  kLion,
};
inline constexpr size_t kKernelVariants = static_cast<size_t>(KernelVariant::kLion) + 1;

// Updates one row in place; the types of the pointers are those of RowUpdater::Apply. The ranges do
// not overlap and are aligned to their elements only.
using UpdateKernel = void (*)(const RuleConstants& constants, std::byte* value, std::byte* slots,
                              const std::byte* gradient, size_t dim);
// Writes the clipped gradient to `clipped`.
using ClipKernel = void (*)(const RuleConstants& constants, const std::byte* gradient,
                            std::byte* clipped, size_t dim);

// sum += rows, each multiplied by its scale. rows: (n, dim) of the stored type; scales: (n) of the
// compute type, or null if all are 1; sum: (dim) of the compute type. Aligned to their elements
// only.
using AddRowsKernel = void (*)(const std::byte* rows, size_t n, const std::byte* scales,
                               std::byte* sum, size_t dim);
// norms: (n) of the compute type, the L2 norm of each row.
using RowNormsKernel = void (*)(const std::byte* rows, size_t n, std::byte* norms, size_t dim);

// The distribution of the random initial rows of a table: see initializer.h.
struct RandomRows {
  InitializerKind kind = InitializerKind::kNormal;
  double center = 0.0;
  double scale = 0.0;
  // The bounds of an element; both are values of the stored type.
  double lowest = 0.0;
  double highest = 0.0;
};
// The generator's counter advances by this from one element to the next.
inline constexpr uint64_t kRandomStep = 0xA0761D6478BD642Fu;

// Fills a row with random elements. state: where the generator's counter starts, a mix of the seed
// and the key (Initializer::Fill). row: (dim) of the stored type, with any alignment.
using FillRandomKernel = void (*)(const RandomRows& rows, uint64_t state, std::byte* row,
                                  size_t dim);

// The kernels of one instruction set for one value type.
struct TypeKernels {
  UpdateKernel update[kKernelVariants];
  ClipKernel clip_by_value;
  ClipKernel clip_by_norm;
  AddRowsKernel add_rows;
  RowNormsKernel row_norms;
  FillRandomKernel fill_random;
};

struct KernelTable {
  TypeKernels float32, float16, bfloat16, float64;

  // REQUIRES: IsFloating(type).
  const TypeKernels& For(ValueType type) const {
    switch (type) {
      case ValueType::kFloat16:
        return float16;
      case ValueType::kBfloat16:
        return bfloat16;
      case ValueType::kFloat64:
        return float64;
      default:
        return float32;
    }
  }
};

enum class Isa : uint8_t { kPortable, kAvx2, kAvx512 };

// Null if this CPU, or this build, does not have the instruction set.
const KernelTable* KernelsFor(Isa isa);

// The widest instruction set this CPU has, decided once. The environment variable TFRA_ISA
// (portable, avx2, avx512) lowers it, never raises it; other values are ignored.
Isa BestIsa();

namespace portable {
extern const KernelTable kKernels;
}
#ifdef TFRA_X86_KERNELS
namespace avx2 {
extern const KernelTable kKernels;
}
namespace avx512 {
extern const KernelTable kKernels;
}
#endif

}  // namespace tfra
