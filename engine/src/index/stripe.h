// A part of the index: the keys whose hash starts with the same bits, and their row numbers.
//
// The index and the rows that it names change only under the stripe's mutex. Readers take no lock:
// they check, bucket by bucket, that what they read did not change meanwhile.
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

// In the place of a score: there is no key. Larger than all scores.
inline constexpr uint64_t kNoScore = UINT64_MAX;

// What the entries of an index have besides their keys and rows.
struct EntryColumns {
  bool scores = false;
  bool metadata = false;

  uint64_t bytes_per_bucket() const {
    return (uint64_t{scores} + uint64_t{metadata}) * kBucketEntries * sizeof(uint64_t);
  }
};

// Of one entry, where there are such columns.
struct EntryData {
  uint64_t score = kNoScore;
  RowMetadata metadata{};
};

// The buckets of a stripe, in the order of the positions of the keys whose search starts in them.
// Any number of them: growing need not double, and a position has the same meaning in every array
// with the same seed. One more bucket, always marked as being written, stands at the end: it lets a
// search look at the next bucket without asking whether there is one.
struct BucketArray {
  uint64_t count;
  Bucket* buckets;
  EntryColumns columns;
  // 0: the position of a key is its hash, so that the layout is the same in every process. Other
  // seeds are random: see Stripe::Tidy.
  uint64_t seed = 0;

  // Where the key of a hash belongs in the order of the stripe. The top bits, which name the
  // stripe, are those of the hash.
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

  // The columns: kBucketEntries numbers for each bucket. Those of a column are beside each other,
  // so that passes over all of them, or the search for the lowest score, meet few cache lines.
  // Written under the stripe's mutex by atomic stores, read without it by atomic loads.

  // The scores, kNoScore where there is no entry. REQUIRES: columns.scores.
  uint64_t* scores() const { return reinterpret_cast<uint64_t*>(buckets + count + 1); }
  uint64_t* ScoreOf(const Bucket* bucket, uint32_t index) const {
    return scores() + PlaceOf(bucket, index);
  }

  // The metadata, 0 where there is no entry. REQUIRES, for these: columns.metadata.
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
  // Writes an entry, all but the bucket's state.
  void Put(Bucket* bucket, uint32_t index, uint64_t key_bits, uint32_t row,
           const EntryData& data) const {
    bucket->bits[index].store(key_bits, std::memory_order_relaxed);
    bucket->rows[index].store(row, std::memory_order_relaxed);
    if (columns.scores) __atomic_store_n(ScoreOf(bucket, index), data.score, __ATOMIC_RELAXED);
    if (columns.metadata) SetMetadata(bucket, index, data.metadata);
  }
  // Says that there is no entry: columns are searched without the buckets.
  void Clear(const Bucket* bucket, uint32_t index) const {
    if (columns.scores) __atomic_store_n(ScoreOf(bucket, index), kNoScore, __ATOMIC_RELAXED);
    if (columns.metadata) SetMetadata(bucket, index, {});
  }

 private:
  uint64_t PlaceOf(const Bucket* bucket, uint32_t index) const {
    return static_cast<uint64_t>(bucket - buckets) * kBucketEntries + index;
  }
};

// How full an index gets before it grows, and by which factor it then does. An emptier index is
// faster, because more keys are in their home; how much memory that is worth depends on the rows.
struct IndexShape {
  uint32_t percent_full;
  double growth;

  static IndexShape For(size_t row_bytes);

  uint64_t KeysIn(uint64_t buckets) const { return buckets * kBucketEntries * percent_full / 100; }
  // The number of buckets that stripe `number` has for `keys` keys. Each stripe takes its steps at
  // sizes of its own, so that at any time some stripes are just before growing and some just after:
  // no call meets the growth of all, and memory rises evenly.
  // With `most` keys, beyond which it will hardly grow, the last step is to just what they need. 0:
  // any number.
  uint64_t BucketsFor(uint32_t number, uint64_t keys, uint64_t most = 0) const;
};

