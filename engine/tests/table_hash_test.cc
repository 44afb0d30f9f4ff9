// Unusual keys, and keys that a weak hash, or a weak use of it, would put into few places.
#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "hash.h"
#include "shard.h"
#include "table_helpers.h"

namespace tfra::test {
namespace {

// x with MixInt64(x) == hash: undoes the steps of hash.h backwards.
uint64_t UnmixInt64(uint64_t hash) {
  const auto inverse = [](uint64_t odd) {
    uint64_t x = odd;  // Newton's iteration doubles the correct bits; odd * odd is 1 modulo 8.
    for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
    return x;
  };
  const auto unshift = [](uint64_t x, int shift) {
    uint64_t y = x;
    for (int i = 0; i < 3; ++i) y = x ^ (y >> shift);
    return y;
  };
  uint64_t x = unshift(hash, 27);
  x *= inverse(0x1C69B3F74AC4AE35u);
  x = unshift(x, 33);
  x *= inverse(0x3C79AC492BA7B653u);
  return unshift(x, 27);
}

std::vector<int64_t> KeysOf(size_t n, const std::function<uint64_t(uint64_t)>& key) {
  std::vector<int64_t> keys(n);
  for (size_t i = 0; i < n; ++i) keys[i] = static_cast<int64_t>(key(i));
  return keys;
}

// Inserts, finds, misses, exports and removes.
void RoundTrip(const std::vector<int64_t>& keys, const std::vector<int64_t>& absent) {
  std::unique_ptr<Table> table = MakeTable(OptionsOf(KeyType::kInt64, ValueType::kInt64, 1));
  const KeyBatch batch(keys.data(), keys.size());
  CHECK_OK(table->Assign(batch, keys.data()));
  CHECK_EQ(table->size(), keys.size());
  std::vector<int64_t> found(keys.size());
  Flags exists(std::max(keys.size(), absent.size()));
  CHECK_OK(table->Lookup(batch, {}, found.data(), exists.data()));
  CHECK(found == keys);
  CHECK_OK(table->Contains(KeyBatch(absent.data(), absent.size()), exists.data()));
  CHECK_EQ(std::count(exists.data(), exists.data() + absent.size(), true), 0);
  ExportBatch exported;
  CHECK_OK(table->ExportAll(&exported));
  std::vector<int64_t> expected = keys;
  std::sort(expected.begin(), expected.end());
  std::sort(exported.int_keys.begin(), exported.int_keys.end());
  CHECK(exported.int_keys == expected);
  const size_t half = keys.size() / 2;
  size_t removed = 0;
  CHECK_OK(table->Remove(KeyBatch(keys.data(), half), &removed));
  CHECK_EQ(removed, half);
  CHECK_OK(table->Contains(batch, exists.data()));
  for (size_t i = 0; i < keys.size(); ++i) CHECK_EQ(exists[i], i >= half);
}

// How many keys find their home full, in arrays that are 65 % full when all keys are there.
size_t Strays(const std::vector<int64_t>& keys) {
  const BucketArray array{keys.size() * 100 / (65 * kBucketEntries * kShards), nullptr, {}};
  std::map<std::pair<uint32_t, uint64_t>, size_t> homes;
  size_t strays = 0;
  for (int64_t key : keys) {
    const uint64_t hash = MixInt64(static_cast<uint64_t>(key));
    strays += ++homes[{ShardOf(hash), array.HomeOf(hash)}] > kBucketEntries;
  }
  return strays;
}

TEST(TableUnusualKeys) {
  const std::string megabyte(1 << 20, 'x');
  const std::vector<int64_t> numbers = {0, -1, 1, INT64_MIN, INT64_MAX, INT64_MIN + 1, 1ll << 32};
  const std::vector<std::string> strings = {"",
                                            std::string(1, '\0'),
                                            std::string(2, '\0'),
                                            std::string("a\0b", 3),
                                            std::string("a\0c", 3),
                                            "a",
                                            megabyte,
                                            megabyte + "y",
                                            std::string(1 << 20, '\0'),
                                            "\xff\xfe"};
  const auto number = [](size_t i, size_t j) { return static_cast<int>(i * 5 + j); };
  for (const TestKeys& keys : {TestKeys(KeyType::kInt64, numbers), TestKeys(strings)}) {
    for (ValueType type : {ValueType::kFloat32, ValueType::kString}) {
      std::unique_ptr<Table> table = MakeTable(OptionsOf(keys.batch().type, type, 3));
      AssignNumbers(*table, keys, number);
      const ContentsMap contents = Contents(*table);
      CHECK_EQ(contents.size(), keys.size());
      for (size_t i = 0; i < keys.size(); ++i) {
        CHECK(contents.at(keys.Name(i)) ==
              (std::vector<int>{number(i, 0), number(i, 1), number(i, 2)}));
      }
      size_t removed = 0;
      CHECK_OK(table->Remove(keys.batch(), &removed));
      CHECK_EQ(removed, keys.size());
    }
  }
  // The same for values.
  std::unique_ptr<Table> table = MakeTable(OptionsOf(KeyType::kInt64, ValueType::kString, 1));
  const std::vector<std::string_view> values(strings.begin(), strings.end());
  const TestKeys keys = TestKeys::Range(KeyType::kInt64, 0, static_cast<int64_t>(values.size()));
  CHECK_OK(table->Assign(keys.batch(), values.data()));
  std::vector<std::string> found(values.size());
  CHECK_OK(table->Lookup(keys.batch(), {}, found.data(), nullptr));
  CHECK(found == strings);
}

TEST(HashUnmixInvertsMix) {
  for (uint64_t x : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{0x123456789ABCDEF}}) {
    CHECK_EQ(MixInt64(UnmixInt64(x)), x);
    CHECK_EQ(UnmixInt64(MixInt64(x)), x);
  }
}

TEST(TablePatternedKeysSpread) {
  constexpr size_t kKeys = 100000;
  const auto absent = [](uint64_t i) { return UnmixInt64(i * 0x9E3779B97F4A7C15u) | 1; };
  std::mt19937_64 generator(1);
  const size_t strays = Strays(KeysOf(kKeys, [&](uint64_t) { return generator(); }));
  CHECK(strays > 0 && strays < kKeys / 8);
  const auto check_pattern = [&](uint64_t (*key)(uint64_t)) {
    const std::vector<int64_t> keys = KeysOf(kKeys, key);
    CHECK(Strays(keys) <= strays + strays / 4);
    RoundTrip(keys, KeysOf(1000, absent));
  };
  check_pattern([](uint64_t i) { return 2 * i; });
  check_pattern([](uint64_t i) { return i << 32; });
  check_pattern([](uint64_t i) { return i << 47; });
  check_pattern([](uint64_t i) { return ~(2 * i) & ~uint64_t{1}; });
  check_pattern([](uint64_t i) { return (i & 0xFF) << 1 | (i >> 8) << 40; });
}

TEST(TableKeysOfOneShardAndBucket) {
  // Equal top bits of the hash: one shard, and nearly one bucket, for all of them. The others of
  // that bucket are absent. Slow is allowed, wrong is not.
  for (int shared_bits : {4, 8, 20}) {
    const uint64_t top = uint64_t{0xABCDE} << 44 >> (64 - shared_bits) << (64 - shared_bits);
    const auto key = [&](uint64_t i) { return UnmixInt64(top | (MixInt64(i + 1) >> shared_bits)); };
    const std::vector<int64_t> keys = KeysOf(2000, key);
    CHECK_EQ(MixInt64(static_cast<uint64_t>(keys[7])) >> (64 - shared_bits),
             top >> (64 - shared_bits));
    RoundTrip(keys, KeysOf(300, [&](uint64_t i) { return key(i + 5000); }));
  }
  // The very last hashes of a shard wrap around to its first buckets; so do those of the table.
  for (uint64_t last : {~uint64_t{0}, uint64_t{0x0FFFFFFFFFFFFFFF}}) {
    RoundTrip(KeysOf(1000, [&](uint64_t i) { return UnmixInt64(last - i); }),
              KeysOf(100, [&](uint64_t i) { return UnmixInt64(last - 5000 - i); }));
  }
}

// Strings with one 64-bit hash. FoldMultiply(a, b) is 0 for any b once a is 0, and for 16 bytes a
// is the first word xor a constant: so all strings of 16 bytes that start with it collide.
std::string Colliding(uint64_t i) {
  std::string text(16, '\0');
  for (int byte = 0; byte < 8; ++byte) {
    text[static_cast<size_t>(byte)] = static_cast<char>(hash_internal::kPi[2] >> (8 * byte) & 0xFF);
    text[static_cast<size_t>(byte) + 8] = static_cast<char>(i >> (8 * byte) & 0xFF);
  }
  return text;
}

TEST(TableStringsOfOneHash) {
  constexpr size_t kKeys = 300;
  std::vector<std::string> names;
  for (size_t i = 0; i < kKeys; ++i) names.push_back(Colliding(i));
  for (const std::string& name : names) {
    CHECK_EQ(HashBytes(name.data(), 16), HashBytes(names[0].data(), 16));
  }
  const TestKeys keys(names);
  for (ValueType type : {ValueType::kInt32, ValueType::kFloat32, ValueType::kString}) {
    TableOptions options = OptionsOf(KeyType::kString, type, 2);
    if (IsFloating(type)) options.rule.kind = RuleKind::kSgd;
    std::unique_ptr<Table> table = MakeTable(options);
    const auto number = [](size_t i, size_t j) { return static_cast<int>((i + j) % 100); };
    AssignNumbers(*table, keys, number);
    ContentsMap contents = Contents(*table);
    CHECK_EQ(contents.size(), kKeys);
    for (size_t i = 0; i < kKeys; ++i) {
      CHECK(contents[names[i]] == (std::vector<int>{number(i, 0), number(i, 1)}));
    }
    const TestKeys absent(std::vector<std::string>{Colliding(1000), Colliding(2000)});
    Flags exists(kKeys);
    TestRows found(type, 2, 2);
    CHECK_OK(table->Lookup(absent.batch(), {}, found.out(), exists.data()));
    CHECK_EQ(exists.Count(), 0u);
    if (IsFloating(type)) {
      // One step per distinct key although all hashes are equal: -1 for each of two gradients.
      std::vector<std::string> twice = names;
      twice.insert(twice.end(), names.begin(), names.end());
      const std::vector<float> ones(4 * kKeys, 1.0f);
      UpdateParams params;
      params.learning_rate = 1;
      CHECK_OK(table->ApplyGradients(TestKeys(twice).batch(), ones.data(), type, params));
      CHECK_EQ(Contents(*table)[names[5]][0], 5 - 2);
    }
    size_t removed = 0;
    const TestKeys some(std::vector<std::string>(names.begin(), names.begin() + 200));
    CHECK_OK(table->Remove(some.batch(), &removed));
    CHECK_EQ(removed, 200u);
    CHECK_OK(table->Contains(keys.batch(), exists.data()));
    for (size_t i = 0; i < kKeys; ++i) CHECK_EQ(exists[i], i >= 200);
    CHECK_OK(table->Shrink());
    CHECK_EQ(Contents(*table).size(), 100u);
  }
}

TEST(ShardFindsTheEntryThatMatches) {
  RowArena arena(8);
  Shard shard;
  CHECK_OK(shard.Create(0, true, &arena, 0));
  std::lock_guard lock(shard.mutex());
  const uint64_t word = 0x0123456789ABCDEFu;
  std::vector<uint32_t> rows;
  for (int i = 0; i < 100; ++i) {
    CHECK_OK(shard.Grow(shard.size() + 1));
    rows.emplace_back();
    CHECK_OK(shard.TakeRow(&rows.back()));
    shard.Insert(word, word, rows.back());
  }
  CHECK_EQ(shard.size(), 100u);
  CHECK(shard.limit() >= 100);
  const auto find = [&](uint32_t row) {
    return shard.Find(word, word, [&](uint32_t each) { return each == row; });
  };
  for (size_t i = 0; i < rows.size(); i += 2) shard.Erase(find(rows[i]));
  CHECK_OK(shard.Rebuild(shard.size()));
  for (size_t i = 0; i < rows.size(); ++i) CHECK_EQ(static_cast<bool>(find(rows[i])), i % 2 == 1);
  const auto other = shard.Find(word + 1, word + 1, [](uint32_t) { return true; });
  CHECK(!other);
}

}  // namespace
}  // namespace tfra::test
