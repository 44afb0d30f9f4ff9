#include <algorithm>
#include <cstring>
#include <string>

#include "table/table_find.h"
#include "table/table_visit.h"

namespace tfra {
namespace {

// How many buckets ahead an export prefetches rows.
constexpr uint64_t kExportAhead = 4;

// The first hash of a stripe.
uint64_t StripeStart(uint32_t stripe) { return uint64_t{stripe} << (64 - kStripeBits); }

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
  ReadGuard guard;
  std::vector<SlowRow> slow;
  ExportRange range{cursor->position, cursor->position, cursor->seed, false};
  for (uint32_t s = StripeOf(range.from); s < kStripes; ++s) {
    const Stripe& stripe = stripes_[s];
    const BucketArray* array = stripe.array();
    if (range.from == StripeStart(s)) range.seed = array->seed;
    // Rows of a stripe that took a new seed come in one batch. They begin here in `batch` and
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
      range.from = StripeStart(s);
    };
    if (array->seed != range.seed) reorder();
    for (uint64_t bucket = array->BucketAt(range.from); bucket < array->count; ++bucket) {
      if (batch->size >= max_rows && !range.reordered) {
        TFRA_RETURN_IF_ERROR(FillRows(&slow, batch));
        cursor->position = std::max(range.from, StripeStart(s) | array->FirstPosition(bucket));
        cursor->seed = range.seed;
        return Status::Ok();
      }
      const size_t complete = batch->size, complete_slow = slow.size();
      for (Backoff backoff; !ExportBucket(stripe, *array, bucket, range, batch, &slow);
           backoff.Wait()) {
        Truncate(complete, batch);
        slow.resize(complete_slow);
        if (stripe.array() == array) continue;
        // The stripe has another array: go on from the same position there.
        range.from = std::max(range.from, StripeStart(s) | array->FirstPosition(bucket));
        if (!range.reordered) range.begin = range.from;
        const uint64_t seed = array->seed;
        array = stripe.array();
        if (array->seed != seed) reorder();
        bucket = array->BucketAt(range.from);
      }
    }
    if (s + 1 < kStripes) range = {StripeStart(s + 1), StripeStart(s + 1), 0, false};
  }
  TFRA_RETURN_IF_ERROR(FillRows(&slow, batch));
  cursor->done = true;
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
bool TableOf<Keys>::ExportBucket(const Stripe& stripe, const BucketArray& array, uint64_t home,
                                 const ExportRange& range, ExportBatch* batch,
                                 std::vector<SlowRow>* slow) const {
  if (home + kExportAhead < array.count) {
    const Bucket& later = array.buckets[home + kExportAhead];
    const uint32_t state = later.state.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < kBucketEntries; ++i) {
      const uint32_t row_id = later.rows[i].load(std::memory_order_relaxed);
      if (!(state >> i & 1) || IsSlow(row_id)) continue;
      Prefetch<false>(RowAt(row_id), layout_.stride);
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
      return StillValid(bucket, state) && (!(state & Bucket::kMoved) || stripe.array() == &array);
    };
    for (uint32_t i = 0; i < kBucketEntries; ++i) {
      if (!(state >> i & 1)) continue;
      const uint64_t key_bits = bucket->bits[i].load(std::memory_order_relaxed);
      const uint64_t hash = Keys::Hash(key_bits);
      const uint64_t position = array.PositionOf(hash);
      if (array.BucketAt(position) != home || position < range.from) continue;
      if (range.reordered && BucketArray::PositionOf(hash, range.seed) < range.begin) continue;
      const uint32_t row_id = bucket->rows[i].load(std::memory_order_relaxed);
      AppendColumns(array, bucket, i, batch);
      if (IsSlow(row_id)) {
        // The record, and the key's bytes, stay as they are while this thread is inside a guard.
        if (has_string_keys() && !valid()) return false;
        AppendEntry(key_bits, row_id, batch, slow);
      } else if (has_string_keys() || has_string_values()) {
        // Pointers to strings may be followed only if they are this entry's.
        thread_local std::vector<std::byte> copy;
        copy.resize(layout_.stride);
        LoadRow(copy.data(), RowAt(row_id), layout_.stride);
        if (!valid()) return false;
        AppendRow(key_bits, copy.data(), batch);
      } else {
        AppendRow(key_bits, RowAt(row_id), batch);
      }
    }
    if (!valid()) return false;
    if (!(state & Bucket::kOverflow)) return true;
    seen.push_back(bucket);
  } while (path.Advance());
  return true;
}

template <typename Keys>
void TableOf<Keys>::AppendRow(uint64_t key_bits, const std::byte* row, ExportBatch* batch) const {
  ++batch->size;
  if (has_string_keys()) {
    batch->string_keys.emplace_back(LoadBlob(row + layout_.key_offset)->view());
  } else {
    batch->int_keys.push_back(static_cast<int64_t>(key_bits));
  }
  const auto append = [&](std::vector<std::byte>* bytes, size_t offset, size_t count) {
    const size_t end = bytes->size();
    bytes->resize(end + count);
    LoadRow(bytes->data() + end, row + offset, count);
  };
  if (has_string_values()) {
    for (int64_t j = 0; j < spec_.dim; ++j) {
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
void TableOf<Keys>::AppendEntry(uint64_t key_bits, uint32_t row_id, ExportBatch* batch,
                                std::vector<SlowRow>* slow) const {
  if (!IsSlow(row_id)) {
    AppendRow(key_bits, RowAt(row_id), batch);
    return;
  }
  slow->push_back({static_cast<uint32_t>(batch->size), RecordOf(row_id)});
  thread_local std::vector<std::byte> blank;
  blank.assign(layout_.stride, std::byte{0});
  if (has_string_keys()) StoreBlob(blank.data() + layout_.key_offset, KeyOf(row_id));
  AppendRow(key_bits, blank.data(), batch);
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
    batch->string_values.resize(rows * static_cast<size_t>(spec_.dim));
  } else {
    batch->values.resize(rows * layout_.value_bytes);
  }
  batch->slots.resize(rows * layout_.slots_bytes);
  if (spec_.metadata) batch->metadata.resize(rows);
  if (bounds_ != nullptr) batch->scores.resize(rows);
}

template <typename Keys>
Status TableOf<Keys>::CountIf(const MetadataPredicate& predicate, uint64_t* count) try {
  TFRA_RETURN_IF_ERROR(CheckMetadata("selecting by metadata"));
  std::vector<uint64_t> counts(kStripes);
  VisitMetadata([&](size_t s, Stripe::Entry, const RowMetadata& metadata) {
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
  std::vector<ExportBatch> selected(kStripes);
  VisitMetadata([&](size_t s, Stripe::Entry entry, const RowMetadata& metadata) {
    if (!predicate(metadata)) return;
    ++selected[s].size;
    if (has_string_keys()) {
      selected[s].string_keys.emplace_back(KeyOf(entry.row())->view());
    } else {
      selected[s].int_keys.push_back(static_cast<int64_t>(entry.key_bits()));
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