// The buckets that a key may be in, in the order of the search: its home, the next one, then by
// longer and longer steps, so that full neighbourhoods do not fill each other up; at last one by
// one, so that every bucket is reached.
class SearchPath {
 public:
  SearchPath(const BucketArray& array, uint64_t home) : array_(array), place_(home) {}

  Bucket* bucket() const { return array_.buckets + place_; }
  // How many buckets were passed.
  uint64_t steps() const { return steps_; }

  // How far the n-th bucket is from the first, where that does not leave the array.
  static constexpr uint64_t Offset(uint64_t n) { return n * (n + 1) / 2; }

  // Returns false at the end.
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

// How far the keys of an index are from their homes, in steps of their search paths.
struct Displacement {
  uint64_t keys = 0;     // That are not in their homes.
  uint64_t steps = 0;    // Of all keys together.
  bool crowded = false;  // A bucket was passed by more keys than chance sends there.

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
  // Whether chance cannot be the reason, in an index of `size` keys that is at most as full as
  // IndexShape allows: somebody chose keys whose hashes collide. By chance a key is 0.1 to 0.4
  // steps away, at most 0.9 where keys come and go; a few keys in few buckets, more.
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

  // Once, before anything else. `number` is this stripe's place in the table. most_keys: of a
  // stripe with scores, how many keys it is expected to have in the end.
  Status Create(uint32_t number, bool bits_are_hashes, RowArena* arena, uint64_t keys,
                EntryColumns columns = {}, uint64_t most_keys = 0);

  uint32_t number() const { return number_; }
  const BucketArray* array() const { return array_.load(); }
  uint64_t size() const { return size_.load(std::memory_order_relaxed); }
  // Keys it can hold before it grows.
  uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  // The number of buckets it would have for `keys` keys.
  uint64_t BucketsFor(uint64_t keys) const { return shape_.BucketsFor(number_, keys, most_keys_); }
  uint64_t bucket_count() const { return bucket_count_.load(std::memory_order_relaxed); }
  uint64_t index_bytes() const { return bucket_count() * BytesPerBucket(columns_); }
  static uint64_t BytesPerBucket(EntryColumns columns) {
    return sizeof(Bucket) + columns.bytes_per_bucket();
  }
  std::mutex& mutex() { return mutex_; }

  // The rest REQUIRES the mutex.

  // The entry with `key_bits` for which matches(row number) is true.
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

  // Makes room for `keys` keys in all. May be called at any size; never shrinks.
  Status Grow(uint64_t keys) { return keys <= limit() ? Status::Ok() : Rebuild(keys); }

  // So many rows are taken from the arena at a time, if that has had so many.
  static constexpr uint32_t kLargestRowBlock = 1024;
  static uint32_t RowBlock(uint64_t rows) {
    return static_cast<uint32_t>(std::clamp<uint64_t>(rows / 2048, 64, kLargestRowBlock));
  }

  // Takes a row that nobody uses. kFetch: it will be written in the caches.
  template <bool kFetch = true>
  Status TakeRow(uint32_t* row) {
    if (free_rows_.empty()) TFRA_RETURN_IF_ERROR(TakeBlock());
    *row = free_rows_.back();
    free_rows_.pop_back();
    // Rows are written as soon as they are taken: have the next but some ready.
    constexpr size_t kAhead = 8;
    if (kFetch && free_rows_.size() >= kAhead) {
      Prefetch<true>(arena_->At(free_rows_[free_rows_.size() - kAhead]), arena_->map().stride);
    }
    return Status::Ok();
  }
  void GiveRow(uint32_t row) { free_rows_.push_back(row); }
  std::vector<uint32_t>& free_rows() { return free_rows_; }

