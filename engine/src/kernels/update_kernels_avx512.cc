#include "kernels/update_kernels.h"

#ifdef TFRA_X86_KERNELS
#define TFRA_KERNEL_NAMESPACE avx512
#include "kernels/update_kernels.inc"
#endif
