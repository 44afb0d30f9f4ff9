#include "base/hash.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "check.h"

namespace tfra {
namespace {

uint64_t HashString(const std::string& text) { return HashBytes(text.data(), text.size()); }

// The chi-square of 2^16 hashes over 2^12 buckets, in standard deviations above its mean.
template <typename HashOfIndex>
double Crowding(HashOfIndex hash_of_index, int shift) {
  constexpr int kKeys = 1 << 16, kBuckets = 1 << 12;
  std::vector<int> counts(kBuckets);
  for (uint64_t i = 0; i < kKeys; ++i) ++counts[(hash_of_index(i) >> shift) % kBuckets];
  const double expected = static_cast<double>(kKeys) / kBuckets;
  double chi_square = 0.0;
  for (const int count : counts) chi_square += (count - expected) * (count - expected) / expected;
  return (chi_square - (kBuckets - 1)) / std::sqrt(2.0 * (kBuckets - 1));
}

// The top bits select stripe and bucket, but other bits must be spread too.
template <typename HashOfIndex>
void CheckSpread(HashOfIndex hash_of_index) {
  for (const int shift : {52, 26, 0}) CHECK(Crowding(hash_of_index, shift) < 5.0);
}

// The smallest and the largest fraction of inputs for which flipping an input bit flips an output
// bit.
template <typename Hash>
std::array<double, 2> Avalanche(int bits, Hash hash) {
  constexpr int kSamples = 2000;
  std::array<double, 2> range = {1.0, 0.0};
  for (int bit = 0; bit < bits; ++bit) {
    std::array<int, 64> flips{};
    for (uint64_t sample = 0; sample < kSamples; ++sample) {
      const uint64_t changed = hash(sample, -1) ^ hash(sample, bit);
      for (int out = 0; out < 64; ++out) flips[out] += (changed >> out) & 1;
    }
    for (const int count : flips) {
      range[0] = std::min(range[0], static_cast<double>(count) / kSamples);
      range[1] = std::max(range[1], static_cast<double>(count) / kSamples);
    }
  }
  return range;
}

TEST(MixInt64Golden) {
  CHECK_EQ(MixInt64(0), 0u);
  CHECK_EQ(MixInt64(1), 0x3C02AA47758292BDu);
  CHECK_EQ(MixInt64(2), 0x946F086BBB956C5Du);
  CHECK_EQ(MixInt64(0x123456789ABCDEF0u), 0x3B8823C5EAC7F534u);
  CHECK_EQ(MixInt64(~uint64_t{0}), 0x78A9666A39C1A1B5u);
}

TEST(MixInt64IsABijection) {
  const auto unshift = [](uint64_t x, int shift) {
    uint64_t y = x;
    for (int i = shift; i < 64; i += shift) y = x ^ (y >> shift);
    return y;
  };
  const auto inverse = [](uint64_t odd) {
    uint64_t y = odd;
    for (int i = 0; i < 6; ++i) y *= 2 - odd * y;
    return y;
  };
  for (uint64_t i = 0; i < 1000; ++i) {
    const uint64_t key = i * 0x9E3779B97F4A7C15u;
    uint64_t x = unshift(MixInt64(key), 27) * inverse(0x1C69B3F74AC4AE35u);
    x = unshift(x, 33) * inverse(0x3C79AC492BA7B653u);
    CHECK_EQ(unshift(x, 27), key);
  }
}

TEST(MixInt64SpreadsPatterns) {
  for (int shift = 0; shift <= 48; ++shift) {
    CheckSpread([=](uint64_t i) { return MixInt64(i << shift); });
  }
  CheckSpread([](uint64_t i) { return MixInt64(~i); });
  for (const uint64_t step : {3u, 10u, 1000u, 4097u, 65535u, 1000003u}) {
    CheckSpread([=](uint64_t i) { return MixInt64(i * step); });
  }
  // Keys of several features in one table: the number of the feature above an id.
  CheckSpread([](uint64_t i) { return MixInt64((i % 256) << 48 | i / 256); });
  CheckSpread([](uint64_t i) { return MixInt64((i % 256) << 32 | i / 256); });
}

TEST(MixInt64Avalanche) {
  const auto range = Avalanche(64, [](uint64_t sample, int bit) {
    return MixInt64(sample ^ (bit < 0 ? 0 : uint64_t{1} << bit));
  });
  CHECK(range[0] > 0.4);
  CHECK(range[1] < 0.6);
}

TEST(FoldMultiplyPortableAgrees) {
  const uint64_t edges[] = {0, 1, 0xFFFFFFFFu, 0x100000000u, ~uint64_t{0}, 0x8000000000000001u};
  for (const uint64_t a : edges) {
    for (const uint64_t b : edges) CHECK_EQ(FoldMultiplyPortable(a, b), FoldMultiply(a, b));
  }
  for (uint64_t i = 1; i < 1000; ++i) {
    const uint64_t a = MixInt64(i), b = MixInt64(~i);
    CHECK_EQ(FoldMultiplyPortable(a, b), FoldMultiply(a, b));
  }
}

// The test vectors of the reference implementation: key 00 01 .. 0F, messages 00 01 02 ...
TEST(SipHashReferenceVectors) {
  std::string text;
  for (int i = 0; i < 64; ++i) text += static_cast<char>(i);
  const auto hash = [&](size_t size) {
    return SipHash(0x0706050403020100u, 0x0F0E0D0C0B0A0908u, text.data(), size);
  };
  CHECK_EQ(hash(0), 0x726FDB47DD0E0E31u);
  CHECK_EQ(hash(1), 0x74F839C593DC67FDu);
  CHECK_EQ(hash(7), 0xAB0200F58B01D137u);
  CHECK_EQ(hash(8), 0x93F5F5799A932462u);
  CHECK_EQ(hash(15), 0xA129CA6149BE45E5u);
  CHECK_EQ(hash(63), 0x958A324CEB064572u);
}

TEST(HashBytesGolden) {
  CHECK_EQ(HashString(""), 0x75C31DAC90B83099u);
  CHECK_EQ(HashString("a"), 0xBEDDF34C7D142052u);
  CHECK_EQ(HashString("\xFF\x80"), 0x41F8395C45275156u);
  CHECK_EQ(HashString("abc"), 0x6E9109907B891898u);
  CHECK_EQ(HashString("user"), 0x0FD63A063817DAFBu);
  CHECK_EQ(HashString("user_12"), 0x3E7C0174D8954256u);
  CHECK_EQ(HashString("user_123"), 0xDA09945BA3DD3A28u);
  CHECK_EQ(HashString("user_1234567890x"), 0x6AF5A38745310C16u);
  CHECK_EQ(HashString("user_1234567890xy"), 0x8EE8B9E38A58602Fu);
  CHECK_EQ(HashString(std::string(64, 'z')), 0x1D87FE4815382190u);
  CHECK_EQ(HashString(std::string(65, 'z')), 0x04A12A341F4065D1u);
  CHECK_EQ(HashString(std::string(1000, 'z')), 0x4745333E13B1A201u);
  CHECK_EQ(HashString(std::string(1 << 20, 'z')), 0x517120BDAF5FEC6Fu);
}

TEST(HashBytesTellsLengthsApart) {
  std::unordered_set<uint64_t> seen;
  for (size_t size = 0; size <= 1000; ++size) {
    for (const char byte : {'\0', 'a', '\xFF'}) {
      if (size > 0 || byte == 'a') seen.insert(HashString(std::string(size, byte)));
    }
  }
  CHECK_EQ(seen.size(), 3001u);
}

TEST(HashBytesReadsEveryByteAndNoMore) {
  for (const size_t size : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 127, 130, 200}) {
    std::string text(size, 'q');
    std::unordered_set<uint64_t> seen = {HashString(text)};
    for (size_t i = 0; i < size; ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        text[i] = static_cast<char>(text[i] ^ (1 << bit));
        seen.insert(HashString(text));
        text[i] = static_cast<char>(text[i] ^ (1 << bit));
      }
    }
    CHECK_EQ(seen.size(), 8 * size + 1);
    const std::string inside = "L" + text + "R";  // Unaligned, and between other bytes.
    CHECK_EQ(HashBytes(inside.data() + 1, size), HashString(text));
  }
}

