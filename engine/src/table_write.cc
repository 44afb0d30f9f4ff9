// How writing calls write: room is made first, then found rows are changed and missing keys
// inserted.
#include "table_write.h"

#include <algorithm>
#include <array>

#include "table_stream.h"

namespace tfra {
namespace {

// Where many keys are new they are looked for, and inserted, so many at a time: what the search has
// fetched, buckets and the rows that the call brings, is then still near. And so many keys decide
// how the next ones are written.
constexpr size_t kNewKeysAtOnce = 512;

// Streaming that met a bucket twice among fewer keys is given up: some keys come again and again,
// and their rows are in the caches.
constexpr size_t kStreamAtLeast = 256;

// Prefetches the metadata of the entries of a key's home.
[[gnu::always_inline]] inline void FetchMetadata(const BucketArray& array, uint64_t hash) {
  __builtin_prefetch(array.metadata() + array.HomeOf(hash) * kBucketEntries, 1);
}

}  // namespace

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::PrepareInserts(const Words& words, const KeyParts& parts, const Op& op,
                                     PendingBlobs* new_keys) {
  const uint64_t rows = bounds_ == nullptr || tiers_ != nullptr
                            ? words.size()
                            : std::min<uint64_t>(words.size(), bounds_->max_capacity() - size());
  TFRA_RETURN_IF_ERROR(arena_.Reserve(rows + kShards * Shard::kRowBlock));
  if constexpr (Keys::kStrings) new_keys->Resize(words.size());
  // Which keys will be let in is not known: most are not, and room for all would be a waste.
  if (admission_ != nullptr && op.context.new_keys == NewKeys::kAdmit) return Status::Ok();
  // Shards that are too small if all their keys are new and different.
  ShardSet tight = 0;
  for (uint32_t s = 0; s < kShards; ++s) {
    const bool fits = IndexedKeys(s, parts.shard_keys()[s]) <= shards_[s].limit();
    if (!fits) tight |= ShardSet{1} << s;
  }
  if (tight == 0 && !Keys::kStrings) return Status::Ok();
  std::vector<Status> statuses(parts.parts());
  ParallelFor(parts.parts(), parts.parts(), [&](size_t part) {
    std::vector<uint32_t> missing =
        MissingKeys(words, parts, part, Keys::kStrings ? kAllShards : tight, op);
    if constexpr (Keys::kStrings) {
      for (const uint32_t i : missing) {
        statuses[part] = new_keys->Make(i, words.bytes(i), "key");
        if (!statuses[part].ok()) return;
      }
    }
    statuses[part] = MakeRoom(words, parts.shards(part) & tight, missing);
  });
  return FirstError(statuses);
}

template <typename Keys>
template <typename Op>
std::vector<uint32_t> TableOf<Keys>::MissingKeys(const Words& words, const KeyParts& parts,
                                                 size_t part, ShardSet shards, const Op& op) const {
  std::vector<uint32_t> keys;
  if ((parts.shards(part) & shards) == 0 || op.context.new_keys == NewKeys::kDrop) return keys;
  parts.ForEachRun(part, SIZE_MAX, [&](const uint32_t* order, size_t count) {
    for (size_t k = 0; k < count; ++k) {
      const uint32_t i = order[k];
      if (shards >> ShardOf(Keys::Hash(words[i])) & 1 && op.Inserts(i)) keys.push_back(i);
    }
  });
  size_t missing = 0;
  const auto late = [&](size_t i) {
    if (!ContainsOne(words[i], words.bytes(i))) keys[missing++] = static_cast<uint32_t>(i);
  };
  const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
    if (probe.row == nullptr) {
      keys[missing++] = static_cast<uint32_t>(i);
    } else if (!IsHit(probe, words.bytes(i)) || !StillValid(probe.bucket, probe.state)) {
      late(i);
    }
    return true;
  };
  EpochGuard guard;
  // Those found missing are put where keys have been visited already.
  Probes<Access::kRead>(
      words.data(), keys.size(), 0, [&](size_t k) TFRA_INLINE { return keys[k]; }, [](size_t) {},
      visit, late);
  keys.resize(missing);
  return keys;
}

