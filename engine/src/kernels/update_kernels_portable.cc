// The kernels for any CPU of the target, and the choice of the instruction set, which must itself
// run on any CPU.
#define TFRA_KERNEL_NAMESPACE portable
#include <cstdlib>
#include <cstring>

#include "kernels/update_kernels.inc"

namespace tfra {
namespace {

Isa WidestIsa() {
#ifdef TFRA_X86_KERNELS
  __builtin_cpu_init();
  // The instruction sets that the build uses for these files; every CPU with AVX2 also has F16C.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  return avx512 ? Isa::kAvx512 : avx2 ? Isa::kAvx2 : Isa::kPortable;
#else
  return Isa::kPortable;
#endif
}

Isa ChooseIsa() {
  const Isa widest = WidestIsa();
  const char* wish = std::getenv("TFRA_ISA");
  if (wish == nullptr) return widest;
  Isa wanted = widest;
  if (std::strcmp(wish, "portable") == 0) wanted = Isa::kPortable;
  if (std::strcmp(wish, "avx2") == 0) wanted = Isa::kAvx2;
  return wanted < widest ? wanted : widest;
}

}  // namespace

const KernelTable* KernelsFor(Isa isa) {
  static const Isa widest = WidestIsa();
  if (isa > widest) return nullptr;
#ifdef TFRA_X86_KERNELS
  if (isa == Isa::kAvx512) return &avx512::kKernels;
  if (isa == Isa::kAvx2) return &avx2::kKernels;
#endif
  return &portable::kKernels;
}

double CenteredNormalQuantile(double t) { return portable::Quantile(t); }

Isa BestIsa() {
  static const Isa best = ChooseIsa();
  return best;
}

}  // namespace tfra
