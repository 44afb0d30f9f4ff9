// CRC32C, the checksum of RFC 3720 (iSCSI): polynomial 0x1EDC6F41, bits reflected, all ones before
// and after. Of "123456789" it is 0xE3069283. `Crc32c` is declared in tfra/snapshot.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tfra/snapshot.h"

namespace tfra {

// The same, without the instruction that CPUs have for it.
uint32_t Crc32cPortable(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace tfra
