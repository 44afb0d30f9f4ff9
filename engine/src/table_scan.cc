#include <algorithm>
#include <cstring>
#include <string>

#include "table_find.h"
#include "table_visit.h"

namespace tfra {
namespace {

// How many buckets ahead an export prefetches rows.
constexpr uint64_t kExportAhead = 4;

// The first hash of a shard.
uint64_t ShardStart(uint32_t shard) { return uint64_t{shard} << (64 - kShardBits); }

template <typename T>
void Append(std::vector<T>* to, const std::vector<T>& from) {
  to->insert(to->end(), from.begin(), from.end());
}

}  // namespace

template <typename Keys>
Status TableOf<Keys>::Export(size_t max_rows, ExportCursor* cursor, ExportBatch* batch) try {
  if (max_rows == 0)
    return Status::InvalidArgument("expected a batch of 1 row or more, received 0");
  batch->Clear();
  if (cursor->done) return Status::Ok();
  EpochGuard guard;
  std::vector<SlowRow> slow;
  ExportRange range{cursor->position, cursor->position, cursor->seed, false};
  for (uint32_t s = ShardOf(range.from); s < kShards; ++s) {
    const Shard& shard = shards_[s];
    const BucketArray* array = shard.array();
    if (range.from == ShardStart(s)) range.seed = array->seed;
    // Rows of a shard that took a new seed come in one batch. They begin here in `batch` and
    // `slow`, so that they can be taken out again if the seed changes once more.
    size_t reordered = batch->size, reordered_slow = slow.size();
    const auto reorder = [&] {
      if (range.reordered) {
        Truncate(reordered, batch);
        slow.resize(reordered_slow);
      }
      reordered = batch->size;
      reordered_slow = slow.size();
      range.reordered = true;
      range.from = ShardStart(s);
    };
    if (array->seed != range.seed) reorder();
    for (uint64_t bucket = array->BucketAt(range.from); bucket < array->count; ++bucket) {
      if (batch->size >= max_rows && !range.reordered) {
        TFRA_RETURN_IF_ERROR(FillRows(&slow, batch));
        cursor->position = std::max(range.from, ShardStart(s) | array->FirstPosition(bucket));
        cursor->seed = range.seed;
        return Status::Ok();
      }
      const size_t complete = batch->size, complete_slow = slow.size();
      for (Backoff backoff; !ExportBucket(shard, *array, bucket, range, batch, &slow);
           backoff.Wait()) {
        Truncate(complete, batch);
        slow.resize(complete_slow);
        if (shard.array() == array) continue;
        // The shard has another array: go on from the same position there.
        range.from = std::max(range.from, ShardStart(s) | array->FirstPosition(bucket));
        if (!range.reordered) range.begin = range.from;
        const uint64_t seed = array->seed;
        array = shard.array();
        if (array->seed != seed) reorder();
        bucket = array->BucketAt(range.from);
      }
    }
    if (s + 1 < kShards) range = {ShardStart(s + 1), ShardStart(s + 1), 0, false};
  }
  TFRA_RETURN_IF_ERROR(FillRows(&slow, batch));
  cursor->done = true;
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
bool TableOf<Keys>::ExportBucket(const Shard& shard, const BucketArray& array, uint64_t home,
                                 const ExportRange& range, ExportBatch* batch,
                                 std::vector<SlowRow>* slow) const {
  if (home + kExportAhead < array.count) {
    const Bucket& later = array.buckets[home + kExportAhead];
    const uint32_t state = later.state.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < kBucketEntries; ++i) {
      const uint32_t number = later.rows[i].load(std::memory_order_relaxed);
      if (!(state >> i & 1) || IsSlow(number)) continue;
      Prefetch<false>(RowAt(number), layout_.stride);
    }
  }
  std::vector<const Bucket*> seen;
  SearchPath path(array, home);
  do {
    const Bucket* bucket = path.bucket();
    // In a small array a path may come back to a bucket.
    if (std::find(seen.begin(), seen.end(), bucket) != seen.end()) continue;
    const uint32_t state = bucket->state.load(std::memory_order_acquire);
    if ((state & (Bucket::kLocked | Bucket::kMoved)) == Bucket::kLocked) return false;
    const auto valid = [&] {
      return StillValid(bucket, state) && (!(state & Bucket::kMoved) || shard.array() == &array);
    };
    for (uint32_t i = 0; i < kBucketEntries; ++i) {
      if (!(state >> i & 1)) continue;
      const uint64_t word = bucket->words[i].load(std::memory_order_relaxed);
      const uint64_t hash = Keys::Hash(word);
      const uint64_t position = array.PositionOf(hash);
      if (array.BucketAt(position) != home || position < range.from) continue;
      if (range.reordered && BucketArray::PositionOf(hash, range.seed) < range.begin) continue;
      const uint32_t number = bucket->rows[i].load(std::memory_order_relaxed);
      AppendColumns(array, bucket, i, batch);
      if (IsSlow(number)) {
        // The slot, and the key's bytes, stay as they are while this thread is inside a guard.
        if (has_string_keys() && !valid()) return false;
        AppendEntry(word, number, batch, slow);
      } else if (has_string_keys() || has_string_values()) {
        // Pointers to strings may be followed only if they are this entry's.
        thread_local std::vector<std::byte> copy;
        copy.resize(layout_.stride);
        LoadRow(copy.data(), RowAt(number), layout_.stride);
        if (!valid()) return false;
        AppendRow(word, copy.data(), batch);
      } else {
        AppendRow(word, RowAt(number), batch);
      }
    }
    if (!valid()) return false;
    if (!(state & Bucket::kOverflow)) return true;
    seen.push_back(bucket);
  } while (path.Advance());
  return true;
}

template <typename Keys>
void TableOf<Keys>::AppendRow(uint64_t word, const std::byte* row, ExportBatch* batch) const {
  ++batch->size;
  if (has_string_keys()) {
    batch->string_keys.emplace_back(LoadBlob(row + layout_.key_offset)->view());
  } else {
    batch->int_keys.push_back(static_cast<int64_t>(word));
  }
  const auto append = [&](std::vector<std::byte>* bytes, size_t offset, size_t count) {
    const size_t end = bytes->size();
    bytes->resize(end + count);
    LoadRow(bytes->data() + end, row + offset, count);
  };
  if (has_string_values()) {
    for (int64_t j = 0; j < options_.dim; ++j) {
      batch->string_values.emplace_back(ViewOf(LoadBlob(row + j * sizeof(Blob*))));
    }
  } else {
    append(&batch->values, 0, layout_.value_bytes);
  }
  if (layout_.slots_bytes > 0) append(&batch->slots, layout_.slots_offset, layout_.slots_bytes);
}

template <typename Keys>
void TableOf<Keys>::AppendColumns(const BucketArray& array, const Bucket* bucket, uint32_t index,
                                  ExportBatch* batch) const {
  if (array.columns.scores) {
    batch->scores.push_back(__atomic_load_n(array.ScoreOf(bucket, index), __ATOMIC_RELAXED));
  }
  if (array.columns.metadata) batch->metadata.push_back(array.MetadataOf(bucket, index));
}

template <typename Keys>
void TableOf<Keys>::AppendEntry(uint64_t word, uint32_t number, ExportBatch* batch,
                                std::vector<SlowRow>* slow) const {
  if (!IsSlow(number)) {
    AppendRow(word, RowAt(number), batch);
    return;
  }
  slow->push_back({static_cast<uint32_t>(batch->size), SlotOf(number)});
  thread_local std::vector<std::byte> blank;
  blank.assign(layout_.stride, std::byte{0});
  if (has_string_keys()) StoreBlob(blank.data() + layout_.key_offset, KeyOf(number));
  AppendRow(word, blank.data(), batch);
}

template <typename Keys>
void TableOf<Keys>::Truncate(size_t rows, ExportBatch* batch) const {
  batch->size = rows;
  if (has_string_keys()) {
    batch->string_keys.resize(rows);
  } else {
    batch->int_keys.resize(rows);
  }
  if (has_string_values()) {
    batch->string_values.resize(rows * static_cast<size_t>(options_.dim));
  } else {
    batch->values.resize(rows * layout_.value_bytes);
  }
  batch->slots.resize(rows * layout_.slots_bytes);
  if (options_.metadata) batch->metadata.resize(rows);
  if (bounds_ != nullptr) batch->scores.resize(rows);
}

template <typename Keys>
Status TableOf<Keys>::CountIf(const MetadataPredicate& predicate, uint64_t* count) try {
  TFRA_RETURN_IF_ERROR(CheckMetadata("selecting by metadata"));
  std::vector<uint64_t> counts(kShards);
  VisitMetadata([&](size_t s, Shard::Entry, const RowMetadata& metadata) {
    counts[s] += predicate(metadata);
  });
  *count = 0;
  for (uint64_t each : counts) *count += each;
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::RemoveIf(const MetadataPredicate& predicate, uint64_t* removed) try {
  TFRA_RETURN_IF_ERROR(CheckMetadata("selecting by metadata"));
  *removed = RemoveByMetadata(&Tally::removals, predicate);
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::SelectIf(const MetadataPredicate& predicate, ExportBatch* batch) try {
  TFRA_RETURN_IF_ERROR(CheckMetadata("selecting by metadata"));
  *batch = ExportBatch();
  std::vector<ExportBatch> selected(kShards);
  VisitMetadata([&](size_t s, Shard::Entry entry, const RowMetadata& metadata) {
    if (!predicate(metadata)) return;
    ++selected[s].size;
    if (has_string_keys()) {
      selected[s].string_keys.emplace_back(KeyOf(entry.row())->view());
    } else {
      selected[s].int_keys.push_back(static_cast<int64_t>(entry.word()));
    }
  });
  for (const ExportBatch& each : selected) {
    batch->size += each.size;
    Append(&batch->int_keys, each.int_keys);
    Append(&batch->string_keys, each.string_keys);
  }
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

#define TFRA_INSTANTIATE(Keys)                                                            \
  template void TableOf<Keys>::AppendRow(uint64_t, const std::byte*, ExportBatch*) const; \
  template void TableOf<Keys>::Truncate(size_t, ExportBatch*) const;                      \
  template void TableOf<Keys>::AppendColumns(const BucketArray&, const Bucket*, uint32_t, \
                                             ExportBatch*) const;                         \
  template void TableOf<Keys>::AppendEntry(uint64_t, uint32_t, ExportBatch*,              \
                                           std::vector<SlowRow>*) const;                  \
  template Status TableOf<Keys>::Export(size_t, ExportCursor*, ExportBatch*);             \
  template Status TableOf<Keys>::CountIf(const MetadataPredicate&, uint64_t*);            \
  template Status TableOf<Keys>::RemoveIf(const MetadataPredicate&, uint64_t*);           \
  template Status TableOf<Keys>::SelectIf(const MetadataPredicate&, ExportBatch*);
TFRA_INSTANTIATE(IntKeys)
TFRA_INSTANTIATE(StringKeys)

}  // namespace tfra
