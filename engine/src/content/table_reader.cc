#include "content/table_reader.h"

namespace tfra {

Status TableReader::Next(ContentBatch* batch) {
  if (state_is_next_) {
    batch->kind = ContentBatch::kState;
    batch->state = ContentState();
    batch->state.epoch = table_->scores().epoch();
    TFRA_RETURN_IF_ERROR(table_->upkeep().ExportAdmission(&batch->state.admission));
    state_is_next_ = false;
    return Status::Ok();
  }
  batch->rows.Clear();
  while (!cursor_.done && batch->rows.size == 0) {
    TFRA_RETURN_IF_ERROR(table_->Export(batch_rows_, &cursor_, &batch->rows));
  }
  batch->kind = batch->rows.size > 0 ? ContentBatch::kRows : ContentBatch::kEnd;
  return Status::Ok();
}

Status TableReader::NextInto(const RowArrays& arrays, size_t* rows, ContentBatch* batch) {
  const bool at_first_row = cursor_.position == 0 && !cursor_.done;
  if (state_is_next_ || !at_first_row || !table_->ExportsAsWhole()) {
    return ContentReader::NextInto(arrays, rows, batch);
  }
  TFRA_RETURN_IF_ERROR(table_->ExportInto(arrays, rows, &batch->rows));
  batch->kind = ContentBatch::kRows;
  cursor_.done = true;
  return Status::Ok();
}

}  // namespace tfra
