// Unusual keys, and keys that a weak hash, or a weak use of it, would put into few buckets.
#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "base/hash.h"
#include "index/crafted_keys.h"
#include "index/stripe.h"
#include "table_helpers.h"

namespace tfra::test {
namespace {

// Inserts, finds, exports and removes keys, and looks up absent keys.
void RoundTrip(const std::vector<int64_t>& keys, const std::vector<int64_t>& absent) {
  std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kInt64, ValueType::kInt64, 1));
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

// How many keys find their home bucket full, in arrays that are 65 % full at the end.
size_t Displaced(const std::vector<int64_t>& keys) {
  const BucketArray array{keys.size() * 100 / (65 * kBucketEntries * kStripes), nullptr, {}};
  std::map<std::pair<uint32_t, uint64_t>, size_t> homes;
  size_t displaced = 0;
  for (int64_t key : keys) {
    const uint64_t hash = MixInt64(static_cast<uint64_t>(key));
    displaced += ++homes[{StripeOf(hash), array.HomeOf(hash)}] > kBucketEntries;
  }
  return displaced;
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
      std::unique_ptr<Table> table = MakeTable(SpecOf(keys.batch().type, type, 3));
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
  std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kInt64, ValueType::kString, 1));
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
  const size_t displaced = Displaced(KeysOf(kKeys, [&](uint64_t) { return generator(); }));
  CHECK(displaced > 0 && displaced < kKeys / 8);
  const auto check_pattern = [&](uint64_t (*key)(uint64_t)) {
    const std::vector<int64_t> keys = KeysOf(kKeys, key);
    CHECK(Displaced(keys) <= displaced + displaced / 4);
    RoundTrip(keys, KeysOf(1000, absent));
  };
  check_pattern([](uint64_t i) { return 2 * i; });
  check_pattern([](uint64_t i) { return i << 32; });
  check_pattern([](uint64_t i) { return i << 47; });
  check_pattern([](uint64_t i) { return ~(2 * i) & ~uint64_t{1}; });
  check_pattern([](uint64_t i) { return (i & 0xFF) << 1 | (i >> 8) << 40; });
}

TEST(TableKeysOfOneStripeAndBucket) {
  // The hashes of all keys have equal top bits, so they belong to one stripe and few buckets. Other
  // keys with the same top bits are absent. The table may be slow here, but not wrong.
  for (int shared_bits : {4, 8, 20}) {
    const uint64_t top = uint64_t{0xABCDE} << 44 >> (64 - shared_bits) << (64 - shared_bits);
    const auto key = [&](uint64_t i) { return UnmixInt64(top | (MixInt64(i + 1) >> shared_bits)); };
    const std::vector<int64_t> keys = KeysOf(2000, key);
    CHECK_EQ(MixInt64(static_cast<uint64_t>(keys[7])) >> (64 - shared_bits),
             top >> (64 - shared_bits));
    RoundTrip(keys, KeysOf(300, [&](uint64_t i) { return key(i + 5000); }));
  }
  // Keys with the last hashes of a stripe overflow to its first buckets.
  for (uint64_t last : {~uint64_t{0}, uint64_t{0x0FFFFFFFFFFFFFFF}}) {
    RoundTrip(KeysOf(1000, [&](uint64_t i) { return UnmixInt64(last - i); }),
              KeysOf(100, [&](uint64_t i) { return UnmixInt64(last - 5000 - i); }));
  }
}

// Pairs of strings with equal HashBytes. They were found by following the chain x, hash of x, hash
// of that, and so on, from several starts until two chains met: some 2^32 hashes for each pair.
constexpr uint64_t kEqualHashes[][2] = {{0x5F38AE06920A02DC, 0x3E5CBE3E716A952E},
                                        {0x5C307E92488193B7, 0xEB0E51C17BA03AB4},
                                        {0x7091A870015A3FC5, 0x4886504A12768C7A},
                                        {0xCB4D35824771E530, 0x5DEEFC84A936D1E2}};

std::string TextOf(uint64_t key_bits) {
  std::string text;
  for (int byte = 0; byte < 8; ++byte) text += static_cast<char>(key_bits >> (8 * byte) & 0xFF);
  return text;
}