  // Enters a key that is not there; the row must be complete. REQUIRES: room for it; that is a
  // little more than limit() says.
  Entry Insert(uint64_t key_bits, uint64_t hash, uint32_t row, const EntryData& data = {}) {
    const BucketArray& array = *array_.load(std::memory_order_relaxed);
    const Entry entry = Place(array, key_bits, hash, row, data, &displaced_);
    size_.store(size() + 1, std::memory_order_relaxed);
    return entry;
  }

  // The same for one whose home, in this array, has room. Readers need not be kept off the bucket:
  // they do not look at an entry before its state names it.
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

  // Takes entries out. Their rows, which they still name, are the caller's to give back.
  void Erase(const Entry* entries, size_t count);
  void Erase(Entry entry) { Erase(&entry, 1); }

  // Moves all entries into an array of the size that fits `keys` keys. REQUIRES: size() <= keys.
  Status Rebuild(uint64_t keys);

  // Keys stay where they were put, also when their home has room again; so a table whose keys come
  // and go slowly loses its order, and searches get longer. Puts the entries in order again when
  // that has gone too far. Called between writes, it keeps searches short at little cost.
  //
  // Hashes are public functions, so anybody can choose keys that all start their search in one
  // bucket. An index whose searches are longer than chance makes them takes a random seed: its keys
  // are then in an order that nobody can foresee. Other stripes, and tables whose keys nobody
  // chose, keep the order of the hashes.
  void Tidy() {
    if (NeedsTidying()) [[unlikely]]
      Reorder();
  }
  // Whether Tidy would take a random seed. Inserts of displaced keys then wait for it.
  bool NeedsReseed() const { return displaced_.TooFar(size()) && size() >= reseed_size_; }
  // How often the index took a new seed.
  uint64_t reseeds() const { return reseeds_.load(std::memory_order_relaxed); }
  // Buckets that were passed by all inserts and moves so far: what collisions have cost. For tests.
  uint64_t steps_taken() const { return steps_taken_; }

  // Takes all entries out and keeps the room for as many. Calls drop(row) for each row, which is
  // the caller's to give back.
  void Clear(const std::function<void(uint32_t row)>& drop);

 private:
  // Gets a block of rows from the arena.
  Status TakeBlock();
  // Enters a key into the first bucket of its path that is not full. Returns where that is.
  // Adds how far that is from its home to `displaced`.
  Entry Place(const BucketArray& array, uint64_t key_bits, uint64_t hash, uint32_t row,
              const EntryData& data, Displacement* displaced);
  uint64_t* ScoreOf(Entry entry) const {
    return array_.load(std::memory_order_relaxed)->ScoreOf(entry.bucket, entry.index);
  }
  uint64_t HashOf(uint64_t key_bits) const {
    return bits_are_hashes_ ? key_bits : MixInt64(key_bits);
  }
  bool NeedsTidying() const {
    // In the best order, one key in seven is displaced when the index is full. A rebuild visits
    // every bucket, so an index with many buckets and few keys tolerates more.
    const uint64_t tolerated =
        std::max({16 + size() / 5, tidy_displaced_ + tidy_displaced_ / 2, bucket_count() / 16});
    return displaced_.keys > tolerated || NeedsReseed();
  }
  void Reorder();
  // Moves the entries to an array of `count` buckets.
  Status Replace(uint64_t count, uint64_t seed);
  // --- stripe_move.cc
  // Gives a new array its memory at once.
  static void Populate(const BucketArray& array, size_t bytes);
  // Copies all entries to an array that has none and that nobody else knows. They can be read in
  // the old one until the new one is published. Returns how far they are from their homes.
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
  std::mutex mutex_;
  // Guarded by mutex_.
  Displacement displaced_;
  uint64_t tidy_displaced_ = 0;  // How many keys were displaced in the best order.
  uint64_t reseed_size_ = 0;     // Before it has so many keys, the index takes no other seed.
  uint64_t steps_taken_ = 0;
  std::vector<uint32_t> free_rows_;
};

// Holds the mutexes of some stripes. Always taken in ascending order, so that threads do not wait
// for one another in a circle.
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
