// Content of tables to files, and back. Contract: tfra/snapshot.h.
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "snapshot/part_reader.h"
#include "snapshot/part_writer.h"
#include "tfra/snapshot.h"

namespace tfra {
namespace {

// Writes a content to a file.
class ToPart final : public ContentWriter {
 public:
  // numbers: gets those of the state, unless it is null.
  ToPart(PartWriter* writer, ContentState* numbers) : writer_(*writer), numbers_(numbers) {}

  Status WriteState(const ContentState& state, const Partition&) override {
    const AdmissionState& admission = state.admission;
    const std::vector<std::string_view> texts = admission.string_keys.views();
    const KeyBatch keys = texts.empty()
                              ? KeyBatch(admission.int_keys.data(), admission.int_keys.size())
                              : KeyBatch(texts.data(), texts.size());
    if (numbers_ != nullptr) {
      *numbers_ = ContentState();
      numbers_->epoch = state.epoch;
      numbers_->epoch_steps = state.epoch_steps;
      numbers_->step = state.step;
    }
    TFRA_RETURN_IF_ERROR(writer_.WriteWaiting(keys, admission.seen.data()));
    return writer_.WriteFilter(admission.filter.data(), admission.filter.size());
  }
  Status WriteRemoved(const KeyBatch& keys, const Partition&) override {
    return writer_.WriteRemoved(keys);
  }
  Status WriteRows(const RowColumns& rows, const Partition&) override {
    return writer_.WriteRows(rows);
  }
  Status Finish() override { return writer_.Finish(); }

 private:
  PartWriter& writer_;
  ContentState* const numbers_;
};

}  // namespace

Status WritePart(const PartName& name, ContentReader* reader, ContentState* numbers,
                 PartFigures* figures) try {
  RowFormat format;
  TFRA_RETURN_IF_ERROR(RowFormat::Of(reader->spec(), &format));
  PartWriter writer(name.path, name.snapshot, name.part, format);
  TFRA_RETURN_IF_ERROR(writer.Open());
  ToPart part(&writer, numbers);
  TFRA_RETURN_IF_ERROR(CopyContent(reader, &part));
  *figures = {writer.bytes(), writer.blocks(), writer.rows(), writer.removed()};
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status ReadPart(const PartName& name, const TableSpec& spec, const ContentState* numbers,
                ContentWriter* writer, PartFigures* figures) try {
  RowFormat format;
  TFRA_RETURN_IF_ERROR(RowFormat::Of(spec, &format));
  PartReader reader(name.path, name.snapshot, name.part, format);
  TFRA_RETURN_IF_ERROR(reader.Open());
  ContentState state = numbers == nullptr ? ContentState() : *numbers;
  bool is_state_next = numbers != nullptr;
  Block block;
  do {
    TFRA_RETURN_IF_ERROR(reader.Next(&block));
    const KeyBatch& keys = block.rows.keys;
    const bool is_state = block.kind == BlockKind::kWaiting || block.kind == BlockKind::kFilter;
    if (is_state && !is_state_next) {
      return reader.Damaged("has waiting keys, or a filter, where none were expected");
    }
    if (is_state_next && !is_state) {
      TFRA_RETURN_IF_ERROR(writer->WriteState(state));
      state = ContentState();
      is_state_next = false;
    }
    AdmissionState& admission = state.admission;
    switch (block.kind) {
      case BlockKind::kWaiting:
        for (size_t i = 0; i < keys.size; ++i) {
          if (keys.type == KeyType::kString) {
            admission.string_keys.Append(keys.strings[i]);
          } else {
            admission.int_keys.push_back(keys.ints[i]);
          }
        }
        admission.seen.insert(admission.seen.end(), block.rows.metadata,
                              block.rows.metadata + keys.size);
        break;
      case BlockKind::kFilter:
        admission.filter.insert(admission.filter.end(), block.filter,
                                block.filter + block.filter_bytes);
        break;
      case BlockKind::kRemoved:
        TFRA_RETURN_IF_ERROR(writer->WriteRemoved(keys));
        break;
      case BlockKind::kRows:
        TFRA_RETURN_IF_ERROR(writer->WriteRows(block.rows));
        break;
      case BlockKind::kEnd:
        break;
    }
  } while (block.kind != BlockKind::kEnd);
  *figures = {reader.bytes(), reader.blocks(), reader.rows(), reader.removed()};
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

}  // namespace tfra
