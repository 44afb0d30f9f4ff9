#include "index/stripe.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "base/batch.h"
#include "memory/pages.h"
#include "memory/read_guard.h"

namespace tfra {
namespace {

// The bytes of an array: its buckets, the extra bucket at the end, and its columns.
size_t BytesOf(uint64_t buckets, EntryColumns columns) {
  return buckets * Stripe::BytesPerBucket(columns) + sizeof(Bucket);
}

void FreeArray(void* pointer, size_t bytes) {
  auto* array = static_cast<BucketArray*>(pointer);
  FreePages(reinterpret_cast<std::byte*>(array->buckets), bytes);
  delete array;
}

uint32_t ReverseBits(uint32_t number) {
  uint32_t reversed = 0;
  for (uint32_t bit = 0; bit < kStripeBits; ++bit)
    reversed |= ((number >> bit) & 1) << (kStripeBits - 1 - bit);
  return reversed;
}

}  // namespace

uint64_t BucketArray::FirstPosition(uint64_t bucket) const {
  const unsigned __int128 scaled = static_cast<unsigned __int128>(bucket) << 64;
  const uint64_t shifted = static_cast<uint64_t>((scaled + count - 1) / count);
  const uint64_t unit = uint64_t{1} << kStripeBits;
  return shifted / unit + (shifted % unit != 0);
}

IndexShape IndexShape::For(size_t row_bytes) {
  if (row_bytes >= 128) return {65, 2.0};
  if (row_bytes >= 64) return {80, 1.5};
  return {88, 1.25};
}

uint64_t IndexShape::BucketsFor(uint32_t number, uint64_t keys, uint64_t most) const {
  const uint64_t last =
      keys <= most ? most * 100 / (kBucketEntries * percent_full) + 1 : UINT64_MAX;
  constexpr uint64_t kPerHugePage = kHugePage / sizeof(Bucket);
  const double offset = static_cast<double>(ReverseBits(number)) / kStripes;
  for (double exact = std::pow(growth, offset);; exact = std::max(exact * growth, exact + 1)) {
    uint64_t count = static_cast<uint64_t>(exact);
    // A large array fills whole huge pages, since the rest of a huge page would be small pages,
    // which are slower to access. One bucket less, because of the extra bucket at the end.
    if (count >= 16 * kPerHugePage) {
      count = (count + kPerHugePage / 2) / kPerHugePage * kPerHugePage - 1;
    }
    if (count >= last || KeysIn(count) >= keys) return std::min(count, last);
  }
}

Stripe::Entry Stripe::Place(const BucketArray& array, uint64_t key_bits, uint64_t hash,
                            uint32_t row, const EntryData& data, Displacement* displaced) {
  SearchPath path(array, array.HomeOf(hash));
  do {
    Bucket* bucket = path.bucket();
    const uint32_t state = bucket->BeginWrite();
    if ((state & Bucket::kUsed) != Bucket::kUsed) {
      const uint32_t i = static_cast<uint32_t>(__builtin_ctz(~state));
      array.Put(bucket, i, key_bits, row, data);
      bucket->EndWrite(state | (1u << i));
      displaced->Add(path.steps());
      steps_taken_ += path.steps();
      return {bucket, i};
    }
    const uint32_t passed = Bucket::WithPasser(state);
    displaced->crowded |= Bucket::IsCrowded(passed);
    bucket->EndWrite(passed);
  } while (path.Advance());
  return {};
}

Stripe::~Stripe() {
  if (BucketArray* array = array_.load()) FreeArray(array, BytesOf(array->count, columns_));
}

Status Stripe::Create(uint32_t number, bool bits_are_hashes, RowArena* arena, uint64_t keys,
                      EntryColumns columns, uint64_t most_keys) {
  number_ = number;
  bits_are_hashes_ = bits_are_hashes;
  most_keys_ = most_keys;
  columns_ = columns;
  arena_ = arena;
  shape_ = IndexShape::For(arena->map().stride);
  // The last step goes to exactly the size that is needed, so large steps waste no memory.
  if (most_keys > 0) shape_.growth = 2;
  return Replace(BucketsFor(keys), 0);
}

Status Stripe::Rebuild(uint64_t keys) { return Replace(BucketsFor(keys), array()->seed); }

void Stripe::Clear(const std::function<void(uint32_t row)>& drop) {
  const BucketArray* array = array_.load(std::memory_order_relaxed);
  for (uint64_t b = 0; b < array->count; ++b) {
    Bucket& bucket = array->buckets[b];
    const uint32_t state = bucket.BeginWrite();
    for (uint32_t i = 0; i < kBucketEntries; ++i) {
      if (state >> i & 1) drop(bucket.rows[i].load(std::memory_order_relaxed));
      array->Clear(&bucket, i);
    }
    bucket.EndWrite(state & ~(Bucket::kUsed | Bucket::kOverflow));
  }
  size_.store(0, std::memory_order_relaxed);
  displaced_ = {};
  tidy_displaced_ = 0;
}

void Stripe::Reorder() {
  const bool reseed = NeedsReseed();
  // If there is no memory for this, searches are longer, but still correct.
  const bool done = Replace(bucket_count(), reseed ? RandomSeed() : array()->seed).ok();
  if (!reseed) return;
  if (done) reseeds_.fetch_add(1, std::memory_order_relaxed);
  // A new seed does not help if memory ran out, or if the keys are strings with equal hashes. So do
  // not try again for each of the next keys.
  reseed_size_ = 2 * size();
}

Status Stripe::Replace(uint64_t count, uint64_t seed) {
  BucketArray* old = array_.load(std::memory_order_relaxed);
  const size_t bytes = BytesOf(count, columns_);
  const auto out_of_memory = [&] {
    return Status::OutOfMemory("could not allocate " + std::to_string(bytes) +
                               " bytes for the index of " + std::to_string(shape_.KeysIn(count)) +
                               " keys");
  };
  std::byte* pages = AllocatePages(bytes);
  if (pages == nullptr) return out_of_memory();
  std::unique_ptr<BucketArray> fresh;
  try {
    fresh.reset(new BucketArray{count, reinterpret_cast<Bucket*>(pages), columns_, seed});
    Populate(*fresh, bytes);
    fresh->buckets[count].state.store(Bucket::kLocked, std::memory_order_relaxed);
    if (old != nullptr) displaced_ = MoveEntries(*old, *fresh);
  } catch (const std::bad_alloc&) {  // Before the first entry has moved.
    FreePages(pages, bytes);
    return out_of_memory();
  }
  tidy_displaced_ = displaced_.keys;
  array_.store(fresh.release());
  limit_.store(shape_.KeysIn(count), std::memory_order_relaxed);
  bucket_count_.store(count, std::memory_order_relaxed);
  if (old != nullptr) Retire({{old, BytesOf(old->count, columns_), FreeArray}});
  return Status::Ok();
}

Status Stripe::MakeFreeRows() {
  try {
    // Writers may give back all rows of a block of keys, which must not fail: reserve memory for
    // these too.
    free_rows_.reserve(kLargestRowBlock + kBlockKeys);
  } catch (const std::bad_alloc&) {
    return Status::OutOfMemory("out of memory for the list of free rows");
  }
  has_free_rows_.store(true, std::memory_order_relaxed);
  return Status::Ok();
}

Status Stripe::TakeBlock() {
  TFRA_RETURN_IF_ERROR(MakeFreeRows());
  const uint32_t count = RowBlock(arena_->rows());
  uint32_t first;
  TFRA_RETURN_IF_ERROR(arena_->Allocate(count, &first));
  for (uint32_t i = count; i-- > 0;) free_rows_.push_back(first + i);
  return Status::Ok();
}

void Stripe::Erase(const Entry* entries, size_t count) {
  const BucketArray& array = *array_.load(std::memory_order_relaxed);
  for (const Entry* entry = entries; entry < entries + count; ++entry) {
    const auto [bucket, index] = *entry;
    const uint32_t state = bucket->BeginWrite();
    array.Clear(bucket, index);
    bucket->EndWrite(state & ~(1u << index));
    const uint64_t home = array.HomeOf(HashOf(entry->key_bits()));
    if (array.buckets + home == bucket) continue;
    SearchPath path(array, home);
    for (; path.bucket() != bucket; path.Advance()) {
      const uint32_t passed = path.bucket()->BeginWrite();
      path.bucket()->EndWrite(Bucket::LostCount(passed) ? passed : passed - Bucket::kOverflowOne);
    }
    displaced_.Remove(path.steps());
  }
  size_.store(size() - count, std::memory_order_relaxed);
}

}  // namespace tfra
