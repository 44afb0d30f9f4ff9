#include "base/hash.h"

#include <chrono>
#include <exception>
#include <random>

namespace tfra {

uint64_t RandomSeed() {
  uint64_t seed = 0;
  try {
    std::random_device device;
    for (int tries = 0; seed == 0 && tries < 4; ++tries) seed = uint64_t{device()} << 32 | device();
  } catch (const std::exception&) {
    // There is no source of random numbers. The clock and an address are hard to guess too.
  }
  if (seed != 0) return seed;
  const auto now = std::chrono::high_resolution_clock::now().time_since_epoch().count();
  return MixInt64(static_cast<uint64_t>(now) ^ reinterpret_cast<uintptr_t>(&seed)) | 1;
}

}  // namespace tfra
