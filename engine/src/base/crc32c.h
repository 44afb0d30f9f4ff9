// CRC32C, the checksum of RFC 3720 (iSCSI): polynomial 0x1EDC6F41, bits reflected, all ones before
// and after. Of "123456789" it is 0xE3069283.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tfra {

// Returns the checksum of some bytes; or, if `before` is that of the bytes before them, of all.
uint32_t Crc32c(const void* data, size_t bytes, uint32_t before = 0);

// The same, without the instruction that CPUs have for it.
uint32_t Crc32cPortable(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace tfra
