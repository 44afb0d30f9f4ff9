// How a key is found without a lock. Calls that read, write or scan build their loops from these
// templates.
#pragma once

#include <algorithm>
#include <string_view>

#include "base/batch.h"
#include "keys/keys.h"
#include "memory/blob.h"
#include "state/table_state.h"

namespace tfra {

// What a call does to the keys that it finds: it only reads them; it changes their entries in the
// index; or it changes their rows as well, which in a tiered table then differ from the file.
enum class Access { kRead, kEntry, kRow };

// The result of looking at one bucket: the row of the key (of a string key: of a key with the same
// hash), or null if the key is not in the table. Valid as long as the bucket does not change.
struct Probe {
  Bucket* bucket;
  std::byte* row;
  uint32_t state;  // The state of the bucket before it was read.
};

// Whether a bucket, and the rows that it names, are as they were when its state was `state`.
inline bool StillValid(const Bucket* bucket, uint32_t state) {
  AcquireFence();
  return bucket->state.load(std::memory_order_relaxed) == state;
}

// What Finder::ReadRow reports as the record of a row that is in memory.
inline constexpr uint32_t kInMemory = UINT32_MAX;

// REQUIRES, for all functions: the thread is inside a ReadGuard, or holds the stripe's mutex.
template <typename Keys>
struct Finder {
  const TableState& state;

  // The array of buckets for a key.
  const BucketArray* ArrayFor(uint64_t key_bits) const {
    return state.StripeFor(Keys::Hash(key_bits)).array();
  }
  // Whether the probe found this key, and not another key with the same key_bits.
  bool IsHit(const Probe& probe, std::string_view bytes) const;
  // Finds a key while other threads may write. Calls read(array, entry, row id) again until no
  // thread has changed the row during the call: only the last call is valid. Returns false if the
  // key is not in the table.
  template <typename Read>
  bool ReadEntry(uint64_t key_bits, std::string_view bytes, Read&& read) const;
  // Like ReadEntry, but calls read(row), and only if the row is in memory. record: set to kInMemory
  // then, or to the record of a row in the file. If the key is missing, `record` has no meaning.
  template <typename Read>
  bool ReadRow(uint64_t key_bits, std::string_view bytes, uint32_t* record, Read&& read) const {
    return ReadEntry(key_bits, bytes, [&](const BucketArray&, Stripe::Entry, uint32_t row_id) {
      *record = state.IsSlow(row_id) ? RecordOf(row_id) : kInMemory;
      if (*record == kInMemory) read(state.RowAt(row_id));
    });
  }
  // Whether a key is in the table.
  [[gnu::noinline]] bool ContainsOne(uint64_t key_bits, std::string_view bytes) const {
    return ReadEntry(key_bits, bytes, [](const BucketArray&, Stripe::Entry, uint32_t) {});
  }

  // Goes through n keys and prefetches ahead. key_at(i) is the position of the i-th key in `bits`.
  // Each key ends with a visit that returns true, or with a call of late:
  //
  //   visit(position, probe)   The probe has the row that was found, or null if the key is missing.
  //                            A visit returns false if the row belongs to another string key: then
  //                            the search goes on, and may visit the key again.
  //   late(position)           The key was not found in the first few buckets, its bucket is
  //                            locked, or its row is in the file. The caller has to search for it.
  //   fetch(position)          Called some keys before a visit with a row, to prefetch what the
  //                            visit needs besides `row_bytes` of the row.
  //
  // Equal keys are visited in batch order, if no other thread writes to their stripe and visit
  // moves no entries.
  template <Access kAccess, typename KeyAt, typename Fetch, typename Visit, typename Late>
  void Probes(const uint64_t* bits, size_t n, size_t row_bytes, KeyAt&& key_at, Fetch&& fetch,
              Visit&& visit, Late&& late) const;

  // Whether a row belongs to a string key. REQUIRES: no other key can take the row meanwhile.
  bool HasKey(const std::byte* row, std::string_view bytes) const {
    if constexpr (Keys::kStrings) {
      return LoadBlob(row + state.layout.key_offset)->view() == bytes;
    } else {
      return true;
    }
  }
  // The entry of key i. REQUIRES: the stripe's mutex.
  Stripe::Entry FindEntry(const Stripe& stripe, const KeyBits& bits, size_t i) const {
    return stripe.Find(bits[i], Keys::Hash(bits[i]), [&](uint32_t row_id) {
      if constexpr (Keys::kStrings) return state.KeyOf(row_id)->view() == bits.bytes(i);
      return true;
    });
  }

