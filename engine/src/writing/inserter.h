// Inserts new keys into tables without a bound.
//
// New keys go through three loops, a block at a time. The first loop fills rows. The second enters
// the keys into their home buckets, where most keys find room. The third searches for the keys
// whose home bucket is full, and enters them into later buckets. The remaining keys, for example
// those that are in the table already, are written one by one.
#pragma once

#include <algorithm>
#include <type_traits>

#include "keys/key_set.h"
#include "keys/pending_blobs.h"
#include "state/finder.h"
#include "state/row_writer.h"
#include "tiers/row_mover.h"
#include "writing/streamer.h"

namespace tfra {

// Prefetches the metadata of the entries in the home bucket of a key.
[[gnu::always_inline]] inline void FetchMetadata(const BucketArray& array, uint64_t hash) {
  __builtin_prefetch(array.metadata() + array.HomeOf(hash) * kBucketEntries, 1);
}

// How many keys ahead the caller's rows are prefetched. They are read nearly in sequence.
inline constexpr size_t kFillAhead = 24;

// Whether an Op may fill a row before its key is searched. If the key turns out to be in the table,
// the row is given back and Update writes the key's own row.
template <typename Keys, typename Op>
inline constexpr bool kFillsAhead =
    !Keys::kStrings && !std::is_same_v<Op, AccumulateOp> && !requires(Op op) { op.stored_bytes; };

// One thread of a writing call. REQUIRES: the mutexes of the stripes of all keys that are passed.
template <typename Keys, typename Op>
class Inserter {
 public:
  // new_keys: the bytes of new string keys. asked: the keys for which this call has asked
  // admission; null if admission does not decide.
  Inserter(const TableState& state, const KeyBits& bits, Op* op, PendingBlobs* new_keys,
           DistinctKeys* asked, Tally* tally)
      : state_(state),
        finder_{state},
        bits_(bits),
        op_(op),
        new_keys_(new_keys),
        asked_(asked),
        tally_(tally) {}

  // Inserts the keys `missing` as the Op says. Keys that are in the table are updated, but slower
  // than by WriteKeys. REQUIRES: count <= kKeysPerLock.
  Status Insert(const uint32_t* missing, size_t count);

 private:
  // Inserts the keys that are not in the table, as long as there is room. Stores the others in
  // `rest`, equal keys in batch order, and returns their number. kStreamed: rows are written past
  // the caches, see StreamsRows. REQUIRES: kFillsAhead.
  template <bool kStreamed>
  size_t FillAndEnter(const uint32_t* keys, size_t count, uint32_t* rest);
  // Inserts or drops a key that is not in the table, as the NewKeys of the Op says.
  Status InsertKey(size_t i, uint64_t hash, Stripe* stripe);
  // Inserts a key. times: how often the key was seen, this time included.
  Status InsertRow(size_t i, uint64_t hash, Stripe* stripe, uint32_t times);

