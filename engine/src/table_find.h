// How a key is found without a lock: the templates that reads, writes and scans share.
#pragma once

#include "table_of.h"

namespace tfra {

// Cache lines of [row, row + bytes).
template <bool kForWrite>
inline void PrefetchRow(const std::byte* row, size_t bytes) {
  for (size_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(row + offset, kForWrite);
}

template <typename Keys>
inline typename TableOf<Keys>::Probe TableOf<Keys>::Locate(uint64_t word) const {
  const uint64_t hash = Keys::Hash(word);
  const BucketArray* array = ShardFor(hash).array();
  return {array, array->Home(hash), nullptr, 0, Probe::kFurther};
}

template <typename Keys>
inline typename TableOf<Keys>::Probe TableOf<Keys>::Search(Probe probe, uint64_t word,
                                                           const RowArena::Map& rows) {
  probe.state = probe.bucket->state.load(std::memory_order_acquire);
  if ((probe.state & (Bucket::kLocked | Bucket::kMoved)) == Bucket::kLocked) [[unlikely]] {
    probe.progress = Probe::kBusy;
  } else if (const uint32_t mask = probe.bucket->Match(word, probe.state)) [[likely]] {
    const int i = __builtin_ctz(mask);
    probe.row = rows.At(probe.bucket->rows[i].load(std::memory_order_relaxed));
    probe.progress = Probe::kFound;
  } else if (!(probe.state & Bucket::kOverflow)) {
    probe.progress = Probe::kMissing;
  } else {
    probe.bucket = probe.array->Next(probe.bucket);
  }
  return probe;
}

template <typename Keys>
[[gnu::noinline]] typename TableOf<Keys>::Probe TableOf<Keys>::SearchOn(
    Probe probe, uint64_t word, const RowArena::Map& rows) {
  const Bucket* const home = probe.array->Home(Keys::Hash(word));
  while (probe.progress == Probe::kFurther) {
    if (probe.bucket == home) {
      probe.progress = Probe::kMissing;
      break;
    }
    probe = Search(probe, word, rows);
  }
  return probe;
}

template <typename Keys>
inline bool TableOf<Keys>::StillValid(const Probe& probe, uint64_t word) const {
  AcquireFence();
  if (probe.bucket->state.load(std::memory_order_relaxed) != probe.state) return false;
  // Entries that moved to a new array are good until that is published: rows change only after.
  return !(probe.state & Bucket::kMoved) || ShardFor(Keys::Hash(word)).array() == probe.array;
}

template <typename Keys>
template <typename Read>
bool TableOf<Keys>::ReadRow(uint64_t word, std::string_view bytes, Read&& read) const {
  for (Backoff backoff;; backoff.Wait()) {
    Probe probe = Locate(word);
    Bucket* const home = probe.bucket;
    bool disturbed = false;
    do {
      probe.state = probe.bucket->state.load(std::memory_order_acquire);
      disturbed = (probe.state & (Bucket::kLocked | Bucket::kMoved)) == Bucket::kLocked;
      uint32_t mask = disturbed ? 0 : probe.bucket->Match(word, probe.state);
      for (; mask != 0 && !disturbed; mask &= mask - 1) {
        probe.row = RowAt(probe.bucket->rows[__builtin_ctz(mask)].load(std::memory_order_relaxed));
        if constexpr (Keys::kStrings) {
          // The pointer may only be followed once it is known to have belonged to this entry.
          const Blob* key = LoadBlob(probe.row + layout_.key_offset);
          disturbed = !StillValid(probe, word);
          if (disturbed || key->view() != bytes) continue;
        }
        read(probe.row);
        if (StillValid(probe, word)) return true;
        disturbed = true;
      }
      if (disturbed) break;
      if (!(probe.state & Bucket::kOverflow)) return false;
      probe.bucket = probe.array->Next(probe.bucket);
    } while (probe.bucket != home);
    if (!disturbed) return false;
  }
}

template <typename Keys>
inline bool TableOf<Keys>::IsHit(const Probe& probe, uint64_t word, std::string_view bytes) const {
  if (probe.progress != Probe::kFound) return false;
  if constexpr (Keys::kStrings) {
    const Blob* key = LoadBlob(probe.row + layout_.key_offset);
    return StillValid(probe, word) && key->view() == bytes;
  } else {
    return true;
  }
}

template <typename Keys>
template <bool kForWrite, typename Visit>
inline void TableOf<Keys>::Probes(const Words& words, size_t begin, size_t end, size_t row_bytes,
                                  const uint32_t* order, Visit&& visit) const {
  // Rings of scalars, not of Probes: a struct stored by the field and loaded whole would wait, in
  // most CPUs, until all earlier stores have left for memory.
  const BucketArray* home_array[kFar];
  Bucket* home[kFar];
  const BucketArray* array[kNear];
  Bucket* bucket[kNear];
  std::byte* row[kNear];
  uint32_t state[kNear];
  typename Probe::Progress progress[kNear];

  const RowArena::Map rows = arena_.map();
  const size_t n = end - begin, key_offset = layout_.key_offset;
  const auto key = [=](size_t i) { return order == nullptr ? begin + i : order[begin + i]; };
  const auto load = [&](size_t r) {
    return Probe{array[r], bucket[r], row[r], state[r], progress[r]};
  };
  const auto keep = [&](size_t r, const Probe& probe) {
    array[r] = probe.array;
    bucket[r] = probe.bucket;
    row[r] = probe.row;
    state[r] = probe.state;
    progress[r] = probe.progress;
    if (probe.progress != Probe::kFound) return;
    PrefetchRow<kForWrite>(probe.row, row_bytes);
    if constexpr (Keys::kStrings) __builtin_prefetch(probe.row + key_offset);
  };
  Pipeline(
      n,
      [&](size_t i) {
        const Probe probe = Locate(words[key(i)]);
        __builtin_prefetch(probe.bucket, kForWrite);
        home_array[i % kFar] = probe.array;
        home[i % kFar] = probe.bucket;
      },
      [&](size_t i) {
        const Probe start{home_array[i % kFar], home[i % kFar], nullptr, 0, Probe::kFurther};
        const Probe probe = Search(start, words[key(i)], rows);
        // One key in ten is further on; its next bucket will be there when settling.
        if (probe.progress == Probe::kFurther) __builtin_prefetch(probe.bucket, kForWrite);
        keep(i % kNear, probe);
      },
      [&](size_t i) {
        const size_t r = i % kNear;
        if (progress[r] == Probe::kFurther) keep(r, SearchOn(load(r), words[key(i)], rows));
        if constexpr (Keys::kStrings) {
          // The row has arrived: fetch the bytes of its key, to be compared.
          if (progress[r] == Probe::kFound) __builtin_prefetch(LoadBlob(row[r] + key_offset));
        }
      },
      [&](size_t i) { visit(key(i), load(i % kNear)); });
}

}  // namespace tfra
