// Moves the entries of a stripe to arrays of other sizes, on several threads.
#include <functional>
#include <vector>

#include "check.h"
#include "index/stripe.h"
#include "tfra/thread_pool.h"

namespace tfra::test {
namespace {

using HashOf = std::function<uint64_t(uint64_t i)>;

EntryData DataOf(uint64_t i) {
  return {i * 3, {static_cast<uint32_t>(i), static_cast<uint32_t>(i + 7)}};
}

// A stripe whose keys are hashes themselves.
class MovingStripe {
 public:
  explicit MovingStripe(EntryColumns columns) : arena_(64), columns_(columns) {
    CHECK_OK(stripe_.Create(0, true, &arena_, 1000, columns));
  }

  void Insert(uint64_t count, const HashOf& hash_of) {
    for (uint64_t i = 0; i < count; ++i) {
      bits_.push_back(hash_of(i) >> kStripeBits);
      CHECK_OK(stripe_.Grow(stripe_.size() + 1));
      stripe_.Insert(bits_[i], bits_[i], static_cast<uint32_t>(i), DataOf(i));
    }
  }

  void Rebuild(uint64_t keys) { CHECK_OK(stripe_.Rebuild(keys)); }

  Stripe::Entry Find(uint64_t i) const {
    const auto matches = [&](uint32_t row) { return row == i; };
    return stripe_.Find(bits_[i], bits_[i], matches);
  }

  void CheckAll() const {
    CHECK_EQ(stripe_.size(), bits_.size());
    for (uint64_t i = 0; i < bits_.size(); ++i) {
      const Stripe::Entry entry = Find(i);
      CHECK(entry);
      if (columns_.scores) CHECK_EQ(stripe_.score(entry), DataOf(i).score);
      if (!columns_.metadata) continue;
      const RowMetadata metadata = stripe_.array()->MetadataOf(entry.bucket, entry.index);
      CHECK_EQ(metadata.time, DataOf(i).metadata.time);
      CHECK_EQ(metadata.count, DataOf(i).metadata.count);
    }
  }

  // Erases all keys, and checks that the count of keys that passed each bucket is 0 again.
  void EraseAll() {
    for (uint64_t i = 0; i < bits_.size(); ++i) stripe_.Erase(Find(i));
    const BucketArray& array = *stripe_.array();
    for (uint64_t b = 0; b < array.count; ++b) {
      CHECK_EQ(array.buckets[b].state.load() & (Bucket::kUsed | Bucket::kOverflow), 0u);
    }
  }

 private:
  RowArena arena_;
  EntryColumns columns_;
  Stripe stripe_;
  std::vector<uint64_t> bits_;
};

uint64_t Spread(uint64_t i) { return MixInt64(i + 1); }

TEST(StripeMovesSpreadEntries) {
  for (const EntryColumns columns : {EntryColumns{}, EntryColumns{true, true}}) {
    for (const int threads : {1, 2, 5}) {
      SetNumThreads(threads);
      MovingStripe stripe(columns);
      stripe.Insert(60'000, Spread);
      stripe.CheckAll();
      for (const uint64_t keys : {60'000, 500'000, 61'000}) {
        stripe.Rebuild(keys);
        stripe.CheckAll();
      }
      stripe.EraseAll();
    }
  }
  SetNumThreads(2);
}

// More colliding entries than a thread can put aside.
TEST(StripeMovesCollidingEntries) {
  SetNumThreads(2);
  MovingStripe stripe({true, true});
  stripe.Insert(12'000, [](uint64_t i) {
    return i % 2 == 0 ? MixInt64(i + 1) : (uint64_t{1} << 63) + (i << kStripeBits);
  });
  stripe.CheckAll();
  for (const uint64_t keys : {200'000, 50'000}) {
    stripe.Rebuild(keys);
    stripe.CheckAll();
  }
}

// Entries at the end of the array, whose search paths go on at its start.
TEST(StripeMovesEntriesAtTheEnds) {
  SetNumThreads(2);
  MovingStripe stripe({});
  stripe.Insert(3'000, [](uint64_t i) {
    return i % 3 == 0 ? UINT64_MAX - (i << kStripeBits) : MixInt64(i + 1);
  });
  for (const uint64_t keys : {100'000, 40'000}) {
    stripe.Rebuild(keys);
    stripe.CheckAll();
  }
}

}  // namespace
}  // namespace tfra::test
