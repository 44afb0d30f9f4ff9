// The content of a trained table: that of its table, and the steps.
#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "content/table_reader.h"
#include "content/table_writer.h"
#include "tfra/trained_table.h"

namespace tfra {
namespace {

class TrainedReader final : public ContentReader {
 public:
  TrainedReader(const TrainedTable* trained, Table* table, const ReadOptions& options)
      : trained_(*trained), reader_(table, options) {}

  const TableSpec& spec() const override { return reader_.spec(); }
  Status Next(ContentBatch* batch) override {
    TFRA_RETURN_IF_ERROR(reader_.Next(batch));
    AddSteps(batch);
    return Status::Ok();
  }
  Status NextInto(const RowArrays& arrays, size_t* rows, ContentBatch* batch) override {
    TFRA_RETURN_IF_ERROR(reader_.NextInto(arrays, rows, batch));
    AddSteps(batch);
    return Status::Ok();
  }

 private:
  void AddSteps(ContentBatch* batch) const {
    if (batch->kind != ContentBatch::kState) return;
    batch->state.epoch_steps = trained_.epoch_steps();
    batch->state.step = trained_.step();
  }

  const TrainedTable& trained_;
  TableReader reader_;
};

class TrainedWriter final : public ContentWriter {
 public:
  TrainedWriter(TrainedTable::Use* use, const WriteOptions& options)
      : use_(*use), options_(options), writer_(&**use, options) {}

  Status WriteState(const ContentState& state, const Partition& partition) override {
    epoch_steps_ = state.epoch_steps;
    step_ = state.step;
    return writer_.WriteState(state, partition);
  }
  Status WriteRemoved(const KeyBatch& keys, const Partition& partition) override {
    TFRA_RETURN_IF_ERROR(Begin());
    return writer_.WriteRemoved(keys, partition);
  }
  Status WriteRows(const RowColumns& rows, const Partition& partition) override {
    TFRA_RETURN_IF_ERROR(Begin());
    return writer_.WriteRows(rows, partition);
  }
  Status Finish() override {
    TFRA_RETURN_IF_ERROR(Begin());
    const bool is_bounded = use_->spec().bound.max_capacity > 0;
    if (epoch_steps_ && is_bounded) use_.trained().set_epoch_steps(*epoch_steps_);
    if (step_) use_.trained().set_step(*step_);
    return writer_.Finish();
  }

 private:
  // Before the first change.
  Status Begin() {
    if (begun_) return Status::Ok();
    if (options_.rule) {
      TFRA_RETURN_IF_ERROR(use_.UseRule(*options_.rule));
      writer_.MoveTo(&*use_);
    }
    if (options_.mode == WriteOptions::kReplace) use_.trained().Unbind();
    begun_ = true;
    return Status::Ok();
  }

  TrainedTable::Use& use_;
  const WriteOptions options_;
  TableWriter writer_;
  bool begun_ = false;
  std::optional<int64_t> epoch_steps_, step_;
};

}  // namespace

// Fills a table that takes the place of another.
class TrainedTable::Replacement final : public ContentWriter {
 public:
  // table: empty, and like that of `trained`.
  Replacement(TrainedTable* trained, std::unique_ptr<Table> table, const WriteOptions& options)
      : trained_(*trained),
        table_(std::move(table)),
        writer_(table_.get(),
                {.mode = WriteOptions::kChange, .expected_rows = options.expected_rows}) {}

