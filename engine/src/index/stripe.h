// A stripe, one of the parts of the index: the keys whose hashes start with the same bits, and
// their row ids.
//
// The index of a stripe, and its rows, change only under the stripe's mutex. Readers take no lock:
// they check for each bucket that it has not changed while they read.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "base/batch.h"
#include "base/hash.h"
#include "index/bucket.h"
#include "keys/stripes.h"
#include "rows/row_arena.h"
#include "tfra/status.h"
#include "tfra/table.h"

namespace tfra {

// Makes sure that `extra` more elements can be added without allocating.
template <typename T>
void GrowBy(std::vector<T>* vector, size_t extra) {
  const size_t needed = vector->size() + extra;
  if (needed > vector->capacity())
    vector->reserve(needed > 2 * vector->size() ? needed : 2 * needed);
}

// The score of an entry that is not in use. Larger than all scores.
inline constexpr uint64_t kNoScore = UINT64_MAX;

// The data that entries of an index have besides key_bits and row id.
struct EntryColumns {
  bool scores = false;
  bool metadata = false;

  uint64_t bytes_per_bucket() const {
    return (uint64_t{scores} + uint64_t{metadata}) * kBucketEntries * sizeof(uint64_t);
  }
};

// The values of one entry in these columns.
struct EntryData {
  uint64_t score = kNoScore;
  RowMetadata metadata{};
};

// The buckets of a stripe. Each key has a position, and the keys whose search starts in a bucket
// have lower positions than those of later buckets. The number of buckets is arbitrary, so growing
// need not double it. Arrays with the same seed give a key the same position. At the end there is
// one extra bucket, which is always locked: so a search may read the next bucket without a check
// for the end.
struct BucketArray {
  uint64_t count;
  Bucket* buckets;
  EntryColumns columns;
  // With the seed 0, the position of a key is its hash, so the layout is the same in every process.
  // Other seeds are random: see Stripe::Tidy.
  uint64_t seed = 0;

  // The position of a key with this hash. Its top bits, which select the stripe, are those of the
  // hash.
  static uint64_t PositionOf(uint64_t hash, uint64_t seed) {
    if (seed == 0) return hash;
    const uint64_t rest = UINT64_MAX >> kStripeBits;
    return (hash & ~rest) | SeededOrder(hash, seed) >> kStripeBits;
  }
  [[gnu::always_inline]] uint64_t PositionOf(uint64_t hash) const {
    if (seed != 0) [[unlikely]]
      return PositionOf(hash, seed);
    return hash;
  }

  [[gnu::always_inline]] uint64_t BucketAt(uint64_t position) const {
    return static_cast<uint64_t>(
        (static_cast<unsigned __int128>(position << kStripeBits) * count) >> 64);
  }
  // The smallest position, without its stripe bits, whose bucket is `bucket` or a later one.
  uint64_t FirstPosition(uint64_t bucket) const;

  // The bucket where the search for a key starts.
  [[gnu::always_inline]] uint64_t HomeOf(uint64_t hash) const { return BucketAt(PositionOf(hash)); }
  Bucket* Home(uint64_t hash) const { return buckets + HomeOf(hash); }

  // The columns: each has kBucketEntries numbers for each bucket. A column is contiguous, so that
  // passes over all keys, and the search for the lowest score, touch few cache lines. Columns are
  // written by atomic stores under the stripe's mutex, and read by atomic loads without it.

  // The scores; kNoScore for entries that are not in use. REQUIRES: columns.scores.
  uint64_t* scores() const { return reinterpret_cast<uint64_t*>(buckets + count + 1); }
  uint64_t* ScoreOf(const Bucket* bucket, uint32_t index) const {
    return scores() + PlaceOf(bucket, index);
  }

  // The metadata; 0 for entries that are not in use. REQUIRES, for these: columns.metadata.
  uint64_t* metadata() const {
    return scores() + (columns.scores ? count * kBucketEntries : uint64_t{0});
  }
  RowMetadata MetadataOf(const Bucket* bucket, uint32_t index) const {
    return std::bit_cast<RowMetadata>(
        __atomic_load_n(metadata() + PlaceOf(bucket, index), __ATOMIC_RELAXED));
  }
  void SetMetadata(const Bucket* bucket, uint32_t index, RowMetadata value) const {
    __atomic_store_n(metadata() + PlaceOf(bucket, index), std::bit_cast<uint64_t>(value),
                     __ATOMIC_RELAXED);
  }
  // Writes an entry. The caller changes the bucket's state.
  void Put(Bucket* bucket, uint32_t index, uint64_t key_bits, uint32_t row,
           const EntryData& data) const {
    bucket->bits[index].store(key_bits, std::memory_order_relaxed);
    bucket->rows[index].store(row, std::memory_order_relaxed);
    if (columns.scores) __atomic_store_n(ScoreOf(bucket, index), data.score, __ATOMIC_RELAXED);
    if (columns.metadata) SetMetadata(bucket, index, data.metadata);
  }
  // Marks the entry as not in use in the columns, which are searched without reading the buckets.
  void Clear(const Bucket* bucket, uint32_t index) const {
    if (columns.scores) __atomic_store_n(ScoreOf(bucket, index), kNoScore, __ATOMIC_RELAXED);
    if (columns.metadata) SetMetadata(bucket, index, {});
  }

