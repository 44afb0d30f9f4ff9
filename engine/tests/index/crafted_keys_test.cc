// Keys that somebody chose so that they collide must cost at most three times what random ones do.
// Costs are counted in buckets and places looked at, never in seconds.
#include "index/crafted_keys.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "admission/waiting_keys.h"
#include "bounded_helpers.h"
#include "keys/key_groups.h"
#include "table/table_base.h"
#include "table_helpers.h"

namespace tfra::test {
namespace {

constexpr uint64_t kTop = 0xABCDEF0123456789u;

// Different keys whose hashes start with the same bits, and are spread by the others.
std::vector<int64_t> KeysOfEqualBits(size_t n, int bits, uint64_t first = 0) {
  const uint64_t rest = UINT64_MAX >> bits;
  return KeysOf(n, [=](uint64_t i) {
    return UnmixInt64((kTop & ~rest) | ((first + i + 1) * 0x9E3779B97F4A7C15u & rest));
  });
}

std::vector<int64_t> RandomKeys(size_t n) {
  std::mt19937_64 random(1);
  return KeysOf(n, [&](uint64_t) { return random(); });
}

// Buckets that inserting looked at, for each key.
double BucketsPerInsert(const TableSpec& spec, const TestKeys& keys, uint64_t* reseeds) {
  std::unique_ptr<Table> table = MakeTable(spec);
  AssignNumbers(*table, keys, [](size_t i, size_t) { return static_cast<int>(i % 100); });
  *reseeds = table->stats().reseeds;
  if (spec.bound.max_capacity == 0) {
    CHECK_EQ(table->size(), keys.size());
    ContentsMap contents = Contents(*table);
    CHECK_EQ(contents.size(), keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      CHECK_EQ(contents[keys.Name(i)].at(0), static_cast<int>(i % 100));
    }
  }
  const TableState& state = static_cast<const TableBase&>(*table).state();
  return 1 + static_cast<double>(state.index_steps()) / static_cast<double>(keys.size());
}

void CompareCosts(const char* what, const TableSpec& spec, const TestKeys& crafted,
                  const TestKeys& random) {
  uint64_t reseeds = 0, reseeds_by_chance = 0;
  const double crafted_cost = BucketsPerInsert(spec, crafted, &reseeds);
  const double random_cost = BucketsPerInsert(spec, random, &reseeds_by_chance);
  std::printf("  %s: %.2f buckets per insert, random keys %.2f, %d reseeds\n", what, crafted_cost,
              random_cost, static_cast<int>(reseeds));
  CHECK(crafted_cost <= 3 * random_cost);
  CHECK_EQ(reseeds_by_chance, 0u);
}

TEST(CraftedIntKeysCostLittle) {
  constexpr size_t kKeys = 80'000 / kSlowdown;
  const TestKeys random(KeyType::kInt64, RandomKeys(kKeys));
  for (const int64_t dim : {2, 16, 32}) {
    const TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, dim);
    // One bucket; the 16th, 64th or 1024th part of one stripe.
    for (const int bits : {40, 8, 10, 14}) {
      CompareCosts(("equal bits: " + std::to_string(bits)).c_str(), spec,
                   TestKeys(KeyType::kInt64, KeysOfEqualBits(kKeys, bits)), random);
    }
    // Some hundred keys for each of many buckets: no bucket has so many that it stands out.
    const auto groups = KeysOf(kKeys, [](uint64_t i) {
      return UnmixInt64(MixInt64(i / 100) >> 24 << 24 | i % 100 * 0x10001);
    });
    CompareCosts("groups", spec, TestKeys(KeyType::kInt64, groups), random);
    // As an export gives them.
    auto in_order = RandomKeys(kKeys);
    std::sort(in_order.begin(), in_order.end(), [](int64_t a, int64_t b) {
      return MixInt64(static_cast<uint64_t>(a)) < MixInt64(static_cast<uint64_t>(b));
    });
    CompareCosts("order of hashes", spec, TestKeys(KeyType::kInt64, in_order), random);
  }
}

// Equal first bits of their hashes are what can be found for strings, by trying many.
TEST(CraftedStringKeysCostLittle) {
  constexpr size_t kKeys = 20'000 / kSlowdown;
  std::vector<std::string> crafted, random;
  for (uint64_t i = 0; crafted.size() < kKeys; ++i) {
    const std::string text = "user/" + std::to_string(i);
    if (HashBytes(text.data(), text.size()) >> 56 == 0x5A) crafted.push_back(text);
    if (random.size() < kKeys) random.push_back(text);
  }
  CompareCosts("strings", SpecOf(KeyType::kString, ValueType::kFloat32, 8), TestKeys(crafted),
               TestKeys(random));
}

TEST(CraftedKeysOfBoundedTablesCostLittle) {
  constexpr size_t kKeys = 80'000 / kSlowdown;
  const TestKeys random(KeyType::kInt64, RandomKeys(kKeys));
  for (EvictStrategy strategy : {EvictStrategy::kLru, EvictStrategy::kLfu}) {
    // The first holds all keys, the second evicts most of them.
    for (const int64_t max_capacity : {1 << 20, 10'000 / kSlowdown}) {
      TableSpec spec = BoundedSpec(strategy, max_capacity);
      CompareCosts("bounded", spec, TestKeys(KeyType::kInt64, KeysOfEqualBits(kKeys, 40)), random);
    }
  }
}

// The mean score of the keys of a table that counts how often keys come, after each came once.
double MeanCount(const std::vector<int64_t>& keys) {
  constexpr size_t kBatch = 500;
  std::unique_ptr<Table> table = MakeTable(BoundedSpec(EvictStrategy::kLfu, 10'000));
  for (size_t i = 0; i < keys.size(); i += kBatch) {
    const auto begin = keys.begin() + static_cast<std::ptrdiff_t>(i);
    AssignNumbers(*table, TestKeys(KeyType::kInt64, std::vector<int64_t>(begin, begin + kBatch)),
                  One);
  }
  CHECK(table->stats().evictions > 0);
  ExportBatch batch;
  CHECK_OK(table->ExportAll(&batch));
  const uint64_t sum = std::accumulate(batch.scores.begin(), batch.scores.end(), uint64_t{0});
  return static_cast<double>(sum) / static_cast<double>(batch.size);
}

// Keys that share the cells of remembered counts pass for one another, and seem to come often.
TEST(CraftedKeysDoNotShareRememberedCounts) {
  // Equal in the first and in the last bits of their hashes, which name the cells.
  const double crafted = MeanCount(KeysOf(15'000, [](uint64_t i) {
    return UnmixInt64(kTop >> 24 << 24 | (i << 10 & 0xFFFFFF) | 0x155);
  }));
  const double others = MeanCount(KeysOfEqualBits(15'000, kStripeBits));
  std::printf("  mean count of keys that came once: %.1f, others of their stripe %.1f\n", crafted,
              others);
  CHECK(crafted <= 2 * others);
}

// How many buckets a search for a missing key looks at, at most and in the mean, over all homes.
std::pair<double, uint64_t> BucketsPerMiss(const Stripe& stripe) {
  const BucketArray& array = *stripe.array();
  uint64_t total = 0, most = 0;
  for (uint64_t home = 0; home < array.count; ++home) {
    SearchPath path(array, home);
    uint64_t buckets = 1;
    while (path.bucket()->state.load() & Bucket::kOverflow && path.Advance()) ++buckets;
    total += buckets;
    most = std::max(most, buckets);
  }
  return {static_cast<double>(total) / static_cast<double>(array.count), most};
}

// Keys that come and go leave nothing behind that makes searches longer: a bucket that lost count
// of the keys that passed it would stay so.
TEST(CraftedKeysThatLeaveCostNothingAfterwards) {
  RowArena arena(128);
  Stripe stripe;
  CHECK_OK(stripe.Create(0, true, &arena, 10'000));
  std::lock_guard lock(stripe.mutex());
  std::mt19937_64 random(1);
  const auto insert = [&](uint64_t key_bits) {
    if (stripe.NeedsReseed()) stripe.Tidy();  // As a table does.
    stripe.Insert(key_bits, key_bits, 0);
  };
  for (int i = 0; i < 10'000; ++i) insert(random() >> kStripeBits);
  const double before = BucketsPerMiss(stripe).first;
  // Each time enough keys of one bucket for it to lose count.
  for (uint64_t bucket = 0; bucket < 400; ++bucket) {
    const uint64_t first = stripe.array()->FirstPosition(bucket);
    for (uint64_t i = 0; i < 150; ++i) insert(first + i);
    for (uint64_t i = 0; i < 150; ++i) {
      stripe.Erase(stripe.Find(first + i, first + i, [](uint32_t) { return true; }));
    }
  }
  stripe.Tidy();
  const auto [mean, most] = BucketsPerMiss(stripe);
  std::printf("  buckets per miss: %.2f before, %.2f after, at most %d\n", before, mean,
              static_cast<int>(most));
  CHECK(mean <= 2 * before);
  CHECK(most <= 64);
}

// A large index with few keys is not rebuilt, bucket by bucket, for each few keys that collide.
TEST(CraftedKeysOfASparseIndexCostLittle) {
  RowArena arena(128);
  Stripe stripe;
  CHECK_OK(stripe.Create(0, true, &arena, 300'000));
  std::lock_guard lock(stripe.mutex());
  uint64_t keys = 0, buckets_rebuilt = 0;
  const BucketArray* array = stripe.array();
  for (uint64_t home = 0; home < 4000; ++home) {
    const uint64_t first = stripe.array()->FirstPosition(home * 16);
    for (uint64_t i = 0; i < 7; ++i, ++keys) stripe.Insert(first + i, first + i, 0);
    stripe.Tidy();  // As a table does before each call.
    if (stripe.array() == array) continue;
    array = stripe.array();
    buckets_rebuilt += array->count;
  }
  std::printf("  %.1f buckets rebuilt for each key\n",
              static_cast<double>(buckets_rebuilt) / static_cast<double>(keys));
  CHECK(buckets_rebuilt <= 16 * keys);
}

// Keys that come stripe by stripe make each stripe of a small table as large as the whole. An
// eviction, which looks at all buckets, must not stay that expensive.
TEST(ExactTablesShrinkStripesThatWereFull) {
  constexpr int64_t kCapacity = 1024;
  std::unique_ptr<Table> table = MakeTable(BoundedSpec(EvictStrategy::kLru, kCapacity));
  const uint64_t fresh_bytes = table->stats().index_bytes;
  for (uint64_t stripe = 0; stripe < kStripes; ++stripe) {
    AssignNumbers(
        *table,
        TestKeys(KeyType::kInt64, KeysOf(kCapacity,
                                         [&](uint64_t i) {
                                           return UnmixInt64(stripe << (64 - kStripeBits) |
                                                             MixInt64(i + 1) >> kStripeBits);
                                         })),
        One);
  }
  const uint64_t full_bytes = table->stats().index_bytes;
  std::mt19937_64 random(1);
  for (int batch = 0; batch < 100; ++batch) {
    AssignNumbers(*table,
                  TestKeys(KeyType::kInt64, KeysOf(1000, [&](uint64_t) { return random(); })), One);
  }
  CHECK(full_bytes > 4 * fresh_bytes);
  CHECK(table->stats().index_bytes < full_bytes / 2);
}

// The order of a stripe changes while an export is under way.
TEST(ExportsGoOnWhenAStripeTakesANewSeed) {
  for (KeyType key_type : kKeyTypes) {
    std::unique_ptr<Table> table = MakeTable(SpecOf(key_type, ValueType::kInt32, 1));
    const bool strings = key_type == KeyType::kString;
    constexpr uint32_t kStripe = kTop >> (64 - kStripeBits);
    // All of one stripe, and those that make it take another seed.
    std::vector<int64_t> ints = KeysOfEqualBits(3000, kStripeBits);
    std::vector<int64_t> crafted_ints = KeysOfEqualBits(2000, 40, 1 << 20);
    std::vector<std::string> texts, crafted_texts;
    for (uint64_t i = 0; strings && crafted_texts.size() < 1000; ++i) {
      const std::string text = std::to_string(i);
      const uint64_t hash = HashBytes(text.data(), text.size());
      if (StripeOf(hash) != kStripe) continue;
      if (hash >> 51 == kTop >> 51) {
        crafted_texts.push_back(text);
      } else if (texts.size() < 3000) {
        texts.push_back(text);
      }
    }
    const TestKeys keys = strings ? TestKeys(texts) : TestKeys(key_type, ints);
    const TestKeys crafted = strings ? TestKeys(crafted_texts) : TestKeys(key_type, crafted_ints);
    for (const int interrupted_at : {1, 5, 20}) {
      CHECK_OK(table->Clear());
      AssignNumbers(*table, keys, One);
      const uint64_t reseeds = table->stats().reseeds;
      std::map<std::string, int> seen;
      ExportCursor cursor;
      ExportBatch batch;
      for (int part = 0; !cursor.done; ++part) {
        if (part == interrupted_at) AssignNumbers(*table, crafted, One);
        CHECK_OK(table->Export(100, &cursor, &batch));
        for (size_t i = 0; i < batch.size; ++i) {
          ++seen[strings ? std::string(batch.string_keys[i]) : std::to_string(batch.int_keys[i])];
        }
      }
      if (interrupted_at == 1) CHECK(table->stats().reseeds > reseeds);
      for (size_t i = 0; i < keys.size(); ++i) CHECK_EQ(seen[keys.Name(i)], 1);
      for (size_t i = 0; i < crafted.size(); ++i) CHECK(seen[crafted.Name(i)] <= 1);
      // The next round begins with another table.
      table = MakeTable(SpecOf(key_type, ValueType::kInt32, 1));
    }
  }
}

// Readers go on, and see all keys, while stripes take new seeds.
TEST(ConcurrentReadersSeeKeysOfReseededStripes) {
  const std::vector<int64_t> steady = KeysOfEqualBits(2000, kStripeBits);
  for (int round = 0; round < 20 / kSlowdown + 1; ++round) {
    std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kInt64, ValueType::kInt64, 1));
    CHECK_OK(table->Assign(KeyBatch(steady.data(), steady.size()), steady.data()));
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::vector<std::thread> readers;
    for (int r = 0; r < 2; ++r) {
      readers.emplace_back([&] {
        std::vector<int64_t> found(steady.size());
        while (!stop.load()) {
          CHECK_OK(
              table->Lookup(KeyBatch(steady.data(), steady.size()), {}, found.data(), nullptr));
          wrong += found != steady;
          ExportBatch batch;
          CHECK_OK(table->ExportAll(&batch));
          std::sort(batch.int_keys.begin(), batch.int_keys.end());
          for (int64_t key : steady) {
            wrong += !std::binary_search(batch.int_keys.begin(), batch.int_keys.end(), key);
          }
          const auto again = std::adjacent_find(batch.int_keys.begin(), batch.int_keys.end());
          wrong += again != batch.int_keys.end();
        }
      });
    }
    const std::vector<int64_t> crafted = KeysOfEqualBits(5000, 40, 1 << 20);
    for (size_t i = 0; i < crafted.size(); i += 50) {
      CHECK_OK(table->Assign(KeyBatch(crafted.data() + i, 50), crafted.data() + i));
    }
    stop = true;
    for (std::thread& reader : readers) reader.join();
    CHECK(table->stats().reseeds > 0);
    CHECK_EQ(wrong.load(), 0);
  }
}

TEST(CraftedWaitingKeysCostLittle) {
  constexpr size_t kKeys = 40'000 / kSlowdown;
  const auto probes_of = [](const std::vector<int64_t>& keys) {
    WaitingKeys waiting(false);
    for (int times = 1; times <= 2; ++times) {
      for (int64_t key : keys) {
        CHECK_EQ(waiting.Add(static_cast<uint64_t>(key), {}, 1, 1), static_cast<uint32_t>(times));
      }
    }
    CHECK_EQ(waiting.size(), keys.size());
    return waiting.probes() / keys.size();
  };
  const uint64_t crafted = probes_of(KeysOfEqualBits(kKeys, 40));
  const uint64_t random = probes_of(KeysOfEqualBits(kKeys, kStripeBits));
  std::printf("  %d places per key, random keys %d\n", static_cast<int>(crafted),
              static_cast<int>(random));
  CHECK(crafted <= 3 * random);
}

// The tables of one call: no pattern of keys, and no multiple of a public constant, makes one of
// their places stand out.
TEST(ScrambleSpreadsPatterns) {
  constexpr uint64_t kKeys = 1 << 14, kMask = (1 << 15) - 1;
  uint64_t inverse = 0x9E3779B97F4A7C15u;
  for (int i = 0; i < 6; ++i) inverse *= 2 - 0x9E3779B97F4A7C15u * inverse;
  const std::function<uint64_t(uint64_t)> patterns[] = {
      [](uint64_t i) { return i; },
      [](uint64_t i) { return i << 48; },
      [](uint64_t i) { return i << 32; },
      [](uint64_t i) { return i << 50 | 7; },
      [=](uint64_t i) { return (i << 15) * inverse; },
      [=](uint64_t i) { return (i << 32) * inverse; },
      [](uint64_t i) { return UnmixInt64(i); },
      [](uint64_t i) { return (i & 127) << 57 | i >> 7; },
  };
  for (const auto& pattern : patterns) {
    for (uint64_t seed : {kScrambleSeed, RandomSeed(), RandomSeed()}) {
      std::vector<int> places(kMask + 1);
      for (uint64_t i = 0; i < kKeys; ++i) ++places[Scramble(pattern(i), seed) & kMask];
      CHECK(*std::max_element(places.begin(), places.end()) <= 16);
    }
  }
}

// Distinct keys are found among as many that collided under the hash which was used before.
TEST(CraftedKeysOfOneBatchAreToldApart) {
  const std::vector<int64_t> keys = KeysOf(50'000, [](uint64_t i) { return (i / 2) << 48 | 3; });
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, 1);
  spec.rule.kind = RuleKind::kSgd;
  std::unique_ptr<Table> table = MakeTable(spec);
  const std::vector<float> ones(keys.size(), 1.0f);
  UpdateParams params;
  params.learning_rate = 1;
  CHECK_OK(table->training().ApplyGradients(KeyBatch(keys.data(), keys.size()), ones.data(),
                                            ValueType::kFloat32, params));
  CHECK_EQ(table->size(), keys.size() / 2);
  for (const auto& [name, row] : Contents(*table)) CHECK_EQ(row.at(0), -2);
}

}  // namespace
}  // namespace tfra::test
