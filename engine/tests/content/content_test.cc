// The contract of tfra/content.h: what a reader takes out of a table, a writer puts into another.
#include "tfra/content.h"

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "content_helpers.h"
#include "table_helpers.h"
#include "tfra/trained_table.h"

namespace tfra::test {
namespace {

constexpr size_t kDim = 2;
constexpr int64_t kKeys = 300;

TableSpec SpecOf(KeyType key_type, ValueType value_type) {
  TableSpec spec;
  spec.key_type = key_type;
  spec.value_type = value_type;
  spec.dim = kDim;
  spec.metadata = true;
  return spec;
}

TestRows RowsOf(ValueType type, int64_t n) {
  return TestRows::Make(type, static_cast<size_t>(n), kDim,
                        [](size_t i, size_t j) { return static_cast<int>((i + j) % 50) + 1; });
}

void Fill(const TrainedTable::Use& table) {
  const TestKeys keys = TestKeys::Range(table->spec().key_type, 0, kKeys);
  table->upkeep().SetClock(17);
  CHECK_OK(table->Assign(keys.batch(), RowsOf(table->spec().value_type, kKeys).in()));
}

// Gives recorded batches, as a reader of a file would.
class Recorded final : public ContentReader {
 public:
  Recorded(const TableSpec& spec, std::vector<ContentBatch> batches)
      : spec_(spec), batches_(std::move(batches)) {}

  const TableSpec& spec() const override { return spec_; }
  Status Next(ContentBatch* batch) override {
    *batch = next_ < batches_.size() ? batches_[next_++] : ContentBatch();
    return Status::Ok();
  }

