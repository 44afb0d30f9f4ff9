// Compares WaitingKeys with a std::map.
#include "admission/waiting_keys.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "check.h"

namespace tfra::test {
namespace {

using Name = std::pair<uint64_t, std::string>;  // The key_bits and the bytes.
using Seen = std::pair<uint32_t, uint32_t>;     // When and how often.

std::map<Name, Seen> ContentsOf(const WaitingKeys& keys) {
  std::map<Name, Seen> contents;
  keys.ForEach([&](uint64_t key_bits, std::string_view bytes, RowMetadata seen) {
    CHECK(contents.emplace(Name(key_bits, bytes), Seen(seen.time, seen.count)).second);
  });
  CHECK_EQ(contents.size(), keys.size());
  return contents;
}

// Compares both after each of many random operations on about `most` keys.
void CompareWithMap(bool strings, uint64_t most, uint64_t bits_mask, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](uint64_t n) { return random() % n; };
  WaitingKeys keys(strings);
  std::map<Name, Seen> expected;
  uint32_t now = 1;
  for (int step = 0; step < 6000; ++step) {
    // The key_bits of integers agree in their lower or upper bits. Many strings share few key_bits.
    const uint64_t number = pick(most);
    const uint64_t key_bits = strings ? number & bits_mask : number * bits_mask;
    const std::string bytes =
        strings ? std::string(number % 40, 'x') + std::to_string(number) : std::string();
    const Name name(key_bits, bytes);
    now += pick(3) == 0;
    switch (pick(20)) {
      case 0: {
        const uint32_t before = now - static_cast<uint32_t>(pick(300));
        keys.RemoveBefore(before);
        std::erase_if(expected, [&](const auto& key) { return key.second.first < before; });
        break;
      }
      case 1:
        if (pick(20) > 0) break;
        keys.Clear();
        expected.clear();
        break;
      case 2:
      case 3:
      case 4:
      case 5:
      case 6:
        keys.Remove(key_bits, bytes);
        expected.erase(name);
        break;
      default: {
        const uint32_t times = static_cast<uint32_t>(1 + pick(3));
        Seen& seen = expected[name];
        seen = {now, seen.second + times};
        CHECK_EQ(keys.Add(key_bits, bytes, now, times), seen.second);
      }
    }
    CHECK_EQ(keys.size(), expected.size());
    CHECK(keys.bytes() >= expected.size() * (sizeof(uint64_t) + sizeof(RowMetadata)));
    if (step % 10 == 0) CHECK(ContentsOf(keys) == expected);
  }
  CHECK(ContentsOf(keys) == expected);
}

TEST(WaitingIntKeysAgreeWithMap) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    for (uint64_t most : {10, 200, 3000}) {
      for (uint64_t factor : {uint64_t{1}, uint64_t{1} << 40, UINT64_MAX}) {
        CompareWithMap(false, most, factor, seed);
      }
    }
  }
}

TEST(WaitingStringKeysAgreeWithMap) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    for (uint64_t most : {10, 200, 3000}) {
      // One value of key_bits for all strings; eight values; a value for each string.
      for (uint64_t mask : {uint64_t{0}, uint64_t{7}, UINT64_MAX}) {
        CompareWithMap(true, most, mask, seed);
      }
    }
  }
}

TEST(WaitingKeysCountToTheirMaximum) {
  WaitingKeys keys(false);
  CHECK_EQ(keys.Add(5, "", 1, UINT32_MAX - 1), UINT32_MAX - 1);
  CHECK_EQ(keys.Add(5, "", 1, 1), UINT32_MAX);
  CHECK_EQ(keys.Add(5, "", 2, 1), UINT32_MAX);
  CHECK_EQ(keys.Add(5, "", 2, UINT32_MAX), UINT32_MAX);
  CHECK((ContentsOf(keys) == std::map<Name, Seen>{{{5, ""}, {2, UINT32_MAX}}}));
}

// Keys are added and removed again and again, and the memory must not grow.
TEST(WaitingKeysStaySmall) {
  for (bool strings : {false, true}) {
    WaitingKeys keys(strings);
    const auto add = [&](uint64_t begin, uint32_t now) {
      for (uint64_t i = begin; i < begin + 1000; ++i) {
        keys.Add(i, strings ? "a key " + std::to_string(i) : "", now, 1);
      }
    };
    add(0, 0);
    uint64_t most = keys.bytes();
    for (uint32_t round = 1; round < 200; ++round) {
      keys.RemoveBefore(round);
      CHECK_EQ(keys.size(), 0u);
      add(round * 1000, round);
      most = std::max(most, keys.bytes());
    }
    CHECK(most <= keys.bytes() + 1000);
    // After many keys have left, few keys need little memory.
    add(1000000, 200);
    for (uint32_t now : {200u, 201u}) {
      const uint64_t before = keys.bytes();
      keys.RemoveBefore(now);
      keys.Shrink();
      CHECK(keys.bytes() <= (now == 200 ? before : 0));
    }
    CHECK_EQ(keys.size(), 0u);
    for (uint64_t i = 0; i < 5000; ++i) {
      const std::string bytes = strings ? "a key " + std::to_string(i) : "";
      keys.Add(i, bytes, i < 4900 ? 1 : 2, static_cast<uint32_t>(i) + 1);
    }
    const uint64_t before = keys.bytes();
    keys.RemoveBefore(2);
    keys.Shrink();
    CHECK(keys.bytes() < before / 10);
    for (uint64_t i = 4900; i < 5000; ++i) {
      const std::string bytes = strings ? "a key " + std::to_string(i) : "";
      CHECK_EQ(keys.Add(i, bytes, 3, 1), static_cast<uint32_t>(i) + 2);
    }
    keys.Clear();
    CHECK_EQ(keys.size(), 0u);
    CHECK_EQ(keys.bytes(), 0u);
  }
}

}  // namespace
}  // namespace tfra::test
