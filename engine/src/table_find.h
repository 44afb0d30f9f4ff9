// How a key is found without a lock: the templates that reads, writes and scans share.
#pragma once

#include "table_of.h"

namespace tfra {

template <typename Keys>
[[gnu::always_inline]] inline typename TableOf<Keys>::Probe TableOf<Keys>::Search(
    Bucket* home, uint64_t word, const RowArena::Map& rows) {
  const uint32_t state = home->state.load(std::memory_order_acquire);
  const uint32_t mask = state & Bucket::kLocked ? 0 : home->Match(word, state);
  if (mask != 0) [[likely]] {
    const uint32_t row = home->rows[__builtin_ctz(mask)].load(std::memory_order_relaxed);
    return {home, rows.At(row), state};
  }
  return {state & (Bucket::kOverflow | Bucket::kLocked) ? home : nullptr, nullptr, state};
}

template <typename Keys>
[[gnu::noinline]] typename TableOf<Keys>::Probe TableOf<Keys>::SearchAll(uint64_t word) const {
  const BucketArray* array = ArrayFor(word);
  SearchPath path(*array, array->HomeOf(Keys::Hash(word)));
  do {
    const Probe probe = Search(path.bucket(), word, arena_.map());
    if (probe.row != nullptr || probe.missing() || probe.state & Bucket::kLocked) return probe;
  } while (path.Advance());
  return {nullptr, nullptr, 0};
}

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
bool TableOf<Keys>::ReadRow(uint64_t word, std::string_view bytes, Read&& read) const {
  for (Backoff backoff;; backoff.Wait()) {
    const BucketArray* array = ArrayFor(word);
    SearchPath path(*array, array->HomeOf(Keys::Hash(word)));
    bool disturbed = false;
    do {
      const Bucket* bucket = path.bucket();
      const uint32_t state = bucket->state.load(std::memory_order_acquire);
      // Entries that moved to a new array are good until that is published: rows change only after.
      const auto valid = [&] {
        return StillValid(bucket, state) && (!(state & Bucket::kMoved) || ArrayFor(word) == array);
      };
      disturbed = (state & (Bucket::kLocked | Bucket::kMoved)) == Bucket::kLocked;
      uint32_t mask = disturbed ? 0 : bucket->Match(word, state);
      for (; mask != 0 && !disturbed; mask &= mask - 1) {
        std::byte* row = RowAt(bucket->rows[__builtin_ctz(mask)].load(std::memory_order_relaxed));
        if constexpr (Keys::kStrings) {
          const Blob* key = LoadBlob(row + layout_.key_offset);
          disturbed = !valid();
          if (disturbed || key->view() != bytes) continue;
        }
        read(row);
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
template <bool kForWrite, typename Number, typename Fetch, typename Visit>
[[gnu::always_inline]] inline void TableOf<Keys>::Probes(const uint64_t* words, size_t n,
                                                         size_t row_bytes, Number&& number,
                                                         Fetch&& fetch, Visit&& visit) const {
  // Rings of scalars, not of Probes: a struct stored by the field and loaded whole would wait, in
  // most CPUs, until all earlier stores have left for memory.
  Bucket* home[kFar];
  Bucket* bucket[kNear];
  std::byte* row[kNear];
  uint32_t state[kNear];

  const RowArena::Map rows = arena_.map();
  const Shard* const shards = shards_.get();
  const size_t key_offset = layout_.key_offset;
  const auto keep = [&](size_t r, const Probe& probe) TFRA_INLINE {
    bucket[r] = probe.bucket;
    row[r] = probe.row;
    state[r] = probe.state;
    if (probe.row == nullptr) return;
    Prefetch<kForWrite>(probe.row, row_bytes);
    if constexpr (Keys::kStrings) __builtin_prefetch(probe.row + key_offset);
  };
  Pipeline(
      n,
      [&](size_t i) TFRA_INLINE {
        const size_t k = number(i);
        fetch(k);
        const uint64_t hash = Keys::Hash(words[k]);
        Bucket* const start = shards[ShardOf(hash)].array()->Home(hash);
        __builtin_prefetch(start, kForWrite);
        home[i % kFar] = start;
      },
      [&](size_t i) TFRA_INLINE {
        const Probe probe = Search(home[i % kFar], words[number(i)], rows);
        // One key in ten lives further on, mostly in the next bucket, needed when settling.
        if (probe.row == nullptr && !probe.missing()) __builtin_prefetch(probe.bucket + 1);
        keep(i % kNear, probe);
      },
      [&](size_t i) TFRA_INLINE {
        const size_t r = i % kNear;
        if (row[r] == nullptr && bucket[r] != nullptr) {
          const uint64_t word = words[number(i)];
          Probe probe = Search(bucket[r] + 1, word, rows);
          const bool undecided = probe.row == nullptr && !probe.missing();
          if (undecided || state[r] & Bucket::kLocked) [[unlikely]]
            probe = SearchAll(word);
          keep(r, probe);
        }
        if constexpr (Keys::kStrings) {
          // The row has arrived: fetch the bytes of its key, to be compared.
          if (row[r] != nullptr) __builtin_prefetch(LoadBlob(row[r] + key_offset));
        }
      },
      [&](size_t i) TFRA_INLINE {
        const size_t r = i % kNear;
        visit(number(i), Probe{bucket[r], row[r], state[r]});
      });
}

}  // namespace tfra