 private:
  uint64_t PlaceOf(const Bucket* bucket, uint32_t index) const {
    return static_cast<uint64_t>(bucket - buckets) * kBucketEntries + index;
  }
};

// How full an index gets before it grows, and by which factor it grows. An emptier index is faster,
// because more keys are in their home buckets. The larger the rows, the emptier the index may be.
struct IndexShape {
  uint32_t percent_full;
  double growth;

  static IndexShape For(size_t row_bytes);

  uint64_t KeysIn(uint64_t buckets) const { return buckets * kBucketEntries * percent_full / 100; }
  // The number of buckets that stripe `number` has for `keys` keys. Stripes grow at different
  // sizes, so that no call has to grow all stripes, and memory rises evenly. most: the number of
  // keys that the stripe will hardly exceed, or 0 if it is unknown. The last growth is then to
  // exactly the size for `most` keys.
  uint64_t BucketsFor(uint32_t number, uint64_t keys, uint64_t most = 0) const;
};

// The buckets that may contain a key, in the order of the search: its home bucket, the next one,
// then buckets at growing distances, so that full buckets do not fill their neighbours. At last the
// search goes bucket by bucket, so that it reaches every bucket.
class SearchPath {
 public:
  SearchPath(const BucketArray& array, uint64_t home) : array_(array), place_(home) {}

  Bucket* bucket() const { return array_.buckets + place_; }
  // How many buckets the search has passed.
  uint64_t steps() const { return steps_; }

  // The distance of the n-th bucket from the home bucket, if that is inside the array.
  static constexpr uint64_t Offset(uint64_t n) { return n * (n + 1) / 2; }

  // Goes to the next bucket. Returns false at the end of the path.
  bool Advance() {
    ++steps_;
    place_ += steps_ <= kLongerSteps ? steps_ : 1;
    if (place_ >= array_.count) place_ %= array_.count;
    return steps_ < array_.count + kLongerSteps;
  }

 private:
  const BucketArray& array_;
  uint64_t place_;
  static constexpr uint64_t kLongerSteps = 16;
  uint64_t steps_ = 0;
};

// How far the keys of an index are from their home buckets, in steps of their search paths.
struct Displacement {
  uint64_t keys = 0;     // The number of displaced keys.
  uint64_t steps = 0;    // The sum of the steps of all keys.
  bool crowded = false;  // More keys passed some bucket than chance explains.

  void Add(uint64_t key_steps) {
    keys += key_steps > 0;
    steps += key_steps;
  }
  void Add(const Displacement& other) {
    keys += other.keys;
    steps += other.steps;
    crowded |= other.crowded;
  }
  void Remove(uint64_t key_steps) {
    keys -= key_steps > 0;
    steps -= key_steps;
  }
  // Whether somebody must have chosen keys whose hashes collide, in an index of `size` keys that is
  // at most as full as IndexShape allows. By chance, keys are 0.1 to 0.4 steps away on average, and
  // at most 0.9 after many insertions and removals. In a small index it may be more.
  bool TooFar(uint64_t size) const { return crowded || steps > 2 * size + 256; }
};

class Stripe {
 public:
  // An entry of the index. REQUIRES, to use it: the stripe's mutex is held.
  struct Entry {
    Bucket* bucket = nullptr;
    uint32_t index = 0;

    explicit operator bool() const { return bucket != nullptr; }
    uint32_t row() const { return bucket->rows[index].load(std::memory_order_relaxed); }
    uint64_t key_bits() const { return bucket->bits[index].load(std::memory_order_relaxed); }
  };

  ~Stripe();

  // Call this once, before anything else. `number` is the number of this stripe in the table.
  // most_keys: the number of keys that a stripe with scores will hardly exceed, or 0.
  Status Create(uint32_t number, bool bits_are_hashes, RowArena* arena, uint64_t keys,
                EntryColumns columns = {}, uint64_t most_keys = 0);