  const TableState& state_;
  const Finder<Keys> finder_;
  const KeyBits& bits_;
  Op* const op_;
  PendingBlobs* const new_keys_;
  DistinctKeys* const asked_;
  Tally* const tally_;
};

template <typename Keys, typename Op>
template <bool kStreamed>
size_t Inserter<Keys, Op>::FillAndEnter(const uint32_t* keys, size_t count, uint32_t* rest) {
  const TableState& state = state_;
  const KeyBits& bits = bits_;
  constexpr uint32_t kNone = UINT32_MAX;
  BucketArray arrays[kStripes];
  for (uint32_t s = 0; s < kStripes; ++s) arrays[s] = *state.stripes[s].array();
  const RowArena::Map rows = state.arena.map();
  // A copy to which nothing else refers, so that the loops can keep it in registers.
  std::conditional_t<std::is_trivially_copyable_v<Op>, Op, Op&> hot_op = *op_;
  const bool metadata = hot_op.context.metadata;
  uint64_t hashes[kBlockKeys];
  uint32_t row_ids[kBlockKeys];   // kNone: no row was taken.
  uint32_t deferred[kBlockKeys];  // Indexes in `keys` of those that the second loop does not enter.
  size_t left = 0, away = 0;
  StripeSet untidy = 0;  // Stripes that take no displaced keys before Tidy.
  // A stripe with less room takes no more keys in these loops, so that equal keys keep their order.
  uint64_t room = std::min(kBlockKeys, count);

  const auto fetch = [&](size_t k) TFRA_INLINE { hot_op.Fetch(keys[k]); };
  const auto fill = [&](size_t k) TFRA_INLINE {
    const size_t i = keys[k], r = k % kBlockKeys;
    hashes[r] = Keys::Hash(bits[i]);
    Stripe& stripe = state.StripeFor(hashes[r]);
    row_ids[r] = kNone;
    if (stripe.size() + room > stripe.limit()) [[unlikely]]
      return;
    if (!stripe.TakeRow<!kStreamed>(&row_ids[r]).ok()) [[unlikely]] {
      room = kMaxKeys;
      return;
    }
    std::byte* const to = rows.At(row_ids[r]);
    if constexpr (kStreamed) {
      StreamBytes(to, hot_op.values + i * hot_op.value_bytes(), hot_op.value_bytes());
      hot_op.context.InitSlots(to);
    } else {
      EditRow(to, state.layout.stride,
              [&](std::byte* row) TFRA_INLINE { hot_op.Fill(i, bits[i], row); });
    }
  };
  const auto locate = [&](size_t k) TFRA_INLINE {
    const uint64_t hash = hashes[k % kBlockKeys];
    const BucketArray& array = arrays[StripeOf(hash)];
    __builtin_prefetch(array.Home(hash), 1);
    if (metadata) FetchMetadata(array, hash);
  };
  const auto data = [&](size_t i) TFRA_INLINE {
    return EntryData{kNoScore, metadata ? FreshMetadata(hot_op, i, 1) : RowMetadata{}};
  };
  const auto enter = [&](size_t k) TFRA_INLINE {
    const size_t i = keys[k], r = k % kBlockKeys;
    const BucketArray& array = arrays[StripeOf(hashes[r])];
    Stripe& stripe = state.StripeFor(hashes[r]);
    Bucket* const home = array.Home(hashes[r]);
    const uint32_t seen = home->state.load(std::memory_order_relaxed);
    const bool decided = !(seen & Bucket::kOverflow) && (seen & Bucket::kUsed) != Bucket::kUsed;
    if (row_ids[r] == kNone || !decided || home->Match(bits[i], seen) != 0) [[unlikely]] {
      // Later duplicates also land here, which preserves batch order.
      deferred[away++] = static_cast<uint32_t>(k);
    } else {
      stripe.InsertAt(array, home, seen, bits[i], row_ids[r], data(i));
    }
  };
  const auto fetch_next = [&](size_t s) TFRA_INLINE {
    const uint64_t hash = hashes[deferred[s] % kBlockKeys];
    Bucket* const home = arrays[StripeOf(hash)].Home(hash);
    __builtin_prefetch(home + SearchPath::Offset(1), 1);
    __builtin_prefetch(home + SearchPath::Offset(2), 1);
  };
  const auto enter_deferred = [&](size_t s) TFRA_INLINE {
    const size_t i = keys[deferred[s]], r = deferred[s] % kBlockKeys;
    Stripe& stripe = state.StripeFor(hashes[r]);
    // Once a stripe needs Tidy, its later displaced keys of this call wait too, so that equal keys
    // keep their order.
    if (stripe.NeedsReseed()) [[unlikely]]
      untidy |= StripeSet{1} << stripe.number();
    const bool waits = untidy >> stripe.number() & 1;
    if (row_ids[r] == kNone) {
      rest[left++] = static_cast<uint32_t>(i);
    } else if (waits || finder_.FindEntry(stripe, bits, i)) {
      stripe.GiveRow(row_ids[r]);
      rest[left++] = static_cast<uint32_t>(i);
    } else {
      stripe.Insert(bits[i], hashes[r], row_ids[r], data(i));
    }
  };
  for (size_t begin = 0; begin < count; begin += kBlockKeys) {
    const size_t end = std::min(begin + kBlockKeys, count);
    FetchAhead(kFillAhead, begin, end, fetch, fill);
    if constexpr (kStreamed) StreamFence();
    away = 0;
    FetchAhead(kFindAhead, begin, end, locate, enter);
    FetchAhead(kFindAhead, 0, away, fetch_next, enter_deferred);
  }
  tally_->inserts += count - left;
  return left;
}

template <typename Keys, typename Op>
Status Inserter<Keys, Op>::Insert(const uint32_t* missing, size_t count) {
  const TableState& state = state_;
  const KeyBits& bits = bits_;
  Op* const op = op_;
  uint32_t rest[kKeysPerLock];
  if constexpr (kFillsAhead<Keys, Op>) {
    // Tiered tables and tables with admission insert key by key, which is slower.
    if (count > 0 && op->Inserts(missing[0]) && op->context.new_keys != NewKeys::kDrop &&
        state.admission == nullptr && state.tiers == nullptr) {
      bool streamed = false;
      if constexpr (kReplacesRows<Keys, Op>) streamed = StreamsRows(state, *op);
      count = streamed ? FillAndEnter<kReplacesRows<Keys, Op>>(missing, count, rest)
                       : FillAndEnter<false>(missing, count, rest);
      missing = rest;
    }
  }
  constexpr size_t kToHome = 24, kToNext = 8;
  const auto home_of = [&](size_t k) TFRA_INLINE {
    const uint64_t hash = Keys::Hash(bits[missing[k]]);
    return state.StripeFor(hash).array()->Home(hash);
  };
  const bool metadata = op->context.metadata;
  const auto fetch = [&](size_t k) TFRA_INLINE {
    const uint64_t hash = Keys::Hash(bits[missing[k]]);
    const BucketArray& array = *state.StripeFor(hash).array();
    __builtin_prefetch(array.Home(hash), 1);
    if (metadata) FetchMetadata(array, hash);
    op->Fetch(missing[k]);
  };
  for (size_t k = 0; k < std::min(kToHome, count); ++k) fetch(k);
  for (size_t k = 0; k < count; ++k) {
    if (k + kToHome < count) fetch(k + kToHome);
    // A key whose home is full goes to the next bucket.
    if (k + kToNext < count) {
      const Bucket* home = home_of(k + kToNext);
      if (home->used() == Bucket::kUsed) __builtin_prefetch(home + 1, 1);
    }
    const size_t i = missing[k];
    const uint64_t hash = Keys::Hash(bits[i]);
    Stripe& stripe = state.StripeFor(hash);
    // An equal key may have been inserted since.
    if (const auto entry = finder_.FindEntry(stripe, bits, i)) {
      std::byte* row;
      TFRA_RETURN_IF_ERROR(RowMover(state).RowToWrite(&stripe, entry, Op::kChangesRows, &row));
      UpdateRow(state, stripe.array(), i, entry, row, op, tally_);
    } else if (!op->Inserts(i)) {
      ++tally_->exists_mismatch;
    } else {
      TFRA_RETURN_IF_ERROR(InsertKey(i, hash, &stripe));
    }
  }
  return Status::Ok();
}

template <typename Keys, typename Op>
[[gnu::always_inline]] inline Status Inserter<Keys, Op>::InsertKey(size_t i, uint64_t hash,
                                                                   Stripe* stripe) {
  bool enters = op_->context.new_keys != NewKeys::kDrop;
  uint32_t times = 1;
  if (asked_ != nullptr) {
    // If this call has asked for an equal key before, that key was not admitted.
    enters = false;
    if (asked_->Add(static_cast<uint32_t>(i))) {
      TFRA_RETURN_IF_ERROR(MayEnter<Keys>(state_, bits_, i, op_->context, &enters, &times));
    }
  }
  if (enters) return InsertRow(i, hash, stripe, times);
  // Accumulate counts all keys that it leaves alone as exists_mismatch.
  ++(std::is_same_v<Op, AccumulateOp> ? tally_->exists_mismatch : tally_->not_admitted);
  return Status::Ok();
}

template <typename Keys, typename Op>
[[gnu::always_inline]] inline Status Inserter<Keys, Op>::InsertRow(size_t i, uint64_t hash,
                                                                   Stripe* stripe, uint32_t times) {
  // The key's bytes were allocated and room was made before, unless another thread has removed the
  // key or taken the room since.
  if constexpr (Keys::kStrings) TFRA_RETURN_IF_ERROR(new_keys_->Make(i, bits_.bytes(i), "key"));
  TFRA_RETURN_IF_ERROR(stripe->Grow(stripe->size() + 1));
  if (stripe->NeedsReseed()) [[unlikely]]
    stripe->Tidy();
  uint32_t row_id = 0;
  TFRA_RETURN_IF_ERROR(state_.TakeRow(stripe, &row_id));
  EditRow(state_.RowAt(row_id), state_.layout.stride, [&](std::byte* row) {
    op_->Fill(i, bits_[i], row);
    if constexpr (Keys::kStrings) {
      Blob* key = new_keys_->Take(i);
      tally_->string_bytes += static_cast<int64_t>(key->allocated_bytes());
      StoreBlob(row + state_.layout.key_offset, key);
    }
  });
  stripe->Insert(bits_[i], hash, row_id, {kNoScore, FreshMetadata(*op_, i, times)});
  NoteEntered<Keys>(state_, bits_, i);
  ++tally_->inserts;
  return Status::Ok();
}

}  // namespace tfra
