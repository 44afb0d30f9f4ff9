#include <array>
#include <atomic>
#include <string>

#include "row_ops.h"
#include "table_find.h"

namespace tfra {
namespace {

// A writer holds the mutexes of its shards for so many keys, some hundred microseconds.
constexpr size_t kKeysPerLock = 8192;

Status FirstError(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) TFRA_RETURN_IF_ERROR(status);
  return Status::Ok();
}

}  // namespace

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::MakeRoom(const Words& words, const uint32_t* order, size_t count,
                               const Op& op) {
  std::array<uint64_t, kShards> keys{};
  for (size_t k = 0; k < count; ++k) ++keys[ShardOf(Keys::Hash(words[order[k]]))];
  std::array<bool, kShards> tight{};
  size_t tight_keys = 0;
  for (uint32_t s = 0; s < kShards; ++s) {
    if (keys[s] == 0) continue;
    shards_[s].Tidy();
    tight[s] = shards_[s].size() + keys[s] > shards_[s].limit();
    if (tight[s]) tight_keys += keys[s];
  }
  if (tight_keys == 0) return Status::Ok();

  // Some shards are too small if all their keys are new and different. Are they?
  std::array<uint64_t, kShards> missing{};
  DistinctKeys distinct(words, tight_keys);
  for (size_t k = 0; k < count; ++k) {
    const uint32_t i = order[k], s = ShardOf(Keys::Hash(words[i]));
    if (!tight[s] || !op.Inserts(i) || ContainsOne(words[i], words.bytes(i))) continue;
    missing[s] += distinct.Add(i);
  }
  for (uint32_t s = 0; s < kShards; ++s) {
    if (missing[s] > 0) TFRA_RETURN_IF_ERROR(shards_[s].Grow(shards_[s].size() + missing[s]));
  }
  return Status::Ok();
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::PrepareInserts(const Words& words, const KeyParts& parts, const Op& op,
                                     PendingBlobs* new_keys) {
  TFRA_RETURN_IF_ERROR(arena_.Reserve(parts.total() + kShards * Shard::kRowBlock));
  if constexpr (Keys::kStrings) new_keys->Resize(words.size());
  std::vector<Status> statuses(parts.parts());
  ParallelFor(parts.parts(), parts.parts(), [&](size_t part) {
    EpochGuard guard;
    const ShardSet shards = ShardsOf<Keys>(words, parts.keys(part), parts.count(part));
    ShardLocks locks(shards_.get(), shards);
    statuses[part] = MakeRoom(words, parts.keys(part), parts.count(part), op);
    if constexpr (Keys::kStrings) {
      for (size_t k = 0; k < parts.count(part) && statuses[part].ok(); ++k) {
        const uint32_t i = parts.keys(part)[k];
        if (!op.Inserts(i) || ContainsOne(words[i], words.bytes(i))) continue;
        statuses[part] = new_keys->Make(i, words.bytes(i), "key");
      }
    }
  });
  return FirstError(statuses);
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::Write(const Words& words, const KeyParts& parts, const Op& prototype) {
  PendingBlobs new_keys;
  TFRA_RETURN_IF_ERROR(PrepareInserts(words, parts, prototype, &new_keys));
  std::vector<Status> statuses(parts.parts());
  ParallelFor(parts.parts(), parts.parts(), [&](size_t part) {
    Status& status = statuses[part];
    Op op = prototype;
    Tally tally;
    if constexpr (std::is_same_v<Op, AssignStringsOp>) {
      op.replaced.reserve(parts.count(part) * op.dim);
      tally.garbage.reserve(parts.count(part) * op.dim);
    }
    for (size_t k = 0; k < parts.count(part) && status.ok(); k += kKeysPerLock) {
      const uint32_t* order = parts.keys(part) + k;
      const size_t count = std::min(kKeysPerLock, parts.count(part) - k);
      EpochGuard guard;
      ShardLocks locks(shards_.get(), ShardsOf<Keys>(words, order, count));
      // Other threads may have used up the room meanwhile.
      status = MakeRoom(words, order, count, op);
      if (status.ok()) status = WriteKeys(words, order, count, &op, &new_keys, &tally);
    }
    if constexpr (std::is_same_v<Op, AssignStringsOp>) {
      tally.string_bytes += op.stored_bytes;
      for (Blob* blob : op.replaced) {
        tally.string_bytes -= static_cast<int64_t>(blob->allocated_bytes());
        tally.garbage.push_back(Blob::AsRetired(blob));
      }
    }
    Count(std::move(tally));
  });
  return FirstError(statuses);
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::WriteKeys(const Words& words, const uint32_t* order, size_t count, Op* op,
                                PendingBlobs* new_keys, Tally* tally) {
  Status status;
  const auto update = [&](size_t i, Bucket* bucket, std::byte* row) TFRA_INLINE {
    if (!op->Updates(i)) {
      ++tally->ignored;
      return;
    }
    const uint32_t state = bucket->BeginWrite();
    EditRow(row, layout_.stride, [&](std::byte* edited) TFRA_INLINE { op->Update(i, edited); });
    bucket->EndWrite(state);
    ++tally->updates;
  };
  // Not there when it was searched; but an equal key may have come since.
  const auto insert = [&](size_t i) __attribute__((noinline)) {
    const uint64_t hash = Keys::Hash(words[i]);
    Shard& shard = ShardFor(hash);
    const auto entry = shard.Find(words[i], hash,
                                  [&](uint32_t row) { return HasKey(RowAt(row), words.bytes(i)); });
    if (entry) {
      update(i, entry.bucket, RowAt(entry.row()));
    } else if (op->Inserts(i)) {
      status = InsertRow(words, i, &shard, op, new_keys, tally);
    } else {
      ++tally->ignored;
    }
  };
  const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
    if (probe.row != nullptr && HasKey(probe.row, words.bytes(i))) {
      update(i, probe.bucket, probe.row);
    } else if (status.ok()) {
      insert(i);
    }
  };
  Probes<true>(
      words.data(), count, op->row_bytes, [=](size_t k) TFRA_INLINE { return order[k]; },
      [=](size_t i) TFRA_INLINE { op->Fetch(i); }, visit);
  return status;
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::InsertRow(const Words& words, size_t i, Shard* shard, Op* op,
                                PendingBlobs* new_keys, Tally* tally) {
  // Made already, unless another thread removed the key since.
  if constexpr (Keys::kStrings) TFRA_RETURN_IF_ERROR(new_keys->Make(i, words.bytes(i), "key"));
  uint32_t number;
  TFRA_RETURN_IF_ERROR(shard->TakeRow(&number));
  EditRow(RowAt(number), layout_.stride, [&](std::byte* row) {
    op->Fill(i, words[i], row);
    if constexpr (Keys::kStrings) {
      Blob* key = new_keys->Take(i);
      tally->string_bytes += static_cast<int64_t>(key->allocated_bytes());
      StoreBlob(row + layout_.key_offset, key);
    }
  });
  shard->Insert(words[i], number);
  ++tally->inserts;
  return Status::Ok();
}

template <typename Keys>
Status TableOf<Keys>::Assign(const KeyBatch& keys, const void* values, const void* slots,
                             const RowMetadata* metadata) try {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  const Words words(keys);
  const RowContext context{layout_, initializer_, options_.metadata, clock()};
  if (!has_string_values()) {
    const size_t touched = slots == nullptr ? layout_.value_bytes : layout_.stride;
    return Write(words, KeyParts::Split<Keys>(words),
                 AssignOp{context, static_cast<const std::byte*>(values),
                          static_cast<const std::byte*>(slots), metadata, touched});
  }
  const size_t dim = static_cast<size_t>(options_.dim), n = keys.size * dim;
  const auto* strings = static_cast<const std::string_view*>(values);
  TFRA_RETURN_IF_ERROR(CheckStrings(strings, n, "value"));
  PendingBlobs blobs;
  blobs.Resize(n);
  for (size_t i = 0; i < n; ++i) {
    if (!strings[i].empty()) TFRA_RETURN_IF_ERROR(blobs.Make(i, strings[i], "value"));
  }
  return Write(words, KeyParts::Split<Keys>(words),
               AssignStringsOp{context, &blobs, metadata, dim, layout_.value_bytes, {}});
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::Accumulate(const KeyBatch& keys, const void* deltas, const bool* exists) try {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  if (has_string_values()) {
    return Status::WrongType("accumulating needs values that can be added, received string values");
  }
  const Words words(keys);
  const RowContext context{layout_, initializer_, options_.metadata, clock()};
  return Write(words, KeyParts::Split<Keys>(words),
               AccumulateOp{context, static_cast<const std::byte*>(deltas), exists,
                            AddFor(options_.value_type), static_cast<size_t>(options_.dim),
                            layout_.value_bytes});
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::ApplyGradients(const KeyBatch& keys, const void* gradients,
                                     ValueType gradient_type, const UpdateParams& params) try {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  if (options_.rule.kind == RuleKind::kNone) {
    return Status::InvalidArgument(
        "applying gradients needs a table with an optimizer, received one without");
  }
  TFRA_RETURN_IF_ERROR(ValidateParams(options_.rule, params));
  const ValueType compute = ComputeType(options_.value_type);
  if (gradient_type != options_.value_type && gradient_type != compute) {
    return Status::WrongType(std::string("expected gradients of type ") +
                             NameOf(options_.value_type) + " or " + NameOf(compute) +
                             ", received " + NameOf(gradient_type));
  }
  const size_t dim = static_cast<size_t>(options_.dim);
  const Words words(keys);
  KeyParts parts = KeyParts::Split<Keys>(words);
  const auto next = parts.ExtractDuplicates(words);
  const RowUpdater updater(options_.rule, params, options_.value_type, dim);
  const RowContext context{layout_, initializer_, options_.metadata, clock()};
  return Write(
      words, parts,
      GradientOp{context, updater, next.get(), static_cast<const std::byte*>(gradients),
                 dim * SizeOf(gradient_type), gradient_type == compute,
                 SumFor(gradient_type, options_.value_type), dim, layout_.stride,
                 std::vector<double>(dim), std::vector<double>(updater.scratch_elements())});
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::Remove(const KeyBatch& keys, size_t* removed) try {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  const Words words(keys);
  const KeyParts parts = KeyParts::Split<Keys>(words);
  std::atomic<size_t> total{0};
  ParallelFor(parts.parts(), parts.parts(), [&](size_t part) {
    Tally tally;
    const auto visit = [&](size_t i, const Probe& probe) {
      if (probe.missing()) return;
      const uint64_t hash = Keys::Hash(words[i]);
      Shard& shard = ShardFor(hash);
      const auto entry = shard.Find(
          words[i], hash, [&](uint32_t row) { return HasKey(RowAt(row), words.bytes(i)); });
      if (entry) RemoveEntry(&shard, entry, &tally);
    };
    for (size_t k = 0; k < parts.count(part); k += kKeysPerLock) {
      const uint32_t* order = parts.keys(part) + k;
      const size_t count = std::min(kKeysPerLock, parts.count(part) - k);
      EpochGuard guard;
      ShardLocks locks(shards_.get(), ShardsOf<Keys>(words, order, count));
      Probes<true>(
          words.data(), count, 0, [=](size_t j) TFRA_INLINE { return order[j]; }, [](size_t) {},
          visit);
    }
    total += tally.removals;
    Count(std::move(tally));
  });
  *removed = total;
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

#define TFRA_INSTANTIATE(Keys)                                                           \
  template Status TableOf<Keys>::Assign(const KeyBatch&, const void*, const void*,       \
                                        const RowMetadata*);                             \
  template Status TableOf<Keys>::Accumulate(const KeyBatch&, const void*, const bool*);  \
  template Status TableOf<Keys>::ApplyGradients(const KeyBatch&, const void*, ValueType, \
                                                const UpdateParams&);                    \
  template Status TableOf<Keys>::Remove(const KeyBatch&, size_t*);
TFRA_INSTANTIATE(IntKeys)
TFRA_INSTANTIATE(StringKeys)

}  // namespace tfra
