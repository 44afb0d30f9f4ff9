// Replaces whole rows by stores that bypass the caches, without reading the rows.
//
// Such stores are not ordered with other stores, but readers rely on an order: a bucket is locked
// before its row changes, and unlocked afterwards. So there are three loops over a block of keys,
// with fences between them: the first finds the keys and locks their buckets, the second streams
// the rows, the third unlocks the buckets.
#pragma once

#include <algorithm>

#include "base/streaming.h"
#include "state/row_writer.h"

namespace tfra {

// A table with fewer bytes of rows than this fits into the caches, so its rows are not streamed.
inline constexpr size_t kStreamFrom = size_t{64} << 20;

// Streaming stops if more keys of a block than this are in buckets that are locked already.
inline constexpr size_t kMostRepeated = kBlockKeys / 8;

// Whether an Op replaces rows as a whole, so that they can be streamed.
template <typename Keys, typename Op>
inline constexpr bool kReplacesRows = false;
template <typename Keys, size_t kBytes>
inline constexpr bool kReplacesRows<Keys, AssignOp<kBytes>> =
    kStreams && !Keys::kStrings && kBytes % kCacheLine == 0;

// Whether the rows of a call are written past the caches. REQUIRES: kReplacesRows.
template <typename Op>
bool StreamsRows(const TableState& state, const Op& op) {
  return uint64_t{state.arena.rows()} * state.layout.stride >= kStreamFrom &&
         state.tiers == nullptr && !op.context.metadata && op.slots == nullptr &&
         op.value_bytes() % kCacheLine == 0 && state.layout.stride % kCacheLine == 0;
}

// Replaces the rows of keys that are in their home buckets. Stores the positions of the others,
// which are displaced or missing, in `others`, in batch order, and their number in `other_count`.
// Stops early if many keys repeat. Returns how many keys of `order` it has looked at, including
// those in `others`: the caller writes the others and the rest. REQUIRES: kReplacesRows,
// StreamsRows, and the mutexes of the keys' stripes; `others` has room for `count` keys.
template <typename Keys, typename Op>
size_t StreamKeys(const TableState& state, const KeyBits& bits, const uint32_t* order, size_t count,
                  Op op, uint32_t* others, size_t* other_count) {
  BucketArray arrays[kStripes];
  for (uint32_t s = 0; s < kStripes; ++s) arrays[s] = *state.stripes[s].array();
  const RowArena::Map rows = state.arena.map();
  Bucket* bucket[kBlockKeys];
  uint32_t states[kBlockKeys];
  std::byte* row[kBlockKeys];  // Null: not to be streamed.
  uint32_t repeated[kBlockKeys];
  size_t left = 0, again = 0;

  const auto locate = [&](size_t i) TFRA_INLINE {
    const uint64_t hash = Keys::Hash(bits[order[i]]);
    Bucket* const home = arrays[StripeOf(hash)].Home(hash);
    __builtin_prefetch(home, 1);
    bucket[i % kBlockKeys] = home;
  };
  const auto mark = [&](size_t i) TFRA_INLINE {
    const size_t r = i % kBlockKeys;
    const uint32_t seen = bucket[r]->state.load(std::memory_order_relaxed);
    const uint32_t mask = bucket[r]->Match(bits[order[i]], seen);
    row[r] = nullptr;
    if (mask == 0) [[unlikely]] {
      others[left++] = order[i];
    } else if (seen & Bucket::kLocked) [[unlikely]] {
      // The bucket was locked before, perhaps for the same key: write this key after the unlock.
      repeated[again++] = static_cast<uint32_t>(i);
    } else {
      row[r] = rows.At(bucket[r]->rows[__builtin_ctz(mask)].load(std::memory_order_relaxed));
      states[r] = bucket[r]->BeginWrite();
    }
  };
  const auto fetch = [&](size_t i) TFRA_INLINE { op.Fetch(order[i]); };
  const auto stream = [&](size_t i) TFRA_INLINE {
    std::byte* const to = row[i % kBlockKeys];
    if (to != nullptr) StreamBytes(to, op.values + order[i] * op.value_bytes(), op.value_bytes());
  };

  size_t end = 0;
  // If many keys repeat, their rows are in the caches: streaming does not pay.
  for (size_t begin = 0; begin < count && again <= kMostRepeated; begin = end) {
    end = std::min(begin + kBlockKeys, count);
    again = 0;
    FetchAhead(kFindAhead, begin, end, locate, mark);
    StreamFence();
    FetchAhead(UseAhead(op.value_bytes()), begin, end, fetch, stream);
    StreamFence();
    for (size_t i = begin; i < end; ++i) {
      const size_t r = i % kBlockKeys;
      if (row[r] != nullptr) bucket[r]->EndWrite(states[r]);
    }
    for (size_t k = 0; k < again; ++k) {
      const size_t i = repeated[k];
      Bucket* const home = bucket[i % kBlockKeys];
      const uint32_t mask = home->Match(bits[order[i]], home->used());
      const BucketWrite write(home);
      op.Update(order[i], rows.At(home->rows[__builtin_ctz(mask)].load(std::memory_order_relaxed)));
    }
  }
  *other_count = left;
  return end;
}

}  // namespace tfra