 private:
  // Probes the home bucket of each key or, with kLater, the bucket `offset` after it. Fills `rest`
  // with the positions of the keys that are still undecided, and returns their number.
  template <Access kAccess, bool kLater, typename KeyAt, typename Fetch, typename Visit,
            typename Late>
  size_t Pass(const BucketArray* arrays, uint64_t offset, const uint64_t* bits, size_t n,
              size_t row_bytes, KeyAt&& key_at, Fetch&& fetch, Visit&& visit, Late&& late,
              uint32_t* rest) const;
};

template <typename Keys>
inline bool Finder<Keys>::IsHit(const Probe& probe, std::string_view bytes) const {
  if (probe.row == nullptr) return false;
  if constexpr (Keys::kStrings) {
    // Check that the bucket has not changed before following the pointer, which may be stale.
    const Blob* key = LoadBlob(probe.row + state.layout.key_offset);
    return StillValid(probe.bucket, probe.state) && key->view() == bytes;
  } else {
    return true;
  }
}

template <typename Keys>
template <typename Read>
bool Finder<Keys>::ReadEntry(uint64_t key_bits, std::string_view bytes, Read&& read) const {
  for (Backoff backoff;; backoff.Wait()) {
    const BucketArray* array = ArrayFor(key_bits);
    SearchPath path(*array, array->HomeOf(Keys::Hash(key_bits)));
    bool disturbed = false;
    do {
      Bucket* bucket = path.bucket();
      const uint32_t seen = bucket->state.load(std::memory_order_acquire);
      // Entries that were copied to a new array can be read here until that array is published:
      // their rows change only later.
      const auto valid = [&] {
        return StillValid(bucket, seen) &&
               (!(seen & Bucket::kMoved) || ArrayFor(key_bits) == array);
      };
      disturbed = (seen & (Bucket::kLocked | Bucket::kMoved)) == Bucket::kLocked;
      uint32_t mask = disturbed ? 0 : bucket->Match(key_bits, seen);
      for (; mask != 0 && !disturbed; mask &= mask - 1) {
        const Stripe::Entry entry{bucket, static_cast<uint32_t>(__builtin_ctz(mask))};
        const uint32_t row_id = entry.row();
        if constexpr (Keys::kStrings) {
          const Blob* key = state.KeyOf(row_id);
          disturbed = !valid();
          if (disturbed || key->view() != bytes) continue;
        }
        read(*array, entry, row_id);
        if (valid()) return true;
        disturbed = true;
      }
      if (disturbed) break;
      if (!(seen & Bucket::kOverflow)) return false;
    } while (path.Advance());
    if (!disturbed) return false;
  }
}

template <typename Keys>
template <Access kAccess, bool kLater, typename KeyAt, typename Fetch, typename Visit,
          typename Late>
[[gnu::always_inline]] inline size_t Finder<Keys>::Pass(const BucketArray* arrays, uint64_t offset,
                                                        const uint64_t* bits, size_t n,
                                                        size_t row_bytes, KeyAt&& key_at,
                                                        Fetch&& fetch, Visit&& visit, Late&& late,
                                                        uint32_t* rest) const {
  constexpr bool kForWrite = kAccess != Access::kRead;
  // Arrays of scalars, not of Probes: most CPUs cannot forward several small stores to one large
  // load, so loading a struct that was stored field by field would wait for the stores.
  Bucket* bucket[kBlockKeys];
  std::byte* row[kBlockKeys];
  uint32_t states[kBlockKeys];

  const RowArena::Map rows = state.arena.map();
  RowTiers* const tiers = state.tiers.get();
  const size_t key_offset = state.layout.key_offset;
  const size_t ahead = UseAhead(row_bytes);
  size_t left = 0;
  FindThenUse(
      n, ahead,
      [&](size_t i) TFRA_INLINE {
        const uint64_t hash = Keys::Hash(bits[key_at(i)]);
        const BucketArray& array = arrays[StripeOf(hash)];
        uint64_t place = array.HomeOf(hash);
        // The extra bucket at the end is locked, so the key stays undecided there.
        if constexpr (kLater) place = std::min(place + offset, array.count);
        Bucket* const start = array.buckets + place;
        __builtin_prefetch(start, kForWrite);
        bucket[i % kBlockKeys] = start;
      },
      [&](size_t i) TFRA_INLINE {
        const size_t r = i % kBlockKeys;
        const uint32_t seen = bucket[r]->state.load(std::memory_order_acquire);
        const uint32_t mask = bucket[r]->Match(bits[key_at(i)], seen);
        states[r] = seen;
        row[r] = nullptr;
        if (mask == 0 || seen & Bucket::kLocked) [[unlikely]]
          return;
        const uint32_t row_id =
            bucket[r]->rows[__builtin_ctz(mask)].load(std::memory_order_relaxed);
        if (tiers != nullptr) [[unlikely]] {
          if (row_id & kSlowRow) {
            // Treat a row on disk like a locked bucket: defer it to late().
            states[r] |= Bucket::kLocked;
            return;
          }
          // Writing calls have raised the recency of their rows already, when they fetched them.
          if constexpr (kAccess == Access::kRead) tiers->Warm(row_id);
          if constexpr (kAccess == Access::kRow) tiers->NoteWrite(row_id);
        }
        row[r] = rows.At(row_id);
      },
      [&](size_t i) TFRA_INLINE {
        const size_t r = i % kBlockKeys;
        if (row[r] == nullptr) [[unlikely]]
          return;
        fetch(key_at(i));
        Prefetch<kForWrite>(row[r], row_bytes);
        if constexpr (Keys::kStrings) __builtin_prefetch(row[r] + key_offset);
      },
      [&](size_t i) TFRA_INLINE {
        const size_t r = i % kBlockKeys, k = key_at(i);
        constexpr uint32_t kUndecided = Bucket::kOverflow | Bucket::kLocked;
        bool done = false;
        if (row[r] != nullptr || !(states[r] & kUndecided || (Keys::kStrings && kLater))) {
          done = visit(k, Probe{bucket[r], row[r], states[r]});
        } else if (states[r] & Bucket::kLocked) {
          // The key may be in this bucket, so later buckets must not decide.
          late(k);
          done = true;
        }
        if constexpr (Keys::kStrings) {
          // The row of a later key has arrived: fetch the bytes of its key, to be compared.
          const size_t later = r + ahead / 2;
          if (later < kBlockKeys && i + ahead / 2 < n && row[later] != nullptr) {
            __builtin_prefetch(LoadBlob(row[later] + key_offset));
          }
        }
        if (!done) rest[left++] = static_cast<uint32_t>(k);
      });
  return left;
}

template <typename Keys>
template <Access kAccess, typename KeyAt, typename Fetch, typename Visit, typename Late>
[[gnu::always_inline]] inline void Finder<Keys>::Probes(const uint64_t* bits, size_t n,
                                                        size_t row_bytes, KeyAt&& key_at,
                                                        Fetch&& fetch, Visit&& visit,
                                                        Late&& late) const {
  constexpr size_t kBlock = 4096;
  // One key in ten or twenty is not in its home bucket; most of these are in the next. The same
  // loops search up to kSteps buckets further, unless only few keys are left.
  constexpr uint64_t kSteps = 4;
  constexpr size_t kWorthIt = 4;
  uint32_t rest[kBlock];
  for (size_t begin = 0; begin < n; begin += kBlock) {
    BucketArray arrays[kStripes];
    for (uint32_t s = 0; s < kStripes; ++s) arrays[s] = *state.stripes[s].array();
    size_t left = Pass<kAccess, false>(
        arrays, 0, bits, std::min(kBlock, n - begin), row_bytes,
        [=](size_t i) TFRA_INLINE { return key_at(begin + i); }, fetch, visit, late, rest);
    for (uint64_t step = 1; step <= kSteps && left >= kWorthIt; ++step) {
      left = Pass<kAccess, true>(
          arrays, SearchPath::Offset(step), bits, left, row_bytes,
          [&](size_t i) TFRA_INLINE { return rest[i]; }, fetch, visit, late, rest);
    }
    for (size_t i = 0; i < left; ++i) late(rest[i]);
  }
}

}  // namespace tfra