 private:
  const TableSpec spec_;
  const std::vector<ContentBatch> batches_;
  size_t next_ = 0;
};

std::vector<ContentBatch> BatchesOf(const TrainedTable::Use& table, const ReadOptions& options) {
  const auto reader = table.NewReader(options);
  std::vector<ContentBatch> batches;
  for (;;) {
    ContentBatch batch;
    CHECK_OK(reader->Next(&batch));
    if (batch.kind == ContentBatch::kEnd) break;
    batches.push_back(std::move(batch));
  }
  ContentBatch again;
  CHECK_OK(reader->Next(&again));
  CHECK(again.kind == ContentBatch::kEnd);
  return batches;
}

void Copy(const TrainedTable::Use& from, TrainedTable::Use* to) {
  const auto reader = from.NewReader({.batch_rows = 50});
  const auto writer = to->NewWriter({.rule = from->spec().rule});
  CHECK_OK(CopyContent(reader.get(), writer.get()));
}

}  // namespace

TEST(StringColumnKeepsStrings) {
  StringColumn column;
  CHECK(column.empty());
  column.Append("one");
  column.Append("");
  column.Append(std::string_view("a\0b", 3));
  StringColumn other;
  other.Append("x");
  other.Append(column);
  CHECK_EQ(other.size(), 4u);
  CHECK_EQ(std::string(other[0]), "x");
  CHECK_EQ(std::string(other[1]), "one");
  CHECK_EQ(std::string(other[2]), "");
  CHECK_EQ(std::string(other[3]), std::string("a\0b", 3));
  CHECK(other.ends() == std::vector<uint64_t>({1, 4, 4, 7}));
  other.Truncate(2);
  other.Append("two");
  CHECK_EQ(std::string(other[2]), "two");
  other.Clear();
  CHECK(other.empty() && other.bytes().empty());
}

TEST(ContentOfEveryTypeIsCopied) {
  for (const KeyType key_type : {KeyType::kInt64, KeyType::kString}) {
    for (const ValueType value_type : kValueTypes) {
      const TrainedTable::Use from(MakeTrained(SpecOf(key_type, value_type)));
      Fill(from);
      TrainedTable::Use to(MakeTrained(SpecOf(key_type, value_type)));
      const TestKeys others = TestKeys::Range(key_type, 1000, 1010);
      CHECK_OK(to->Assign(others.batch(), RowsOf(value_type, 10).in()));
      Copy(from, &to);
      CHECK(LinesOf(*from) == LinesOf(*to));  // What was there before is gone.
      CHECK_EQ(to->size(), static_cast<uint64_t>(kKeys));
    }
  }
}

TEST(ContentOfAnEmptyTableEmptiesAnother) {
  const TrainedTable::Use from(MakeTrained(SpecOf(KeyType::kInt64, ValueType::kFloat32)));
  TrainedTable::Use to(MakeTrained(from->spec()));
  Fill(to);
  Copy(from, &to);
  CHECK_EQ(to->size(), 0u);
}

TEST(ContentBatchesHaveTheirOrderAndSize) {
  const TrainedTable::Use table(MakeTrained(SpecOf(KeyType::kInt64, ValueType::kFloat32)));
  Fill(table);
  const std::vector<ContentBatch> batches = BatchesOf(table, {.batch_rows = 50});
  CHECK(batches[0].kind == ContentBatch::kState);
  size_t rows = 0;
  for (size_t i = 1; i < batches.size(); ++i) {
    CHECK(batches[i].kind == ContentBatch::kRows);
    CHECK(batches[i].rows.size > 0 && batches[i].rows.size < 100);
    rows += batches[i].rows.size;
  }
  CHECK_EQ(rows, static_cast<size_t>(kKeys));
  CHECK(BatchesOf(table, {.state = false})[0].kind == ContentBatch::kRows);
}

TEST(ContentTakesSlotsAndStepsAlong) {
  const RuleSpec adam{RuleKind::kAdam};
  TrainedTable::Use from(MakeTrained(SpecOf(KeyType::kInt64, ValueType::kFloat32)));
  Fill(from);
  const TestKeys keys = TestKeys::Range(KeyType::kInt64, 100, 400);
  const std::vector<float> gradients(300 * kDim, 0.5f);
  for (int step = 0; step < 3; ++step) {
    CHECK_OK(
        from.ApplyGradients(keys.batch(), gradients.data(), ValueType::kFloat32, adam, {}, false));
  }
  TrainedTable::Use to(MakeTrained(SpecOf(KeyType::kInt64, ValueType::kFloat32)));
  CHECK_OK(to.Bind({"sgd", "sgd 1", "here"}, OptimizerKeeps::kSlots, 1, "table"));
  Copy(from, &to);
  CHECK(to.HasSlotsOf(adam));
  CHECK_EQ(to.trained().step(), 3);
  CHECK(LinesOf(*from) == LinesOf(*to));
  // Nobody is bound: the next optimizer goes on with the slots.
  CHECK_OK(to.Bind({"adam", "adam 1", "here"}, OptimizerKeeps::kSlots, 4, "table"));
  CHECK(to.HasSlotsOf(adam));
}

TEST(ContentTakesScoresAndEpochAlong) {
  TableSpec spec = SpecOf(KeyType::kString, ValueType::kFloat32);
  spec.bound = {.max_capacity = 1000, .strategy = EvictStrategy::kEpochLru, .steps_per_epoch = 2};
  const TrainedTable::Use from(MakeTrained(spec));
  for (int i = 0; i < 7; ++i) from.CountStep();
  Fill(from);
  TrainedTable::Use to(MakeTrained(spec));
  Copy(from, &to);
  CHECK_EQ(to->scores().epoch(), 3u);
  CHECK_EQ(to.trained().epoch_steps(), 7);
  CHECK(LinesOf(*from) == LinesOf(*to));
}

TEST(ContentTakesWaitingKeysAlong) {
  for (const KeyType key_type : {KeyType::kInt64, KeyType::kString}) {
    TableSpec spec = SpecOf(key_type, ValueType::kFloat32);
    spec.admission.kind = AdmissionKind::kMinCount;
    spec.admission.min_count = 3;
    TrainedTable::Use from(MakeTrained(spec));
    Fill(from);
    const TestKeys waiting = TestKeys::Range(key_type, 5000, 5020);
    CHECK_OK(from->upkeep().Touch(waiting.batch()));
    CHECK_OK(from->upkeep().Touch(waiting.batch()));
    TrainedTable::Use to(MakeTrained(spec));
    Copy(from, &to);
    CHECK_EQ(to->stats().waiting, 20u);
    CHECK_OK(to->upkeep().Touch(waiting.batch()));  // The third time: they enter.
    CHECK_EQ(to->size(), static_cast<uint64_t>(kKeys) + 20);

    // A table of another rule refuses the state, and stays as it is.
    spec.admission.kind = AdmissionKind::kBloomFilter;
    spec.admission.filter_keys = 1000;
    TrainedTable::Use other(MakeTrained(spec));
    Fill(other);
    const auto reader = from.NewReader();
    const auto writer = other.NewWriter();
    CHECK(CopyContent(reader.get(), writer.get()).code() == StatusCode::kInvalidArgument);
    CHECK_EQ(other->size(), static_cast<uint64_t>(kKeys));
    // A table that every key may enter has no use for it.
    TrainedTable::Use open(MakeTrained(SpecOf(key_type, ValueType::kFloat32)));
    Copy(from, &open);
    CHECK_EQ(open->size(), static_cast<uint64_t>(kKeys));
  }
}

TEST(ContentIsSplitOverPartitions) {
  for (const int64_t fast_bytes : {0, 4096}) {
    for (const KeyType key_type : {KeyType::kInt64, KeyType::kString}) {
      TableSpec spec = SpecOf(key_type, ValueType::kFloat32);
      spec.admission.kind = AdmissionKind::kMinCount;
      spec.admission.min_count = 3;
      spec.tiers.fast_bytes = static_cast<uint64_t>(fast_bytes);
      const TestKeys keys = TestKeys::Range(key_type, 0, kKeys);
      const TestKeys waiting = TestKeys::Range(key_type, 5000, 5020);
      ContentState state;
      for (size_t i = 0; i < waiting.size(); ++i) {
        state.admission.seen.push_back({5, 2});
        if (key_type == KeyType::kString) {
          state.admission.string_keys.Append(waiting.batch().strings[i]);
        } else {
          state.admission.int_keys.push_back(waiting.batch().ints[i]);
        }
      }
      const TestRows rows = RowsOf(ValueType::kFloat32, kKeys);
      std::vector<int32_t> partitions(static_cast<size_t>(kKeys));
      for (size_t i = 0; i < partitions.size(); ++i) partitions[i] = static_cast<int32_t>(i % 3);
      std::map<std::string, std::string> together;
      uint64_t waits = 0;
      for (int32_t number = 0; number < 3; ++number) {
        TrainedTable::Use table(MakeTrained(spec));
        const auto writer = table.NewWriter();
        const Partition partition{partitions.data(), number, 3};
        CHECK_OK(writer->WriteState(state, partition));
        CHECK_OK(writer->WriteRows({.keys = keys.batch(), .values = rows.in()}, partition));
        const size_t half = static_cast<size_t>(kKeys) / 2;
        const KeyBatch gone = key_type == KeyType::kString ? KeyBatch(keys.batch().strings, half)
                                                           : KeyBatch(keys.batch().ints, half);
        CHECK_OK(writer->WriteRemoved(gone, partition));
        CHECK_OK(writer->Finish());
        CHECK_EQ(table->size(), 50u);
        waits += table->stats().waiting;
        together.merge(LinesOf(*table));
      }
      CHECK_EQ(together.size(), 150u);
      CHECK_EQ(waits, waiting.size());
      CHECK_EQ(together.count(keys.Name(0)), 0u);
      CHECK_EQ(together.count(keys.Name(299)), 1u);
    }
  }
}

TEST(ContentOfChangesRemovesThenAdds) {
  const TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32);
  TrainedTable::Use table(MakeTrained(spec));
  Fill(table);
  ContentBatch removed, added;
  removed.kind = ContentBatch::kRemoved;
  removed.rows.size = 3;
  removed.rows.int_keys = {5, 6, 100000};  // One of them was not there.
  added.kind = ContentBatch::kRows;
  added.rows.size = 2;
  added.rows.int_keys = {6, 400};
  const float values[] = {1, 2, 3, 4};
  added.rows.values.resize(sizeof(values));
  std::memcpy(added.rows.values.data(), values, sizeof(values));
  added.rows.metadata = {{20, 3}, {21, 4}};
  Recorded changes(spec, {removed, added});
  const auto writer = table.NewWriter({.mode = WriteOptions::kChange});
  CHECK_OK(CopyContent(&changes, writer.get()));
  const auto lines = LinesOf(*table);
  CHECK_EQ(lines.size(), static_cast<size_t>(kKeys));
  CHECK_EQ(lines.count("5"), 0u);
  CHECK_EQ(lines.at("6"), "1 2  at 20 count 3");
  CHECK_EQ(lines.at("400"), "3 4  at 21 count 4");
}

