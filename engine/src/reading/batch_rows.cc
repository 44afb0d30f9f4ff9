#include "reading/batch_rows.h"

#include <cstring>

#include "memory/blob.h"

namespace tfra {

void BatchRows::AppendRow(uint64_t key_bits, const std::byte* row, ExportBatch* batch) const {
  ++batch->size;
  if (state_.has_string_keys()) {
    batch->string_keys.Append(LoadBlob(row + state_.layout.key_offset)->view());
  } else {
    batch->int_keys.push_back(static_cast<int64_t>(key_bits));
  }
  const auto append = [&](std::vector<std::byte>* bytes, size_t offset, size_t count) {
    const size_t end = bytes->size();
    bytes->resize(end + count);
    LoadRow(bytes->data() + end, row + offset, count);
  };
  if (state_.has_string_values()) {
    for (int64_t j = 0; j < state_.spec.dim; ++j) {
      batch->string_values.Append(ViewOf(LoadBlob(row + j * sizeof(Blob*))));
    }
  } else {
    append(&batch->values, 0, state_.layout.value_bytes);
  }
  if (state_.layout.slots_bytes > 0)
    append(&batch->slots, state_.layout.slots_offset, state_.layout.slots_bytes);
}

void BatchRows::AppendColumns(const BucketArray& array, const Bucket* bucket, uint32_t index,
                              ExportBatch* batch) const {
  if (array.columns.scores) {
    batch->scores.push_back(__atomic_load_n(array.ScoreOf(bucket, index), __ATOMIC_RELAXED));
  }
  if (array.columns.metadata) batch->metadata.push_back(array.MetadataOf(bucket, index));
}

void BatchRows::AppendEntry(uint64_t key_bits, uint32_t row_id, ExportBatch* batch,
                            std::vector<SlowRow>* slow) const {
  if (!state_.IsSlow(row_id)) {
    AppendRow(key_bits, state_.RowAt(row_id), batch);
    return;
  }
  slow->push_back({static_cast<uint32_t>(batch->size), RecordOf(row_id)});
  thread_local std::vector<std::byte> blank;
  blank.assign(state_.layout.stride, std::byte{0});
  if (state_.has_string_keys())
    StoreBlob(blank.data() + state_.layout.key_offset, state_.KeyOf(row_id));
  AppendRow(key_bits, blank.data(), batch);
}

void BatchRows::Truncate(size_t rows, ExportBatch* batch) const {
  batch->size = rows;
  if (state_.has_string_keys()) {
    batch->string_keys.Truncate(rows);
  } else {
    batch->int_keys.resize(rows);
  }
  if (state_.has_string_values()) {
    batch->string_values.Truncate(rows * static_cast<size_t>(state_.spec.dim));
  } else {
    batch->values.resize(rows * state_.layout.value_bytes);
  }
  batch->slots.resize(rows * state_.layout.slots_bytes);
  if (state_.spec.metadata) batch->metadata.resize(rows);
  if (state_.bounds != nullptr) batch->scores.resize(rows);
}

}  // namespace tfra