  uint32_t number() const { return number_; }
  const BucketArray* array() const { return array_.load(); }
  uint64_t size() const { return size_.load(std::memory_order_relaxed); }
  // The number of keys that the stripe can hold before it grows.
  uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  // The number of buckets that the stripe would have for `keys` keys.
  uint64_t BucketsFor(uint64_t keys) const { return shape_.BucketsFor(number_, keys, most_keys_); }
  uint64_t bucket_count() const { return bucket_count_.load(std::memory_order_relaxed); }
  uint64_t index_bytes() const { return bucket_count() * BytesPerBucket(columns_); }
  static uint64_t BytesPerBucket(EntryColumns columns) {
    return sizeof(Bucket) + columns.bytes_per_bucket();
  }
  std::mutex& mutex() { return mutex_; }
  // Whether MakeFreeRows has been called since the list was last freed.
  bool has_free_rows() const { return has_free_rows_.load(std::memory_order_relaxed); }

  // REQUIRES, for the rest: the mutex is held.

  // The entry with `key_bits` for which matches(row id) is true.
  template <typename Matches>
  Entry Find(uint64_t key_bits, uint64_t hash, Matches&& matches) const {
    const BucketArray* array = array_.load(std::memory_order_relaxed);
    SearchPath path(*array, array->HomeOf(hash));
    do {
      Bucket* bucket = path.bucket();
      const uint32_t state = bucket->state.load(std::memory_order_acquire);
      for (uint32_t mask = bucket->Match(key_bits, state); mask != 0; mask &= mask - 1) {
        const Entry entry{bucket, static_cast<uint32_t>(__builtin_ctz(mask))};
        if (matches(entry.row())) return entry;
      }
      if (!(state & Bucket::kOverflow)) break;
    } while (path.Advance());
    return Entry();
  }

  // Makes room for `keys` keys in total. Never shrinks.
  Status Grow(uint64_t keys) { return keys <= limit() ? Status::Ok() : Rebuild(keys); }

  // How many rows a stripe takes from the arena at a time, if the arena has `rows` rows.
  static constexpr uint32_t kLargestRowBlock = 1024;
  static uint32_t RowBlock(uint64_t rows) {
    return static_cast<uint32_t>(std::clamp<uint64_t>(rows / 2048, 64, kLargestRowBlock));
  }

  // Takes a free row. kFetch: prefetch, because the row will be written through the caches.
  template <bool kFetch = true>
  Status TakeRow(uint32_t* row) {
    if (free_rows_.empty()) TFRA_RETURN_IF_ERROR(TakeBlock());
    *row = free_rows_.back();
    free_rows_.pop_back();
    // Rows are written as soon as they are taken: prefetch a row that will be taken soon.
    constexpr size_t kAhead = 8;
    if (kFetch && free_rows_.size() >= kAhead) {
      Prefetch<true>(arena_->At(free_rows_[free_rows_.size() - kAhead]), arena_->map().stride);
    }
    return Status::Ok();
  }
  void GiveRow(uint32_t row) { free_rows_.push_back(row); }
  std::vector<uint32_t>& free_rows() { return free_rows_; }
  // Allocates the list of free rows, so that TakeRow needs no memory but that of the arena.
  Status MakeFreeRows();
  void FreeFreeRows() {
    std::vector<uint32_t>().swap(free_rows_);
    has_free_rows_.store(false, std::memory_order_relaxed);
  }

  // Inserts a key. REQUIRES: the key is not in the stripe; the row is complete; a bucket has a free
  // entry, which is so for a few more keys than limit().
  Entry Insert(uint64_t key_bits, uint64_t hash, uint32_t row, const EntryData& data = {}) {
    const BucketArray& array = *array_.load(std::memory_order_relaxed);
    const Entry entry = Place(array, key_bits, hash, row, data, &displaced_);
    size_.store(size() + 1, std::memory_order_relaxed);
    return entry;
  }

  // Like Insert, for a key whose home bucket has a free entry; faster, because the caller has read
  // the bucket already. array: the stripe's array, or a copy of it. state: the state of `home`. The
  // bucket is not locked meanwhile: readers ignore the new entry until the state says it is in use.
  [[gnu::always_inline]] void InsertAt(const BucketArray& array, Bucket* home, uint32_t state,
                                       uint64_t key_bits, uint32_t row, const EntryData& data) {
    const uint32_t index = static_cast<uint32_t>(__builtin_ctz(~state));
    array.Put(home, index, key_bits, row, data);
    home->EndWrite(state | (1u << index));
    size_.store(size() + 1, std::memory_order_relaxed);
  }

  // The score of an entry. REQUIRES: a stripe with scores.
  uint64_t score(Entry entry) const { return *ScoreOf(entry); }
  void SetScore(Entry entry, uint64_t score) {
    __atomic_store_n(ScoreOf(entry), score, __ATOMIC_RELAXED);
  }

  // Removes entries. The caller gives back their rows, whose ids the entries still contain.
  void Erase(const Entry* entries, size_t count);
  void Erase(Entry entry) { Erase(&entry, 1); }

  // Moves all entries to an array for `keys` keys. REQUIRES: size() <= keys.
  Status Rebuild(uint64_t keys);

