// Replacing whole rows without reading them.
//
// Stores that stream past the caches are not ordered with others, and readers rely on an order: a
// bucket is seen to be written before its row changes, and not to be written any more after. So a
// pipeline has two stages more than a search: buckets are marked as soon as their keys are found,
// and the marks are taken back a group of keys after the rows were streamed. One fence for each
// group is between every two stages.
#pragma once

#include <algorithm>

#include "streaming.h"
#include "table_write.h"

namespace tfra {

// Below so many bytes of rows, those that are written are better kept in the caches.
inline constexpr size_t kStreamFrom = size_t{64} << 20;

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
size_t TableOf<Keys>::StreamKeys(const Words& words, const uint32_t* order, size_t count, Op op,
                                 uint32_t* others, size_t* other_count) const {
  constexpr size_t kToUnmark = kToUse + kAtOnce;
  static_assert(kRing >= kToUnmark + kAtOnce);
  BucketArray arrays[kShards];
  for (uint32_t s = 0; s < kShards; ++s) arrays[s] = *shards_[s].array();
  const RowArena::Map rows = arena_.map();
  Bucket* bucket[kRing];
  uint32_t state[kRing];
  std::byte* row[kRing];  // Null: the key is not in its home.
  size_t left = 0, stop = count;

  const auto locate = [&](size_t i) TFRA_INLINE {
    op.Fetch(order[i]);
    const uint64_t hash = Keys::Hash(words[order[i]]);
    Bucket* const home = arrays[ShardOf(hash)].Home(hash);
    __builtin_prefetch(home, 1);
    bucket[i % kRing] = home;
  };
  const auto mark = [&](size_t i) TFRA_INLINE {
    const size_t r = i % kRing;
    const uint32_t seen = bucket[r]->state.load(std::memory_order_relaxed);
    const uint32_t mask = bucket[r]->Match(words[order[i]], seen);
    row[r] = nullptr;
    if (mask == 0 || seen & Bucket::kLocked) [[unlikely]] {
      // One that was marked before, perhaps for the same key, has to be unmarked first.
      if (seen & Bucket::kLocked) stop = std::min(stop, i);
      return;
    }
    row[r] = rows.At(bucket[r]->rows[__builtin_ctz(mask)].load(std::memory_order_relaxed));
    state[r] = bucket[r]->BeginWrite();
  };
  const auto stream = [&](size_t i) TFRA_INLINE {
    if (std::byte* to = row[i % kRing]) {
      StreamBytes(to, op.values + order[i] * op.value_bytes(), op.value_bytes());
    } else {
      others[left++] = order[i];
    }
  };
  const auto unmark = [&](size_t i) TFRA_INLINE {
    const size_t r = i % kRing;
    if (row[r] != nullptr) bucket[r]->EndWrite(state[r]);
  };

  for (size_t at = 0; at < count + kToUnmark; at += kAtOnce) {
    RunStage(at, kToUnmark, count, unmark);
    RunStage(at, kToUse, count, stream);
    RunStage(at, kToFind, count, mark);
    StreamFence();
    if (stop < count) [[unlikely]] {
      // The stages that are left, for the keys before that one; those after it are not written.
      const auto next = [=](size_t delay) { return at < delay ? 0 : at - delay + kAtOnce; };
      for (size_t i = stop; i < std::min(next(kToFind), count); ++i) unmark(i);
      for (size_t i = next(kToUse); i < stop; ++i) stream(i);
      StreamFence();
      for (size_t i = next(kToUnmark); i < stop; ++i) unmark(i);
      break;
    }
    RunStage(at, 0, count, locate);
  }
  *other_count = left;
  return stop;
}

}  // namespace tfra
