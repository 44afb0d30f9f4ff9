// The checksum, against its specification and bit by bit.
#include "base/crc32c.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"

namespace tfra::test {
namespace {

// As the specification says it, one bit after the other.
uint32_t BitByBit(const std::vector<uint8_t>& data, size_t from, size_t bytes) {
  uint32_t remainder = 0xFFFFFFFF;
  for (size_t i = from; i < from + bytes; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      const uint32_t next = (data[i] >> bit & 1) ^ (remainder & 1);
      remainder = remainder >> 1 ^ (next ? 0x82F63B78 : 0);
    }
  }
  return ~remainder;
}

}  // namespace

TEST(Crc32cOfTheSpecification) {
  std::vector<uint8_t> up(32), down(32);
  for (size_t i = 0; i < 32; ++i) {
    up[i] = static_cast<uint8_t>(i);
    down[i] = static_cast<uint8_t>(31 - i);
  }
  const struct {
    std::string bytes;
    uint32_t sum;
  } known[] = {
      {"", 0},
      {"123456789", 0xE3069283},
      {std::string(32, '\0'), 0x8A9136AA},
      {std::string(32, '\xff'), 0x62A8AB43},
      {std::string(up.begin(), up.end()), 0x46DD794E},
      {std::string(down.begin(), down.end()), 0x113FDB5C},
  };
  for (const auto& [bytes, sum] : known) {
    CHECK_EQ(Crc32c(bytes.data(), bytes.size()), sum);
    CHECK_EQ(Crc32cPortable(bytes.data(), bytes.size()), sum);
  }
}

TEST(Crc32cOfAnyLengthFromAnyAddress) {
  std::mt19937_64 random(7);
  std::vector<uint8_t> data(20'000);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  for (int i = 0; i < 400; ++i) {
    const size_t bytes = i < 100 ? static_cast<size_t>(i) : random() % 13'000;
    const size_t from = random() % (data.size() - bytes);
    const uint32_t sum = BitByBit(data, from, bytes);
    CHECK_EQ(Crc32c(&data[from], bytes), sum);
    CHECK_EQ(Crc32cPortable(&data[from], bytes), sum);
    // In two parts.
    const size_t first = bytes == 0 ? 0 : random() % bytes;
    const uint32_t before = Crc32c(&data[from], first);
    CHECK_EQ(Crc32c(&data[from + first], bytes - first, before), sum);
    CHECK_EQ(Crc32cPortable(&data[from + first], bytes - first, before), sum);
  }
}

TEST(Crc32cSeesEveryBitThatFlips) {
  std::vector<uint8_t> data(5000, 0x5A);
  const uint32_t sum = Crc32c(data.data(), data.size());
  for (size_t bit = 0; bit < 8 * data.size(); bit += 7) {
    data[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    CHECK(Crc32c(data.data(), data.size()) != sum);
    data[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
  CHECK_EQ(Crc32c(data.data(), data.size()), sum);
}

}  // namespace tfra::test