  Status WriteState(const ContentState& state, const Partition& partition) override {
    has_epoch_ = state.epoch.has_value();
    epoch_steps_ = state.epoch_steps;
    step_ = state.step;
    return writer_.WriteState(state, partition);
  }
  Status WriteRemoved(const KeyBatch& keys, const Partition& partition) override {
    return writer_.WriteRemoved(keys, partition);
  }
  Status WriteRows(const RowColumns& rows, const Partition& partition) override {
    return writer_.WriteRows(rows, partition);
  }
  // All of Finish that takes memory.
  Status Prepare() {
    trained_.Enter();
    const bool metadata = trained_.table_->spec().metadata;
    trained_.Leave();
    return Prepare(metadata);
  }
  Status Finish() override {
    TFRA_RETURN_IF_ERROR(Prepare());
    return trained_.ChangeAlone([&] {
      TFRA_RETURN_IF_ERROR(Prepare(trained_.table_->spec().metadata));
      trained_.Unbind();  // If this fails, nothing has changed.
      const bool is_bounded = table_->spec().bound.max_capacity > 0;
      table_->AddHistory(*trained_.table_);
      if (is_bounded && !has_epoch_) table_->scores().SetEpoch(trained_.table_->scores().epoch());
      std::swap(table_, trained_.table_);  // The former one is freed after the others go on.
      if (is_bounded && epoch_steps_) trained_.set_epoch_steps(*epoch_steps_);
      if (step_) trained_.set_step(*step_);
      return Status::Ok();
    });
  }

 private:
  // metadata: whether the rows that are replaced have some. They may have got it since this began.
  Status Prepare(bool metadata) {
    if (!written_) TFRA_RETURN_IF_ERROR(writer_.Finish());
    written_ = true;
    if (!metadata || table_->spec().metadata) return Status::Ok();
    std::unique_ptr<Table> copy;
    TFRA_RETURN_IF_ERROR(table_->CopyWithMetadata(&copy));
    table_ = std::move(copy);
    return Status::Ok();
  }

  TrainedTable& trained_;
  std::unique_ptr<Table> table_;  // The new one; after Finish, the former one.
  TableWriter writer_;            // Of the new table.
  bool written_ = false;          // Whether the writer has finished.
  bool has_epoch_ = false;
  std::optional<int64_t> epoch_steps_, step_;
};

std::unique_ptr<ContentReader> TrainedTable::Use::NewReader(const ReadOptions& options) const {
  return std::make_unique<TrainedReader>(table_.get(), table_->table_.get(), options);
}

std::unique_ptr<ContentWriter> TrainedTable::Use::NewWriter(const WriteOptions& options) {
  return std::make_unique<TrainedWriter>(this, options);
}

Status TrainedTable::NewReplacement(const WriteOptions& options,
                                    std::unique_ptr<ContentWriter>* writer) try {
  std::unique_ptr<Table> table;
  Enter();
  const Status status = table_->MakeLike(options.rule.value_or(table_->spec().rule), &table);
  Leave();
  TFRA_RETURN_IF_ERROR(status);
  *writer = std::make_unique<Replacement>(this, std::move(table), options);
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status TrainedTable::KeepReplacement(std::unique_ptr<ContentWriter> writer) {
  TFRA_RETURN_IF_ERROR(static_cast<Replacement*>(writer.get())->Prepare());
  const std::lock_guard lock(changing_);
  replacement_.swap(writer);
  return Status::Ok();
}

std::unique_ptr<ContentWriter> TrainedTable::TakeReplacement() {
  const std::lock_guard lock(changing_);
  return std::move(replacement_);
}

Status TrainedTable::FinishReplacements(
    const std::vector<std::shared_ptr<TrainedTable>>& tables) try {
  for (const auto& table : tables) TFRA_RETURN_IF_ERROR(table->RequireNoCall());
  std::vector<std::unique_ptr<ContentWriter>> kept(tables.size());
  for (size_t i = 0; i < tables.size(); ++i) kept[i] = tables[i]->TakeReplacement();
  if (std::count(kept.begin(), kept.end(), nullptr) > 0) {
    return Status::FailedPrecondition(
        "expected tables whose restore has begun, received one where another restore, which began "
        "later, has ended");
  }
  for (const auto& writer : kept) {
    TFRA_RETURN_IF_ERROR(static_cast<Replacement*>(writer.get())->Prepare());
  }
  for (const auto& writer : kept) TFRA_RETURN_IF_ERROR(writer->Finish());
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

}  // namespace tfra
