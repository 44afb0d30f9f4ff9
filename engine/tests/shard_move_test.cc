// Moving the entries of a shard to arrays of other sizes, on several threads.
#include <functional>
#include <vector>

#include "check.h"
#include "shard.h"
#include "tfra/thread_pool.h"

namespace tfra::test {
namespace {

using HashOf = std::function<uint64_t(uint64_t i)>;

EntryData DataOf(uint64_t i) {
  return {i * 3, {static_cast<uint32_t>(i), static_cast<uint32_t>(i + 7)}};
}

// All hashes are of one shard, and are the words themselves.
class MovingShard {
 public:
  explicit MovingShard(EntryColumns columns) : arena_(64), columns_(columns) {
    CHECK_OK(shard_.Create(0, true, &arena_, 1000, columns));
  }

  void Insert(uint64_t count, const HashOf& hash_of) {
    for (uint64_t i = 0; i < count; ++i) {
      words_.push_back(hash_of(i) >> kShardBits);
      CHECK_OK(shard_.Grow(shard_.size() + 1));
      shard_.Insert(words_[i], words_[i], static_cast<uint32_t>(i), DataOf(i));
    }
  }

  void Rebuild(uint64_t keys) { CHECK_OK(shard_.Rebuild(keys)); }

  Shard::Entry Find(uint64_t i) const {
    const auto matches = [&](uint32_t row) { return row == i; };
    return shard_.Find(words_[i], words_[i], matches);
  }

  void CheckAll() const {
    CHECK_EQ(shard_.size(), words_.size());
    for (uint64_t i = 0; i < words_.size(); ++i) {
      const Shard::Entry entry = Find(i);
      CHECK(entry);
      if (columns_.scores) CHECK_EQ(shard_.score(entry), DataOf(i).score);
      if (!columns_.metadata) continue;
      const RowMetadata metadata = shard_.array()->MetadataOf(entry.bucket, entry.index);
      CHECK_EQ(metadata.time, DataOf(i).metadata.time);
      CHECK_EQ(metadata.count, DataOf(i).metadata.count);
    }
  }

  // Buckets know how many keys have passed them: when all are gone, none has.
  void EraseAll() {
    for (uint64_t i = 0; i < words_.size(); ++i) shard_.Erase(Find(i));
    const BucketArray& array = *shard_.array();
    for (uint64_t b = 0; b < array.count; ++b) {
      CHECK_EQ(array.buckets[b].state.load() & (Bucket::kUsed | Bucket::kOverflow), 0u);
    }
  }

 private:
  RowArena arena_;
  EntryColumns columns_;
  Shard shard_;
  std::vector<uint64_t> words_;
};

uint64_t Spread(uint64_t i) { return MixInt64(i + 1); }

TEST(ShardMovesSpreadEntries) {
  for (const EntryColumns columns : {EntryColumns{}, EntryColumns{true, true}}) {
    for (const int threads : {1, 2, 5}) {
      SetNumThreads(threads);
      MovingShard shard(columns);
      shard.Insert(60'000, Spread);
      shard.CheckAll();
      for (const uint64_t keys : {60'000, 500'000, 61'000}) {
        shard.Rebuild(keys);
        shard.CheckAll();
      }
      shard.EraseAll();
    }
  }
  SetNumThreads(2);
}

// So many that no thread could put them all aside.
TEST(ShardMovesCollidingEntries) {
  SetNumThreads(2);
  MovingShard shard({true, true});
  shard.Insert(12'000, [](uint64_t i) {
    return i % 2 == 0 ? MixInt64(i + 1) : (uint64_t{1} << 63) + (i << kShardBits);
  });
  shard.CheckAll();
  for (const uint64_t keys : {200'000, 50'000}) {
    shard.Rebuild(keys);
    shard.CheckAll();
  }
}

// At the ends of the array, where paths go on at its start.
TEST(ShardMovesEntriesAtTheEnds) {
  SetNumThreads(2);
  MovingShard shard({});
  shard.Insert(3'000, [](uint64_t i) {
    return i % 3 == 0 ? UINT64_MAX - (i << kShardBits) : MixInt64(i + 1);
  });
  for (const uint64_t keys : {100'000, 40'000}) {
    shard.Rebuild(keys);
    shard.CheckAll();
  }
}

}  // namespace
}  // namespace tfra::test