// Keys with equal hashes, and keys with other hashes.
TEST(TableStringsOfOneHash) {
  std::vector<std::string> names, twins;
  for (const auto& [first, second] : kEqualHashes) {
    names.push_back(TextOf(first));
    twins.push_back(TextOf(second));
    CHECK_EQ(HashBytes(names.back().data(), 8), HashBytes(twins.back().data(), 8));
    CHECK(names.back() != twins.back());
  }
  for (int i = 0; i < 100; ++i) names.push_back(std::to_string(i));
  for (ValueType type : {ValueType::kInt32, ValueType::kFloat32, ValueType::kString}) {
    TableSpec spec = SpecOf(KeyType::kString, type, 2);
    if (IsFloating(type)) spec.rule.kind = RuleKind::kSgd;
    std::unique_ptr<Table> table = MakeTable(spec);
    const auto number = [](size_t i, size_t j) { return static_cast<int>((i + j) % 100); };
    AssignNumbers(*table, TestKeys(names), number);
    Flags exists(names.size() + twins.size());
    TestRows found(type, twins.size(), 2);
    CHECK_OK(table->Lookup(TestKeys(twins).batch(), {}, found.out(), exists.data()));
    CHECK_EQ(exists.Count(), 0u);
    std::vector<std::string> all = names;
    all.insert(all.end(), twins.begin(), twins.end());
    const TestKeys keys(all);
    AssignNumbers(*table, keys, number);
    ContentsMap contents = Contents(*table);
    CHECK_EQ(contents.size(), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      CHECK(contents[all[i]] == (std::vector<int>{number(i, 0), number(i, 1)}));
    }
    if (IsFloating(type)) {
      // Each distinct key takes one step, although hashes are equal: -1 for each of two gradients.
      std::vector<std::string> twice = all;
      twice.insert(twice.end(), all.begin(), all.end());
      const std::vector<float> ones(4 * all.size(), 1.0f);
      UpdateParams params;
      params.learning_rate = 1;
      CHECK_OK(
          table->training().ApplyGradients(TestKeys(twice).batch(), ones.data(), type, params));
      contents = Contents(*table);
      for (size_t i = 0; i < all.size(); ++i) CHECK_EQ(contents[all[i]][0], number(i, 0) - 2);
    }
    size_t removed = 0;
    CHECK_OK(table->Remove(TestKeys(twins).batch(), &removed));
    CHECK_EQ(removed, twins.size());
    CHECK_OK(table->Contains(keys.batch(), exists.data()));
    for (size_t i = 0; i < all.size(); ++i) CHECK_EQ(exists[i], i < names.size());
    CHECK_OK(table->Shrink());
    CHECK_EQ(Contents(*table).size(), names.size());
  }
}

TEST(StripeFindsTheEntryThatMatches) {
  RowArena arena(8);
  Stripe stripe;
  CHECK_OK(stripe.Create(0, true, &arena, 0));
  std::lock_guard lock(stripe.mutex());
  const uint64_t key_bits = 0x0123456789ABCDEFu;
  std::vector<uint32_t> rows;
  for (int i = 0; i < 100; ++i) {
    CHECK_OK(stripe.Grow(stripe.size() + 1));
    rows.emplace_back();
    CHECK_OK(stripe.TakeRow(&rows.back()));
    stripe.Insert(key_bits, key_bits, rows.back());
  }
  CHECK_EQ(stripe.size(), 100u);
  CHECK(stripe.limit() >= 100);
  const auto find = [&](uint32_t row) {
    return stripe.Find(key_bits, key_bits, [&](uint32_t each) { return each == row; });
  };
  for (size_t i = 0; i < rows.size(); i += 2) stripe.Erase(find(rows[i]));
  CHECK_OK(stripe.Rebuild(stripe.size()));
  for (size_t i = 0; i < rows.size(); ++i) CHECK_EQ(static_cast<bool>(find(rows[i])), i % 2 == 1);
  const auto other = stripe.Find(key_bits + 1, key_bits + 1, [](uint32_t) { return true; });
  CHECK(!other);
}

}  // namespace
}  // namespace tfra::test
