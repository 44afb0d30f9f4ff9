// How a key is found without a lock: the templates that reads, writes and scans share.
#pragma once

#include "table/table_of.h"

namespace tfra {

template <typename Keys>
inline bool TableOf<Keys>::IsHit(const Probe& probe, std::string_view bytes) const {
  if (probe.row == nullptr) return false;
  if constexpr (Keys::kStrings) {
    // The pointer may only be followed once it is known to have belonged to this entry.
    const Blob* key = LoadBlob(probe.row + layout_.key_offset);
    return StillValid(probe.bucket, probe.state) && key->view() == bytes;
  } else {
    return true;
  }
}

template <typename Keys>
template <typename Read>
bool TableOf<Keys>::ReadEntry(uint64_t key_bits, std::string_view bytes, Read&& read) const {
  for (Backoff backoff;; backoff.Wait()) {
    const BucketArray* array = ArrayFor(key_bits);
    SearchPath path(*array, array->HomeOf(Keys::Hash(key_bits)));
    bool disturbed = false;
    do {
      Bucket* bucket = path.bucket();
      const uint32_t state = bucket->state.load(std::memory_order_acquire);
      // Entries that moved to a new array are good until that is published: rows change only after.
      const auto valid = [&] {
        return StillValid(bucket, state) &&
               (!(state & Bucket::kMoved) || ArrayFor(key_bits) == array);
      };
      disturbed = (state & (Bucket::kLocked | Bucket::kMoved)) == Bucket::kLocked;
      uint32_t mask = disturbed ? 0 : bucket->Match(key_bits, state);
      for (; mask != 0 && !disturbed; mask &= mask - 1) {
        const Stripe::Entry entry{bucket, static_cast<uint32_t>(__builtin_ctz(mask))};
        const uint32_t row_id = entry.row();
        if constexpr (Keys::kStrings) {
          const Blob* key = KeyOf(row_id);
          disturbed = !valid();
          if (disturbed || key->view() != bytes) continue;
        }
        read(*array, entry, row_id);
        if (valid()) return true;
        disturbed = true;
      }
      if (disturbed) break;
      if (!(state & Bucket::kOverflow)) return false;
    } while (path.Advance());
    if (!disturbed) return false;
  }
}

template <typename Keys>
template <Access kAccess, bool kLater, typename KeyAt, typename Fetch, typename Visit,
          typename Late>
[[gnu::always_inline]] inline size_t TableOf<Keys>::Pass(const BucketArray* arrays, uint64_t offset,
                                                         const uint64_t* bits, size_t n,
                                                         size_t row_bytes, KeyAt&& key_at,
                                                         Fetch&& fetch, Visit&& visit, Late&& late,
                                                         uint32_t* rest) const {
  constexpr bool kForWrite = kAccess != Access::kRead;
  // Arrays of scalars, not of Probes: a struct stored by the field and loaded whole would wait, in
  // most CPUs, until all earlier stores have left for memory.
  Bucket* bucket[kBlockKeys];
  std::byte* row[kBlockKeys];
  uint32_t state[kBlockKeys];

  const RowArena::Map rows = arena_.map();
  RowTiers* const tiers = tiers_.get();
  const size_t key_offset = layout_.key_offset;
  const size_t ahead = UseAhead(row_bytes);
  size_t left = 0;
  FindThenUse(
      n, ahead,
      [&](size_t i) TFRA_INLINE {
        const uint64_t hash = Keys::Hash(bits[key_at(i)]);
        const BucketArray& array = arrays[StripeOf(hash)];
        uint64_t place = array.HomeOf(hash);
        // Beyond the end the bucket there tells that the search is undecided.
        if constexpr (kLater) place = std::min(place + offset, array.count);
        Bucket* const start = array.buckets + place;
        __builtin_prefetch(start, kForWrite);
        bucket[i % kBlockKeys] = start;
      },
      [&](size_t i) TFRA_INLINE {
        const size_t r = i % kBlockKeys;
        const uint32_t seen = bucket[r]->state.load(std::memory_order_acquire);
        const uint32_t mask = bucket[r]->Match(bits[key_at(i)], seen);
        state[r] = seen;
        row[r] = nullptr;
        if (mask == 0 || seen & Bucket::kLocked) [[unlikely]]
          return;
        const uint32_t row_id =
            bucket[r]->rows[__builtin_ctz(mask)].load(std::memory_order_relaxed);
        if (tiers != nullptr) [[unlikely]] {
          if (row_id & kSlowRow) {
            // As a bucket that is being written: the key is looked at late.
            state[r] |= Bucket::kLocked;
            return;
          }
          // Calls that write have looked at their rows before.
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
        if (row[r] != nullptr || !(state[r] & kUndecided || (Keys::kStrings && kLater))) {
          done = visit(k, Probe{bucket[r], row[r], state[r]});
        } else if (state[r] & Bucket::kLocked) {
          // The key may be here: what later buckets say does not count.
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
[[gnu::always_inline]] inline void TableOf<Keys>::Probes(const uint64_t* bits, size_t n,
                                                         size_t row_bytes, KeyAt&& key_at,
                                                         Fetch&& fetch, Visit&& visit,
                                                         Late&& late) const {
  constexpr size_t kBlock = 4096;
  // Keys that are not in their first bucket, one in ten or twenty, are mostly in the next; the
  // same loops take the search so many buckets further, unless few keys are left.
  constexpr uint64_t kSteps = 4;
  constexpr size_t kWorthIt = 4;
  uint32_t rest[kBlock];
  for (size_t begin = 0; begin < n; begin += kBlock) {
    BucketArray arrays[kStripes];
    for (uint32_t s = 0; s < kStripes; ++s) arrays[s] = *stripes_[s].array();
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