TEST(ContentThatIsTooLargeKeepsTheBestRows) {
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32);
  spec.bound = {.max_capacity = 100, .strategy = EvictStrategy::kCustomized};
  const TestKeys keys = TestKeys::Range(KeyType::kInt64, 0, kKeys);
  const TestRows rows = RowsOf(ValueType::kFloat32, kKeys);
  std::vector<uint64_t> scores(static_cast<size_t>(kKeys));
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = i * 7 % scores.size();
  TrainedTable::Use table(MakeTrained(spec));
  const auto writer = table.NewWriter();
  CHECK_OK(writer->WriteRows({.keys = keys.batch(), .values = rows.in(), .scores = scores.data()}));
  CHECK_OK(writer->Finish());
  ExportBatch batch;
  CHECK_OK(table->ExportAll(&batch));
  CHECK_EQ(batch.size, 100u);
  for (const uint64_t score : batch.scores) CHECK(score >= 200);
}

TEST(ContentGoesStraightIntoMemory) {
  const TrainedTable::Use table(MakeTrained(SpecOf(KeyType::kInt64, ValueType::kFloat32)));
  Fill(table);
  for (const size_t room : {static_cast<size_t>(kKeys), size_t{100}}) {
    std::vector<int64_t> keys(room);
    const auto reader = table.NewReader();
    ContentBatch batch;
    size_t rows = 99;
    const RowArrays arrays{.room = room, .keys = keys.data()};
    CHECK_OK(reader->NextInto(arrays, &rows, &batch));
    CHECK(batch.kind == ContentBatch::kState);
    CHECK_EQ(rows, 0u);
    CHECK_OK(reader->NextInto(arrays, &rows, &batch));
    CHECK(batch.kind == ContentBatch::kRows);
    CHECK_EQ(rows, room);
    CHECK_EQ(rows + batch.rows.size, static_cast<size_t>(kKeys));
    CHECK_OK(reader->NextInto(arrays, &rows, &batch));
    CHECK(batch.kind == ContentBatch::kEnd);
    CHECK_EQ(rows, 0u);
  }
}

}  // namespace tfra::test
