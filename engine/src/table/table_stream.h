// Replacing whole rows without reading them.
//
// Stores that stream past the caches are not ordered with others, and readers rely on an order: a
// bucket is seen to be written before its row changes, and not to be written any more after. So
// the buckets of a block of keys are marked when the keys are found, and the marks are taken back
// when all its rows were streamed, with a fence between every two of these loops.
#pragma once

#include <algorithm>

#include "base/streaming.h"
#include "table/table_write.h"

namespace tfra {

// Below so many bytes of rows, those that are written are better kept in the caches.
inline constexpr size_t kStreamFrom = size_t{64} << 20;

// Of the keys of a block so many may be in buckets that were marked for others, or streaming is
// given up.
inline constexpr size_t kMostRepeated = kBlockKeys / 8;

// Whether an Op can be told to replace rows as a whole.
template <typename Keys, typename Op>
inline constexpr bool kReplacesRows = false;
template <typename Keys, size_t kBytes>
inline constexpr bool kReplacesRows<Keys, AssignOp<kBytes>> =
    kStreams && !Keys::kStrings && kBytes % kCacheLine == 0;

template <typename Keys>
template <typename Op>
bool TableOf<Keys>::StreamsRows(const Op& op) const {
  return uint64_t{arena_.rows()} * layout_.stride >= kStreamFrom && tiers_ == nullptr &&
         !op.context.metadata && op.slots == nullptr && op.value_bytes() % kCacheLine == 0 &&
         layout_.stride % kCacheLine == 0;
}

template <typename Keys>
template <typename Op>
size_t TableOf<Keys>::StreamKeys(const KeyBits& bits, const uint32_t* order, size_t count, Op op,
                                 uint32_t* others, size_t* other_count) const {
  BucketArray arrays[kStripes];
  for (uint32_t s = 0; s < kStripes; ++s) arrays[s] = *stripes_[s].array();
  const RowArena::Map rows = arena_.map();
  Bucket* bucket[kBlockKeys];
  uint32_t state[kBlockKeys];
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
      // One that was marked before, perhaps for the same key, has to be unmarked first.
      repeated[again++] = static_cast<uint32_t>(i);
    } else {
      row[r] = rows.At(bucket[r]->rows[__builtin_ctz(mask)].load(std::memory_order_relaxed));
      state[r] = bucket[r]->BeginWrite();
    }
  };
  const auto fetch = [&](size_t i) TFRA_INLINE { op.Fetch(order[i]); };
  const auto stream = [&](size_t i) TFRA_INLINE {
    std::byte* const to = row[i % kBlockKeys];
    if (to != nullptr) StreamBytes(to, op.values + order[i] * op.value_bytes(), op.value_bytes());
  };

  size_t end = 0;
  // Where keys come again and again, their rows are in the caches.
  for (size_t begin = 0; begin < count && again <= kMostRepeated; begin = end) {
    end = std::min(begin + kBlockKeys, count);
    again = 0;
    FetchAhead(kFindAhead, begin, end, locate, mark);
    StreamFence();
    FetchAhead(UseAhead(op.value_bytes()), begin, end, fetch, stream);
    StreamFence();
    for (size_t i = begin; i < end; ++i) {
      const size_t r = i % kBlockKeys;
      if (row[r] != nullptr) bucket[r]->EndWrite(state[r]);
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
