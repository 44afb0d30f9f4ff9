// Entering new keys.
//
// They are taken through three loops, a block at a time: one fills rows, one names them in the
// index, where keys have room in their homes, which is where most go, and one looks for those keys
// that have not, and enters them further on. What is left then, as keys that came before, is
// written key by key.
#pragma once

#include <algorithm>

#include "table/table_stream.h"

namespace tfra {

// Prefetches the metadata of the entries of a key's home.
[[gnu::always_inline]] inline void FetchMetadata(const BucketArray& array, uint64_t hash) {
  __builtin_prefetch(array.metadata() + array.HomeOf(hash) * kBucketEntries, 1);
}

// What callers give is read in the order of the batch, more or less.
inline constexpr size_t kFillAhead = 24;

// Whether rows may be filled before their keys are looked for: what Fill writes, Update would write
// again, and whether a key is to be inserted is the same for all.
template <typename Keys, typename Op>
inline constexpr bool kFillsAhead =
    !Keys::kStrings && !std::is_same_v<Op, AccumulateOp> && !requires(Op op) { op.stored_bytes; };

template <typename Keys>
template <bool kStreamed, typename Op>
size_t TableOf<Keys>::FillAndEnter(const KeyBits& bits, const uint32_t* keys, size_t count, Op* op,
                                   uint32_t* rest, Tally* tally) {
  constexpr uint32_t kNone = UINT32_MAX;
  BucketArray arrays[kStripes];
  for (uint32_t s = 0; s < kStripes; ++s) arrays[s] = *stripes_[s].array();
  const RowArena::Map rows = arena_.map();
  // The loops' own, which nothing else refers to, so that it can be kept in registers.
  std::conditional_t<std::is_trivially_copyable_v<Op>, Op, Op&> hot_op = *op;
  const bool metadata = hot_op.context.metadata;
  uint64_t hashes[kBlockKeys];
  uint32_t numbers[kBlockKeys];   // Of rows, or kNone.
  uint32_t deferred[kBlockKeys];  // Places of keys that the second loop does not enter.
  size_t left = 0, away = 0;
  StripeSet untidy = 0;  // Stripes that take no displaced key before Tidy.
  // A stripe with less room takes no more keys: of equal ones the first must not be left alone.
  uint64_t room = std::min(kBlockKeys, count);

  const auto fetch = [&](size_t k) TFRA_INLINE { hot_op.Fetch(keys[k]); };
  const auto fill = [&](size_t k) TFRA_INLINE {
    const size_t i = keys[k], r = k % kBlockKeys;
    hashes[r] = Keys::Hash(bits[i]);
    Stripe& stripe = StripeFor(hashes[r]);
    numbers[r] = kNone;
    if (stripe.size() + room > stripe.limit()) [[unlikely]]
      return;
    if (!stripe.TakeRow<!kStreamed>(&numbers[r]).ok()) [[unlikely]] {
      room = kMaxKeys;
      return;
    }
    std::byte* const to = rows.At(numbers[r]);
    if constexpr (kStreamed) {
      StreamBytes(to, hot_op.values + i * hot_op.value_bytes(), hot_op.value_bytes());
      hot_op.context.InitSlots(to);
    } else {
      EditRow(to, layout_.stride,
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
    Stripe& stripe = StripeFor(hashes[r]);
    Bucket* const home = array.Home(hashes[r]);
    const uint32_t state = home->state.load(std::memory_order_relaxed);
    const bool decided = !(state & Bucket::kOverflow) && (state & Bucket::kUsed) != Bucket::kUsed;
    if (numbers[r] == kNone || !decided || home->Match(bits[i], state) != 0) [[unlikely]] {
      // Later duplicates also land here, which preserves batch order.
      deferred[away++] = static_cast<uint32_t>(k);
    } else {
      stripe.InsertAt(array, home, state, bits[i], numbers[r], data(i));
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
    Stripe& stripe = StripeFor(hashes[r]);
    // Once a stripe needs Tidy, its later displaced keys of this call wait too, so that equal keys
    // keep their order.
    if (stripe.NeedsReseed()) [[unlikely]]
      untidy |= StripeSet{1} << stripe.number();
    const bool waits = untidy >> stripe.number() & 1;
    if (numbers[r] == kNone) {
      rest[left++] = static_cast<uint32_t>(i);
    } else if (waits || FindEntry(stripe, bits, i)) {
      stripe.GiveRow(numbers[r]);
      rest[left++] = static_cast<uint32_t>(i);
    } else {
      stripe.Insert(bits[i], hashes[r], numbers[r], data(i));
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
  tally->inserts += count - left;
  return left;
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::InsertNewKeys(const KeyBits& bits, const uint32_t* missing, size_t count,
                                    Op* op, PendingBlobs* new_keys, DistinctKeys* seen,
                                    Tally* tally) {
  uint32_t rest[kKeysPerLock];
  if constexpr (kFillsAhead<Keys, Op>) {
    // Rows of a file, and keys that have to be let in, need more.
    if (count > 0 && op->Inserts(missing[0]) && op->context.new_keys != NewKeys::kDrop &&
        admission_ == nullptr && tiers_ == nullptr) {
      bool streamed = false;
      if constexpr (kReplacesRows<Keys, Op>) streamed = StreamsRows(*op);
      count = streamed
                  ? FillAndEnter<kReplacesRows<Keys, Op>>(bits, missing, count, op, rest, tally)
                  : FillAndEnter<false>(bits, missing, count, op, rest, tally);
      missing = rest;
    }
  }
  constexpr size_t kToHome = 24, kToNext = 8;
  const auto home_of = [&](size_t k) TFRA_INLINE {
    const uint64_t hash = Keys::Hash(bits[missing[k]]);
    return StripeFor(hash).array()->Home(hash);
  };
  const bool metadata = op->context.metadata;
  const auto fetch = [&](size_t k) TFRA_INLINE {
    const uint64_t hash = Keys::Hash(bits[missing[k]]);
    const BucketArray& array = *StripeFor(hash).array();
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
    Stripe& stripe = StripeFor(hash);
    // An equal key may have come since.
    if (const auto entry = FindEntry(stripe, bits, i)) {
      std::byte* row;
      TFRA_RETURN_IF_ERROR(RowToWrite(&stripe, entry, Op::kChangesRows, &row));
      UpdateRow(stripe.array(), i, entry, row, op, tally);
    } else if (!op->Inserts(i)) {
      ++tally->ignored;
    } else {
      TFRA_RETURN_IF_ERROR(InsertKey(bits, i, hash, &stripe, op, new_keys, seen, tally));
    }
  }
  return Status::Ok();
}

template <typename Keys>
template <typename Op>
[[gnu::always_inline]] inline Status TableOf<Keys>::InsertKey(const KeyBits& bits, size_t i,
                                                              uint64_t hash, Stripe* stripe, Op* op,
                                                              PendingBlobs* new_keys,
                                                              DistinctKeys* seen, Tally* tally) {
  bool enters = op->context.new_keys != NewKeys::kDrop;
  uint32_t times = 1;
  if (seen != nullptr) {
    // One that was seen in this call before, and is not there, was not let in.
    enters = false;
    if (seen->Add(static_cast<uint32_t>(i))) {
      TFRA_RETURN_IF_ERROR(Enters(bits, i, op->context, &enters, &times));
    }
  }
  if (enters) return InsertRow(bits, i, hash, stripe, times, op, new_keys, tally);
  // What Accumulate leaves alone it has always ignored.
  ++(std::is_same_v<Op, AccumulateOp> ? tally->ignored : tally->refused);
  return Status::Ok();
}

template <typename Keys>
template <typename Op>
[[gnu::always_inline]] inline Status TableOf<Keys>::InsertRow(const KeyBits& bits, size_t i,
                                                              uint64_t hash, Stripe* stripe,
                                                              uint32_t seen, Op* op,
                                                              PendingBlobs* new_keys,
                                                              Tally* tally) {
  // Both were done before, unless other threads removed the key since or took the room.
  if constexpr (Keys::kStrings) TFRA_RETURN_IF_ERROR(new_keys->Make(i, bits.bytes(i), "key"));
  TFRA_RETURN_IF_ERROR(stripe->Grow(stripe->size() + 1));
  if (stripe->NeedsReseed()) [[unlikely]]
    stripe->Tidy();
  uint32_t number = 0;
  TFRA_RETURN_IF_ERROR(TakeRow(stripe, &number));
  EditRow(RowAt(number), layout_.stride, [&](std::byte* row) {
    op->Fill(i, bits[i], row);
    if constexpr (Keys::kStrings) {
      Blob* key = new_keys->Take(i);
      tally->string_bytes += static_cast<int64_t>(key->allocated_bytes());
      StoreBlob(row + layout_.key_offset, key);
    }
  });
  stripe->Insert(bits[i], hash, number, {kNoScore, FreshMetadata(*op, i, seen)});
  NoteEntered(bits, i);
  ++tally->inserts;
  return Status::Ok();
}

}  // namespace tfra
