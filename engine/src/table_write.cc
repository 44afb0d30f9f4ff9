#include <new>
#include <string>

#include "row_ops.h"
#include "table_find.h"

namespace tfra {
namespace {

Status FirstError(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) TFRA_RETURN_IF_ERROR(status);
  return Status::Ok();
}

}  // namespace

template <typename Keys>
void TableOf<Keys>::CountMissing(const Words& words, const Partition& partition, size_t part,
                                 const std::vector<bool>& counted, std::vector<uint64_t>* missing) {
  EpochGuard guard;
  ForEachList(partition, part, words.size(), [&](const uint32_t* order, size_t count) {
    for (size_t k = 0; k < count; ++k) {
      const size_t i = order == nullptr ? k : order[k];
      const uint32_t shard = ShardOf(Keys::Hash(words[i]));
      if (!counted[shard]) continue;
      (*missing)[shard] += !ContainsOne(words[i], words.bytes(i));
    }
  });
}

template <typename Keys>
Status TableOf<Keys>::PrepareInserts(const Words& words, const Partition& partition) {
  // Most shards have room even if every key is new; only for the others is it worth looking.
  std::vector<bool> tight(kShards);
  bool any_tight = false;
  uint64_t keys = 0;
  for (uint32_t s = 0; s < kShards; ++s) {
    keys += partition.keys_per_shard[s];
    tight[s] = shards_[s].size() + partition.keys_per_shard[s] > shards_[s].limit();
    any_tight |= tight[s];
  }
  TFRA_RETURN_IF_ERROR(arena_.Reserve(keys + kShards * Shard::kRowBlock));
  if (!any_tight) return Status::Ok();

  std::vector<uint64_t> missing(kShards);
  std::vector<Status> statuses(partition.parts);
  ParallelFor(partition.parts, [&](size_t part) {
    CountMissing(words, partition, part, tight, &missing);
    for (uint32_t s = 0; s < kShards; ++s) {
      if (PartOf(s, partition.parts) != part || !tight[s]) continue;
      Shard& shard = shards_[s];
      std::lock_guard lock(shard.mutex());
      statuses[part] = shard.Grow(shard.size() + missing[s]);
      if (!statuses[part].ok()) return;
    }
  });
  return FirstError(statuses);
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::Write(const Words& words, const Partition& partition, const Op& prototype) {
  TFRA_RETURN_IF_ERROR(PrepareInserts(words, partition));
  std::vector<Status> statuses(partition.parts);
  ParallelFor(partition.parts, [&](size_t part) {
    EpochGuard guard;
    Op op = prototype;
    Tally tally;
    try {
      ForEachList(partition, part, words.size(), [&](const uint32_t* order, size_t count) {
        if (statuses[part].ok()) statuses[part] = WriteKeys(words, order, count, &op, &tally);
      });
    } catch (const std::bad_alloc&) {
      statuses[part] = Status::OutOfMemory("out of memory while writing a batch of " +
                                           std::to_string(words.size()) + " keys");
    }
    if constexpr (std::is_same_v<Op, AssignStringsOp>) {
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
                                Tally* tally) {
  Status status;
  Probes<true>(words, 0, count, op->row_bytes, order, [&](size_t i, const Probe& probe) {
    if (!status.ok()) return;
    // If the state is still what Find saw, the row is still this key's.
    if (probe.progress == Probe::kFound && probe.bucket->TryLock(probe.state)) {
      const bool same = HasKey(probe.row, words.bytes(i));
      if (same && op->Updates(i)) {
        EditRow(probe.row, layout_.stride, [&](std::byte* row) { op->Update(i, row); });
        ++tally->updates;
      }
      tally->ignored += same && !op->Updates(i);
      probe.bucket->Unlock(probe.state);
      if (same) return;
    }
    status = WriteSlowly(words, i, op, tally);
  });
  return status;
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::WriteSlowly(const Words& words, size_t i, Op* op, Tally* tally) {
  const uint64_t word = words[i], hash = Keys::Hash(word);
  const std::string_view bytes = words.bytes(i);
  Shard& shard = ShardFor(hash);
  std::lock_guard lock(shard.mutex());
  const auto entry =
      shard.Find(word, hash, [&](uint32_t row) { return HasKey(RowAt(row), bytes); });
  if (entry ? !op->Updates(i) : !op->Inserts(i)) {
    ++tally->ignored;
    return Status::Ok();
  }
  if (entry) {
    const uint32_t state = entry.bucket->Lock();
    EditRow(RowAt(entry.row()), layout_.stride, [&](std::byte* row) { op->Update(i, row); });
    entry.bucket->Unlock(state);
    ++tally->updates;
    return Status::Ok();
  }

  TFRA_RETURN_IF_ERROR(shard.Grow(shard.size() + 1));
  Blob* key = nullptr;
  if constexpr (Keys::kStrings) {
    key = Blob::Make(bytes);
    if (key == nullptr) {
      return Status::OutOfMemory("could not allocate " + std::to_string(bytes.size()) +
                                 " bytes for a string key");
    }
    tally->string_bytes += static_cast<int64_t>(key->allocated_bytes());
  }
  uint32_t number;
  if (Status status = shard.TakeRow(&number); !status.ok()) {
    std::free(key);
    return status;
  }
  EditRow(RowAt(number), layout_.stride, [&](std::byte* row) {
    op->Fill(i, word, row);
    if constexpr (Keys::kStrings) StoreBlob(row + layout_.key_offset, key);
  });
  shard.Insert(word, number);
  ++tally->inserts;
  return Status::Ok();
}

template <typename Keys>
Status TableOf<Keys>::Assign(const KeyBatch& keys, const void* values, const void* slots,
                             const RowMetadata* metadata) {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  const Words words(keys);
  const RowContext context{layout_, initializer_, options_.metadata, clock()};
  if (!has_string_values()) {
    const size_t touched = slots == nullptr ? layout_.value_bytes : layout_.stride;
    return Write(words, Split<Keys>(words),
                 AssignOp{context, static_cast<const std::byte*>(values),
                          static_cast<const std::byte*>(slots), metadata, touched});
  }
  const size_t dim = static_cast<size_t>(options_.dim), n = keys.size * dim;
  const auto* strings = static_cast<const std::string_view*>(values);
  TFRA_RETURN_IF_ERROR(CheckStrings(strings, n, "value"));
  Tally tally;
  std::vector<Blob*> blobs(n, nullptr);
  for (size_t i = 0; i < n; ++i) {
    if (strings[i].empty()) continue;
    blobs[i] = Blob::Make(strings[i]);
    if (blobs[i] == nullptr) {
      for (Blob* blob : blobs) std::free(blob);
      return Status::OutOfMemory("could not allocate " + std::to_string(strings[i].size()) +
                                 " bytes for a string value");
    }
    tally.string_bytes += static_cast<int64_t>(blobs[i]->allocated_bytes());
  }
  Partition partition = Split<Keys>(words);
  if (Status status = PrepareInserts(words, partition); !status.ok()) {
    for (Blob* blob : blobs) std::free(blob);
    return status;
  }
  Count(std::move(tally));
  return Write(words, partition,
               AssignStringsOp{context, blobs.data(), metadata, dim, layout_.value_bytes, {}});
}

template <typename Keys>
Status TableOf<Keys>::Accumulate(const KeyBatch& keys, const void* deltas, const bool* exists) {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  if (has_string_values()) {
    return Status::WrongType("accumulating needs values that can be added, received string values");
  }
  const Words words(keys);
  const RowContext context{layout_, initializer_, options_.metadata, clock()};
  return Write(words, Split<Keys>(words),
               AccumulateOp{context, static_cast<const std::byte*>(deltas), exists,
                            AddFor(options_.value_type), static_cast<size_t>(options_.dim),
                            layout_.value_bytes});
}

template <typename Keys>
Status TableOf<Keys>::ApplyGradients(const KeyBatch& keys, const void* gradients,
                                     ValueType gradient_type, const UpdateParams& params) {
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
  Partition partition = Split<Keys>(words);
  const Duplicates duplicates = Duplicates::Extract<Keys>(words, &partition);
  const RowUpdater updater(options_.rule, params, options_.value_type, dim);
  const GradientOp::Widen sum = SumFor(gradient_type, options_.value_type);
  const RowContext context{layout_, initializer_, options_.metadata, clock()};
  return Write(words, partition,
               GradientOp{context, updater, duplicates, static_cast<const std::byte*>(gradients),
                          dim * SizeOf(gradient_type), gradient_type == compute ? nullptr : sum,
                          sum, dim, layout_.stride, std::vector<double>(dim),
                          std::vector<double>(updater.scratch_elements())});
}

template <typename Keys>
bool TableOf<Keys>::RemoveOne(uint64_t word, std::string_view bytes, Tally* tally) {
  const uint64_t hash = Keys::Hash(word);
  Shard& shard = ShardFor(hash);
  std::lock_guard lock(shard.mutex());
  const auto entry =
      shard.Find(word, hash, [&](uint32_t row) { return HasKey(RowAt(row), bytes); });
  if (!entry) return false;
  const uint32_t row = entry.row();
  shard.Erase(entry);
  DropStrings(RowAt(row), tally);
  shard.GiveRow(row);
  ++tally->removals;
  return true;
}

template <typename Keys>
Status TableOf<Keys>::Remove(const KeyBatch& keys, size_t* removed) {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  const Words words(keys);
  const Partition partition = Split<Keys>(words);
  std::vector<size_t> counts(partition.parts);
  ParallelFor(partition.parts, [&](size_t part) {
    EpochGuard guard;
    Tally tally;
    ForEachList(partition, part, words.size(), [&](const uint32_t* order, size_t count) {
      Probes<false>(words, 0, count, 0, order, [&](size_t i, const Probe& probe) {
        if (probe.progress == Probe::kMissing) return;
        counts[part] += RemoveOne(words[i], words.bytes(i), &tally);
      });
    });
    Count(std::move(tally));
  });
  *removed = 0;
  for (size_t count : counts) *removed += count;
  return Status::Ok();
}

#define TFRA_INSTANTIATE(Keys)                                                                    \
  template Status TableOf<Keys>::Assign(const KeyBatch&, const void*, const void*,                \
                                        const RowMetadata*);                                      \
  template Status TableOf<Keys>::Accumulate(const KeyBatch&, const void*, const bool*);           \
  template Status TableOf<Keys>::ApplyGradients(const KeyBatch&, const void*, ValueType,          \
                                                const UpdateParams&);                             \
  template Status TableOf<Keys>::Remove(const KeyBatch&, size_t*);                                \
  template bool TableOf<Keys>::RemoveOne(uint64_t, std::string_view, Tally*);
TFRA_INSTANTIATE(IntKeys)
TFRA_INSTANTIATE(StringKeys)

}  // namespace tfra
