#include <atomic>
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
template <typename Op>
Status TableOf<Keys>::PrepareShard(const Words& words, uint32_t s, const KeysByShard& keys,
                                   const Op& op) {
  Shard& shard = shards_[s];
  shard.Tidy();
  if (shard.size() + keys.count(s) <= shard.limit()) return Status::Ok();
  // Too small if all keys are new and different. Are they?
  DistinctKeys missing(words, keys.count(s));
  for (size_t k = 0; k < keys.count(s); ++k) {
    const uint32_t i = keys.of(s)[k];
    if (op.Inserts(i) && !ContainsOne(words[i], words.bytes(i))) missing.Add(i);
  }
  return shard.Grow(shard.size() + missing.count());
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::PrepareInserts(const Words& words, const KeysByShard& keys, const Op& op,
                                     NewKeys* new_keys) {
  TFRA_RETURN_IF_ERROR(arena_.Reserve(keys.total() + kShards * Shard::kRowBlock));
  if constexpr (Keys::kStrings) new_keys->Resize(words.size());
  std::vector<Status> statuses(kShards);
  ParallelFor(kShards, ThreadsFor(words.size()), [&](size_t index) {
    const uint32_t s = static_cast<uint32_t>(index);
    if (keys.count(s) == 0) return;
    EpochGuard guard;
    std::lock_guard lock(shards_[s].mutex());
    statuses[s] = PrepareShard(words, s, keys, op);
    if constexpr (Keys::kStrings) {
      for (size_t k = 0; k < keys.count(s) && statuses[s].ok(); ++k) {
        const uint32_t i = keys.of(s)[k];
        if (!op.Inserts(i) || ContainsOne(words[i], words.bytes(i))) continue;
        statuses[s] = new_keys->Make(i, words.bytes(i));
      }
    }
  });
  return FirstError(statuses);
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::Write(const Words& words, const KeysByShard& keys, const Op& prototype) {
  NewKeys new_keys;
  TFRA_RETURN_IF_ERROR(PrepareInserts(words, keys, prototype, &new_keys));
  return WritePrepared(words, keys, prototype, &new_keys);
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::WritePrepared(const Words& words, const KeysByShard& keys,
                                    const Op& prototype, NewKeys* new_keys) {
  std::vector<Status> statuses(kShards);
  ParallelFor(kShards, ThreadsFor(words.size()), [&](size_t s) {
    if (keys.count(static_cast<uint32_t>(s)) == 0) return;
    Op op = prototype;
    Tally tally;
    try {
      EpochGuard guard;
      std::lock_guard lock(shards_[s].mutex());
      WriteShard(words, static_cast<uint32_t>(s), keys, &op, new_keys, &tally, &statuses[s]);
    } catch (const std::bad_alloc&) {
      statuses[s] = Status::OutOfMemory("out of memory while writing a batch of " +
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
void TableOf<Keys>::WriteShard(const Words& words, uint32_t s, const KeysByShard& keys, Op* op,
                               NewKeys* new_keys, Tally* tally, Status* status) {
  Shard& shard = shards_[s];
  // Other threads may have used up the room meanwhile. From here on the shard does not grow.
  *status = PrepareShard(words, s, keys, *op);
  if (!status->ok()) return;
  const uint32_t* order = keys.of(s);
  const auto update = [&](size_t i, Bucket* bucket, std::byte* row) {
    if (!op->Updates(i)) {
      ++tally->ignored;
      return;
    }
    const uint32_t state = bucket->BeginWrite();
    EditRow(row, layout_.stride, [&](std::byte* edited) { op->Update(i, edited); });
    bucket->EndWrite(state);
    ++tally->updates;
  };
  const auto visit = [&](size_t i, const Probe& probe) {
    if (probe.row != nullptr && HasKey(probe.row, words.bytes(i))) {
      update(i, probe.bucket, probe.row);
      return;
    }
    if (!status->ok()) return;
    // Not there when it was searched; but an equal key may have come since.
    const auto entry = shard.Find(words[i], Keys::Hash(words[i]),
                                  [&](uint32_t row) { return HasKey(RowAt(row), words.bytes(i)); });
    if (entry) {
      update(i, entry.bucket, RowAt(entry.row()));
    } else if (op->Inserts(i)) {
      *status = InsertRow(words, i, &shard, op, new_keys, tally);
    } else {
      ++tally->ignored;
    }
  };
  Probes<true>(
      words.data(), keys.count(s), op->row_bytes, [=](size_t k) { return order[k]; },
      [=](size_t i) TFRA_INLINE { op->Fetch(i); }, visit);
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::InsertRow(const Words& words, size_t i, Shard* shard, Op* op,
                                NewKeys* new_keys, Tally* tally) {
  // Made already, unless another thread removed the key since.
  if constexpr (Keys::kStrings) TFRA_RETURN_IF_ERROR(new_keys->Make(i, words.bytes(i)));
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
                             const RowMetadata* metadata) {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  const Words words(keys);
  const RowContext context{layout_, initializer_, options_.metadata, clock()};
  if (!has_string_values()) {
    const size_t touched = slots == nullptr ? layout_.value_bytes : layout_.stride;
    return Write(words, KeysByShard::Group<Keys>(words),
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
  const KeysByShard by_shard = KeysByShard::Group<Keys>(words);
  const AssignStringsOp op{context, blobs.data(), metadata, dim, layout_.value_bytes, {}};
  NewKeys new_keys;
  if (Status status = PrepareInserts(words, by_shard, op, &new_keys); !status.ok()) {
    for (Blob* blob : blobs) std::free(blob);
    return status;
  }
  Count(std::move(tally));
  return WritePrepared(words, by_shard, op, &new_keys);
}

template <typename Keys>
Status TableOf<Keys>::Accumulate(const KeyBatch& keys, const void* deltas, const bool* exists) {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  if (has_string_values()) {
    return Status::WrongType("accumulating needs values that can be added, received string values");
  }
  const Words words(keys);
  const RowContext context{layout_, initializer_, options_.metadata, clock()};
  return Write(words, KeysByShard::Group<Keys>(words),
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
  KeysByShard by_shard = KeysByShard::Group<Keys>(words);
  const auto next = by_shard.ExtractDuplicates(words);
  const RowUpdater updater(options_.rule, params, options_.value_type, dim);
  const RowContext context{layout_, initializer_, options_.metadata, clock()};
  return Write(
      words, by_shard,
      GradientOp{context, updater, next.get(), static_cast<const std::byte*>(gradients),
                 dim * SizeOf(gradient_type), gradient_type == compute,
                 SumFor(gradient_type, options_.value_type), dim, layout_.stride,
                 std::vector<double>(dim), std::vector<double>(updater.scratch_elements())});
}

template <typename Keys>
Status TableOf<Keys>::Remove(const KeyBatch& keys, size_t* removed) {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  const Words words(keys);
  const KeysByShard by_shard = KeysByShard::Group<Keys>(words);
  std::atomic<size_t> total{0};
  ParallelFor(kShards, ThreadsFor(words.size()), [&](size_t s) {
    const uint32_t* order = by_shard.of(static_cast<uint32_t>(s));
    const size_t count = by_shard.count(static_cast<uint32_t>(s));
    if (count == 0) return;
    Tally tally;
    {
      Shard& shard = shards_[s];
      EpochGuard guard;
      std::lock_guard lock(shard.mutex());
      const auto visit = [&](size_t i, const Probe& probe) {
        if (probe.missing()) return;
        const auto entry = shard.Find(words[i], Keys::Hash(words[i]), [&](uint32_t row) {
          return HasKey(RowAt(row), words.bytes(i));
        });
        if (entry) RemoveEntry(&shard, entry, &tally);
      };
      Probes<true>(
          words.data(), count, 0, [=](size_t k) { return order[k]; }, [](size_t) {}, visit);
    }
    total += tally.removals;
    Count(std::move(tally));
  });
  *removed = total;
  return Status::Ok();
}

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