  // Rebuilds the array if too many keys are displaced. A displaced key stays where it is, even if
  // its home bucket gets a free entry again. So after many insertions and removals searches get
  // longer. Called between writes, Tidy keeps searches short at little cost.
  //
  // Hashes are public functions, so anybody can choose keys that all have the same home bucket. If
  // searches are longer than chance explains, the rebuilt array gets a random seed, so that nobody
  // can foresee the positions of its keys. Otherwise positions stay the hashes.
  void Tidy() {
    if (NeedsTidying()) [[unlikely]]
      Reorder();
  }
  // Whether Tidy would take a random seed. Writers then call Tidy before they insert another
  // displaced key. After such a Tidy, whether it helped or not, returns false until the stripe has
  // twice as many keys.
  bool NeedsReseed() const { return displaced_.TooFar(size()) && size() >= reseed_size_; }
  // How often the index has taken a new seed.
  uint64_t reseeds() const { return reseeds_.load(std::memory_order_relaxed); }
  // How many buckets all insertions and moves have passed so far: the cost of collisions. For
  // tests.
  uint64_t steps_taken() const { return steps_taken_; }

  // Removes all entries and keeps the array. Calls drop(row) for each row, which gives it back.
  void Clear(const std::function<void(uint32_t row)>& drop);

 private:
  // Gets a block of rows from the arena.
  Status TakeBlock();
  // Inserts a key into the first bucket of its path that is not full, and returns its entry. Adds
  // the distance from its home bucket to `displaced`.
  Entry Place(const BucketArray& array, uint64_t key_bits, uint64_t hash, uint32_t row,
              const EntryData& data, Displacement* displaced);
  uint64_t* ScoreOf(Entry entry) const {
    return array_.load(std::memory_order_relaxed)->ScoreOf(entry.bucket, entry.index);
  }
  uint64_t HashOf(uint64_t key_bits) const {
    return bits_are_hashes_ ? key_bits : MixInt64(key_bits);
  }
  bool NeedsTidying() const {
    // Right after a rebuild, one key in seven is displaced if the index is full. A rebuild visits
    // every bucket, so an index with many buckets and few keys tolerates more displaced keys.
    const uint64_t tolerated =
        std::max({16 + size() / 5, tidy_displaced_ + tidy_displaced_ / 2, bucket_count() / 16});
    return displaced_.keys > tolerated || NeedsReseed();
  }
  // The rebuild of Tidy, to as many buckets as before. If memory runs out, keeps the old array:
  // searches stay long, but correct.
  void Reorder();
  // Moves the entries to an array of `count` buckets.
  Status Replace(uint64_t count, uint64_t seed);
  // --- stripe_growth.cc
  // Makes the system provide the memory of a new array now, on several threads.
  static void Populate(const BucketArray& array, size_t bytes);
  // Copies all entries, with their scores and metadata, to an empty array, and marks the old
  // buckets as moved. The caller publishes the new array; until then, readers use the old one.
  // Returns the displacement of the keys in the new array. Throws bad_alloc only before it marks
  // the first bucket.
  Displacement MoveEntries(const BucketArray& from, const BucketArray& to);

  // Constant after Create.
  uint32_t number_ = 0;
  bool bits_are_hashes_ = false;
  uint64_t most_keys_ = 0;
  EntryColumns columns_{};
  RowArena* arena_ = nullptr;
  IndexShape shape_{};

  std::atomic<BucketArray*> array_{nullptr};
  std::atomic<uint64_t> size_{0};
  std::atomic<uint64_t> limit_{0};
  std::atomic<uint64_t> bucket_count_{0};
  std::atomic<uint64_t> reseeds_{0};
  std::atomic<bool> has_free_rows_{false};
  std::mutex mutex_;
  // Guarded by mutex_.
  Displacement displaced_;
  uint64_t tidy_displaced_ = 0;  // How many keys were displaced after the last rebuild.
  uint64_t reseed_size_ = 0;     // With fewer keys than this, the index takes no new seed.
  uint64_t steps_taken_ = 0;
  std::vector<uint32_t> free_rows_;
};

// Holds the mutexes of some stripes. Takes them in ascending order, which prevents deadlocks.
class StripeLocks {
 public:
  StripeLocks(Stripe* all, StripeSet stripes) : all_(all), stripes_(stripes) {
    for (StripeSet rest = stripes_; rest != 0; rest &= rest - 1) {
      all_[__builtin_ctzll(rest)].mutex().lock();
    }
  }
  ~StripeLocks() {
    for (StripeSet rest = stripes_; rest != 0; rest &= rest - 1) {
      all_[__builtin_ctzll(rest)].mutex().unlock();
    }
  }
  StripeLocks(const StripeLocks&) = delete;
  StripeLocks& operator=(const StripeLocks&) = delete;

 private:
  Stripe* const all_;
  const StripeSet stripes_;
};

}  // namespace tfra
