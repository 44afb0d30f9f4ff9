#include <iterator>
#include <utility>

#include "base/errors.h"
#include "tfra/content.h"
#include "tfra/store.h"

namespace tfra {
namespace {

template <typename T>
void AppendTo(std::vector<T>* to, const std::vector<T>& from) {
  to->insert(to->end(), from.begin(), from.end());
}

// The rows of a batch as columns that point to it.
class BatchColumns {
 public:
  BatchColumns(const TableSpec& spec, const ExportBatch& batch)
      : spec_(spec),
        batch_(batch),
        keys_(batch.string_keys.views()),
        values_(batch.string_values.views()) {}

  KeyBatch keys() const {
    return spec_.key_type == KeyType::kString
               ? KeyBatch(keys_.data(), keys_.size())
               : KeyBatch(batch_.int_keys.data(), batch_.int_keys.size());
  }
  RowColumns rows() const {
    return {.keys = keys(),
            .values = spec_.value_type == ValueType::kString
                          ? static_cast<const void*>(values_.data())
                          : static_cast<const void*>(batch_.values.data()),
            .slots = batch_.slots.empty() ? nullptr : batch_.slots.data(),
            .metadata = spec_.metadata ? batch_.metadata.data() : nullptr,
            .scores = spec_.bound.max_capacity > 0 ? batch_.scores.data() : nullptr};
  }

 private:
  const TableSpec& spec_;
  const ExportBatch& batch_;
  const std::vector<std::string_view> keys_, values_;
};

}  // namespace

void ExportBatch::Append(ExportBatch&& other) {
  if (size == 0) {
    std::swap(*this, other);
    return;
  }
  size += other.size;
  AppendTo(&int_keys, other.int_keys);
  string_keys.Append(other.string_keys);
  AppendTo(&values, other.values);
  string_values.Append(other.string_values);
  AppendTo(&slots, other.slots);
  AppendTo(&metadata, other.metadata);
  AppendTo(&scores, other.scores);
}

void ExportBatch::Clear() {
  size = 0;
  int_keys.clear();
  string_keys.Clear();
  values.clear();
  string_values.Clear();
  slots.clear();
  metadata.clear();
  scores.clear();
}

void AdmissionState::Append(const AdmissionState& other) {
  AppendTo(&int_keys, other.int_keys);
  string_keys.Append(other.string_keys);
  AppendTo(&seen, other.seen);
  AppendTo(&filter, other.filter);
}

Status Store::Import(const ExportBatch& batch) try {
  const BatchColumns columns(spec(), batch);
  const RowColumns rows = columns.rows();
  return Assign(rows.keys, rows.values, rows.slots, rows.metadata,
                rows.scores == nullptr ? Scores() : Scores{Scores::kExact, rows.scores});
}
TFRA_CATCH_BAD_ALLOC

Status ContentReader::NextInto(const RowArrays&, size_t* rows, ContentBatch* batch) {
  *rows = 0;
  return Next(batch);
}

Status CopyContent(ContentReader* reader, ContentWriter* writer) try {
  ContentBatch batch;
  for (;;) {
    TFRA_RETURN_IF_ERROR(reader->Next(&batch));
    switch (batch.kind) {
      case ContentBatch::kEnd:
        return writer->Finish();
      case ContentBatch::kState:
        TFRA_RETURN_IF_ERROR(writer->WriteState(batch.state));
        break;
      case ContentBatch::kRemoved:
        TFRA_RETURN_IF_ERROR(writer->WriteRemoved(BatchColumns(reader->spec(), batch.rows).keys()));
        break;
      case ContentBatch::kRows:
        TFRA_RETURN_IF_ERROR(writer->WriteRows(BatchColumns(reader->spec(), batch.rows).rows()));
        break;
    }
  }
}
TFRA_CATCH_BAD_ALLOC

}  // namespace tfra