TEST(HashBytesSpreadsPatterns) {
  for (const char* prefix : {"", "user_", "a/long/prefix/of/some/feature/name="}) {
    CheckSpread([=](uint64_t i) { return HashString(prefix + std::to_string(i)); });
    CheckSpread([=](uint64_t i) { return HashString(prefix + std::to_string(i) + "/suffix"); });
  }
  CheckSpread(
      [](uint64_t i) { return HashString({static_cast<char>(i), static_cast<char>(i >> 8)}); });
  for (const size_t size : {4, 8, 12, 16, 24, 100}) {
    for (size_t place = 0; place + 4 <= size; ++place) {
      CheckSpread([=](uint64_t i) {
        std::string text(size, '\0');
        for (size_t k = 0; k < 3; ++k) text[place + k] = static_cast<char>(i >> (8 * k));
        return HashString(text);
      });
    }
  }
}

TEST(HashBytesAvalanche) {
  for (const int size : {2, 3, 4, 6, 8, 13, 16, 20, 40, 80}) {
    const auto range = Avalanche(8 * size, [=](uint64_t sample, int bit) {
      std::string text(static_cast<size_t>(size), '\0');
      for (uint64_t i = 0; i < text.size(); ++i) {
        text[i] = static_cast<char>(MixInt64(sample + (i << 32)));
      }
      if (bit >= 0) text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
      return HashString(text);
    });
    CHECK(range[0] > 0.35);
    CHECK(range[1] < 0.65);
  }
}

}  // namespace
}  // namespace tfra