template <typename Keys>
Status TableOf<Keys>::MakeRoom(const Words& words, ShardSet shards,
                               const std::vector<uint32_t>& missing) {
  std::array<uint64_t, kShards> extra{};
  for (const uint32_t i : missing) ++extra[ShardOf(Keys::Hash(words[i]))];
  // Growing by one step is cheap, also if it turns out that many of the keys are the same.
  ShardSet to_count = 0;
  for (uint32_t s = 0; s < kShards; ++s) {
    if (IndexedKeys(s, extra[s]) > shards_[s].limit() * 3 / 2) to_count |= ShardSet{1} << s;
  }
  if ((to_count & shards) != 0) {
    for (uint32_t s = 0; s < kShards; ++s) {
      if (to_count >> s & 1) extra[s] = 0;
    }
    DistinctKeys distinct(words, missing.size());
    for (const uint32_t i : missing) {
      const uint32_t s = ShardOf(Keys::Hash(words[i]));
      if (to_count >> s & 1) extra[s] += distinct.Add(i);
    }
  }
  for (; shards != 0; shards &= shards - 1) {
    const int s = __builtin_ctzll(shards);
    if (extra[s] == 0) continue;
    std::lock_guard lock(shards_[s].mutex());
    TFRA_RETURN_IF_ERROR(shards_[s].Grow(IndexedKeys(static_cast<uint32_t>(s), extra[s])));
  }
  return Status::Ok();
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::Write(const Words& words, const KeyParts& parts, const Op& prototype,
                            const Scores& scores, const Report& report) {
  TFRA_RETURN_IF_ERROR(CheckScores(scores));
  PendingBlobs new_keys;
  if (tiers_ != nullptr) {
    // Of keys that have to be let in few are: for them room is made when they have come.
    const NewKeys new_keys = prototype.context.new_keys;
    const bool some_enter =
        new_keys == NewKeys::kInsert || (new_keys == NewKeys::kAdmit && admission_ == nullptr);
    const auto inserts = [&](size_t i) { return some_enter && prototype.Inserts(i); };
    TFRA_RETURN_IF_ERROR(FetchRows(words, parts, inserts));
  }
  TFRA_RETURN_IF_ERROR(PrepareInserts(words, parts, prototype, &new_keys));
  const Status status = bounds_ == nullptr
                            ? WriteUnbounded(words, parts, prototype, &new_keys)
                            : WriteBounded(words, parts, prototype, scores, report, &new_keys);
  if (tiers_ != nullptr) TrimRows(parts);
  return status;
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::WriteUnbounded(const Words& words, const KeyParts& parts, const Op& prototype,
                                     PendingBlobs* new_keys) {
  std::vector<Status> statuses(parts.parts());
  ParallelFor(parts.parts(), parts.parts(), [&](size_t part) {
    Status& status = statuses[part];
    std::unique_ptr<DistinctKeys> seen;
    if (prototype.context.new_keys == NewKeys::kAdmit && admission_ != nullptr) {
      seen = std::make_unique<DistinctKeys>(words, words.size());
    }
    size_t at_once = kNewKeysAtOnce;
    bool nearly_all_new = false;
    RunOp(prototype, words.size(), [&](Op* op, Tally* tally) {
      parts.ForEachRun(part, kKeysPerLock, [&](const uint32_t* order, size_t count) {
        if (!status.ok()) return;
        EpochGuard guard;
        ShardLocks locks(shards_.get(), parts.shards(part));
        Tidy(parts.shards(part));
        for (size_t k = 0; k < count && status.ok();) {
          const size_t keys = std::min(at_once, count - k);
          const uint64_t before = tally->inserts;
          // Inserting looks for a key, too: where most are not there, looking for all of them first
          // does not pay.
          status = nearly_all_new
                       ? InsertNewKeys(words, order + k, keys, op, new_keys, seen.get(), tally)
                       : WriteKeys(words, order + k, keys, op, new_keys, seen.get(), tally);
          const uint64_t inserted = tally->inserts - before;
          at_once = inserted > keys / 8 ? kNewKeysAtOnce : kKeysPerLock;
          nearly_all_new = 8 * inserted > 7 * keys;
          k += keys;
        }
      });
    });
  });
  return FirstError(statuses);
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::WriteKeys(const Words& words, const uint32_t* order, size_t count, Op* op,
                                PendingBlobs* new_keys, DistinctKeys* seen, Tally* tally) {
  // Keys that were not found are inserted in the end: the loop that finds keys is short, and so has
  // many of them under way.
  uint32_t missing[kKeysPerLock];
  size_t missing_count = 0;
  const auto late = [&](size_t i)
                        TFRA_INLINE { missing[missing_count++] = static_cast<uint32_t>(i); };
  // The loop's own, which nothing else refers to, so that they can be kept in registers.
  std::conditional_t<std::is_trivially_copyable_v<Op>, Op, Op&> hot_op = *op;
  Tally hot_tally;
  const bool metadata = hot_op.context.metadata;
  const auto fetch = [&](size_t i) TFRA_INLINE {
    hot_op.Fetch(i);
    if (!metadata) return;
    const uint64_t hash = Keys::Hash(words[i]);
    FetchMetadata(*ShardFor(hash).array(), hash);
  };
  const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
    if (probe.row == nullptr) {
      late(i);
    } else if (HasKey(probe.row, words.bytes(i))) {
      // Only metadata have to know which entry it is.
      const uint32_t mask = metadata ? probe.bucket->Match(words[i], probe.state) : 1;
      const Shard::Entry entry{probe.bucket, static_cast<uint32_t>(__builtin_ctz(mask))};
      UpdateRow(metadata ? ArrayFor(words[i]) : nullptr, i, entry, probe.row, &hot_op, &hot_tally);
    } else {
      return false;
    }
    return true;
  };
  // Those that are streamed leave the others, which stay in their order.
  uint32_t others[kReplacesRows<Keys, Op> ? kKeysPerLock : 1];
  if constexpr (kReplacesRows<Keys, Op>) {
    // Not where many keys are new: they would be looked for twice.
    if (count > kNewKeysAtOnce && StreamsRows(hot_op)) {
      size_t done = 0, left = 0, streamed;
      do {
        size_t more;
        streamed = StreamKeys(words, order + done, count - done, hot_op, others + left, &more);
        done += streamed;
        left += more;
      } while (done < count && streamed >= kStreamAtLeast);
      hot_tally.updates += done - left;
      std::copy(order + done, order + count, others + left);
      count = left + count - done;
      order = others;
    }
  }
  Probes<Op::kChangesRows ? Access::kRow : Access::kEntry>(
      words.data(), count, hot_op.row_bytes(), [=](size_t k) TFRA_INLINE { return order[k]; },
      fetch, visit, late);
  tally->updates += hot_tally.updates;
  tally->ignored += hot_tally.ignored;
  // In the order of the batch, which decides who is let in.
  if (admission_ != nullptr) std::sort(missing, missing + missing_count);
  return InsertNewKeys(words, missing, missing_count, op, new_keys, seen, tally);
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::InsertNewKeys(const Words& words, const uint32_t* missing, size_t count,
                                    Op* op, PendingBlobs* new_keys, DistinctKeys* seen,
                                    Tally* tally) {
  constexpr size_t kToHome = 24, kToNext = 8;
  const auto home_of = [&](size_t k) TFRA_INLINE {
    const uint64_t hash = Keys::Hash(words[missing[k]]);
    return ShardFor(hash).array()->Home(hash);
  };
  const bool metadata = op->context.metadata;
  const auto fetch = [&](size_t k) TFRA_INLINE {
    const uint64_t hash = Keys::Hash(words[missing[k]]);
    const BucketArray& array = *ShardFor(hash).array();
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
    const uint64_t hash = Keys::Hash(words[i]);
    Shard& shard = ShardFor(hash);
    // An equal key may have come since.
    if (const auto entry = FindEntry(shard, words, i)) {
      std::byte* row;
      TFRA_RETURN_IF_ERROR(RowToWrite(&shard, entry, Op::kChangesRows, &row));
      UpdateRow(shard.array(), i, entry, row, op, tally);
    } else if (!op->Inserts(i)) {
      ++tally->ignored;
    } else {
      TFRA_RETURN_IF_ERROR(InsertKey(words, i, hash, &shard, op, new_keys, seen, tally));
    }
  }
  return Status::Ok();
}

template <typename Keys>
template <typename Op>
[[gnu::always_inline]] inline Status TableOf<Keys>::InsertKey(const Words& words, size_t i,
                                                              uint64_t hash, Shard* shard, Op* op,
                                                              PendingBlobs* new_keys,
                                                              DistinctKeys* seen, Tally* tally) {
  bool enters = op->context.new_keys != NewKeys::kDrop;
  uint32_t times = 1;
  if (seen != nullptr) {
    // One that was seen in this call before, and is not there, was not let in.
    enters = false;
    if (seen->Add(static_cast<uint32_t>(i))) {
      TFRA_RETURN_IF_ERROR(Enters(words, i, op->context, &enters, &times));
    }
  }
  if (enters) return InsertRow(words, i, hash, shard, times, op, new_keys, tally);
  // What Accumulate leaves alone it has always ignored.
  ++(std::is_same_v<Op, AccumulateOp> ? tally->ignored : tally->refused);
  return Status::Ok();
}

template <typename Keys>
template <typename Op>
[[gnu::always_inline]] inline Status TableOf<Keys>::InsertRow(const Words& words, size_t i,
                                                              uint64_t hash, Shard* shard,
                                                              uint32_t seen, Op* op,
                                                              PendingBlobs* new_keys,
                                                              Tally* tally) {
  // Both were done before, unless other threads removed the key since or took the room.
  if constexpr (Keys::kStrings) TFRA_RETURN_IF_ERROR(new_keys->Make(i, words.bytes(i), "key"));
  TFRA_RETURN_IF_ERROR(shard->Grow(shard->size() + 1));
  uint32_t number = 0;
  TFRA_RETURN_IF_ERROR(TakeRow(shard, &number));
  EditRow(RowAt(number), layout_.stride, [&](std::byte* row) {
    op->Fill(i, words[i], row);
    if constexpr (Keys::kStrings) {
      Blob* key = new_keys->Take(i);
      tally->string_bytes += static_cast<int64_t>(key->allocated_bytes());
      StoreBlob(row + layout_.key_offset, key);
    }
  });
  shard->Insert(words[i], hash, number, {kNoScore, FreshMetadata(*op, i, seen)});
  NoteEntered(words, i);
  ++tally->inserts;
  return Status::Ok();
}

#define TFRA_INSTANTIATE(Keys, Op)                                                              \
  template Status TableOf<Keys>::Write(const Words&, const KeyParts&, const Op&, const Scores&, \
                                       const Report&);
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, IntKeys)
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, StringKeys)

}  // namespace tfra
