#include "base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define TFRA_CRC32C_TARGET [[gnu::target("sse4.2")]]
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define TFRA_CRC32C_TARGET
#endif

namespace tfra {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kPolynomial = 0x82F63B78;  // 0x1EDC6F41 with its bits reflected.

using Table = std::array<uint32_t, 256>;

// tables[k][b]: what the byte b does to the remainder, with k bytes after it.
constexpr std::array<Table, 8> MakeTables() {
  std::array<Table, 8> tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t remainder = b;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1) ^ (remainder & 1 ? kPolynomial : 0);
    }
    tables[0][b] = remainder;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (uint32_t b = 0; b < 256; ++b) {
      const uint32_t before = tables[k - 1][b];
      tables[k][b] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kTables = MakeTables();

uint64_t Word(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// The next three take and return the remainder, which is the checksum before its bits are flipped.

uint32_t AddByte(uint32_t remainder, std::byte byte) {
  return (remainder >> 8) ^ kTables[0][(remainder ^ static_cast<uint32_t>(byte)) & 0xff];
}

uint32_t AddPortable(uint32_t remainder, const std::byte* at, size_t bytes) {
  for (; bytes >= 8; at += 8, bytes -= 8) {
    const uint64_t word = Word(at) ^ remainder;
    remainder = 0;
    for (size_t k = 0; k < 8; ++k) remainder ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; bytes > 0; ++at, --bytes) remainder = AddByte(remainder, *at);
  return remainder;
}

#ifdef TFRA_CRC32C_TARGET

// The instruction takes three cycles, but one can start in each: three parts of the data are summed
// at a time, and then joined.
constexpr size_t kPart = 1344;  // Three of them are about a page.
static_assert(kPart % 8 == 0);

// What kPart zero bytes make of a remainder, for each of its four bytes.
class Shift {
 public:
  Shift() {
    for (uint32_t bit = 0; bit < 32; ++bit) {
      uint32_t remainder = uint32_t{1} << bit;
      for (size_t i = 0; i < kPart; ++i) remainder = AddByte(remainder, std::byte{0});
      Table& table = tables_[bit / 8];
      const uint32_t own = uint32_t{1} << bit % 8;
      for (uint32_t b = 0; b < 256; ++b) {
        if (b & own) table[b] ^= remainder;
      }
    }
  }
  uint32_t operator()(uint32_t remainder) const {
    return tables_[0][remainder & 0xff] ^ tables_[1][remainder >> 8 & 0xff] ^
           tables_[2][remainder >> 16 & 0xff] ^ tables_[3][remainder >> 24];
  }

 private:
  std::array<Table, 4> tables_{};
};

TFRA_CRC32C_TARGET inline uint32_t AddWord(uint32_t remainder, uint64_t word) {
#if defined(__x86_64__)
  return static_cast<uint32_t>(_mm_crc32_u64(remainder, word));
#else
  return __crc32cd(remainder, word);
#endif
}

TFRA_CRC32C_TARGET uint32_t AddByInstruction(uint32_t remainder, const std::byte* at,
                                             size_t bytes) {
  static const Shift shift;
  for (; bytes >= 3 * kPart; at += 3 * kPart, bytes -= 3 * kPart) {
    uint32_t second = 0, third = 0;
    for (size_t i = 0; i < kPart; i += 8) {
      remainder = AddWord(remainder, Word(at + i));
      second = AddWord(second, Word(at + kPart + i));
      third = AddWord(third, Word(at + 2 * kPart + i));
    }
    remainder = shift(shift(remainder) ^ second) ^ third;
  }
  for (; bytes >= 8; at += 8, bytes -= 8) remainder = AddWord(remainder, Word(at));
  for (; bytes > 0; ++at, --bytes) remainder = AddByte(remainder, *at);
  return remainder;
}

bool HasInstruction() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("sse4.2");
#else
  return true;
#endif
}

#endif  // TFRA_CRC32C_TARGET

}  // namespace

uint32_t Crc32cPortable(const void* data, size_t bytes, uint32_t before) {
  return ~AddPortable(~before, static_cast<const std::byte*>(data), bytes);
}

uint32_t Crc32c(const void* data, size_t bytes, uint32_t before) {
#ifdef TFRA_CRC32C_TARGET
  static const bool has_instruction = HasInstruction();
  if (has_instruction) {
    return ~AddByInstruction(~before, static_cast<const std::byte*>(data), bytes);
  }
#endif
  return Crc32cPortable(data, bytes, before);
}

}  // namespace tfra
