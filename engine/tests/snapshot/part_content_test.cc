// Tables to files and back, through the content stream.
#include <filesystem>
#include <memory>
#include <string>

#include "admission_helpers.h"
#include "check.h"
#include "content_helpers.h"
#include "folder_helpers.h"
#include "snapshot/part_writer.h"
#include "table_helpers.h"
#include "tfra/snapshot.h"
#include "tfra/trained_table.h"

namespace tfra::test {
namespace {

constexpr size_t kDim = 3;

// Tables with every column, or only some.
std::vector<TableSpec> Specs() {
  std::vector<TableSpec> specs;
  for (const KeyType key_type : {KeyType::kInt64, KeyType::kString}) {
    for (const ValueType value_type : kValueTypes) {
      TableSpec spec = SpecOf(key_type, value_type, kDim);
      specs.push_back(spec);
      spec.metadata = true;
      if (IsFloating(value_type)) spec.rule.kind = RuleKind::kAdam;
      spec.bound = {.max_capacity = 100'000, .strategy = EvictStrategy::kEpochLfu};
      specs.push_back(spec);
    }
    for (const AdmissionSpec& admission : {MinCount(3), Bloom(3, 300'000, 0.01)}) {
      TableSpec spec = SpecOf(key_type, ValueType::kFloat32, kDim);
      spec.metadata = true;
      spec.admission = admission;
      specs.push_back(spec);
    }
    TableSpec tiered = SpecOf(key_type, ValueType::kFloat32, kDim);
    tiered.tiers.fast_bytes = 4096;
    specs.push_back(tiered);
  }
  return specs;
}

void Fill(const TrainedTable::Use& table, int64_t n) {
  const TableSpec& spec = table->spec();
  table->upkeep().SetClock(17);
  const TestRows rows =
      TestRows::Make(spec.value_type, static_cast<size_t>(n), kDim,
                     [](size_t i, size_t j) { return static_cast<int>((i + j) % 100); });
  CHECK_OK(table->Assign(TestKeys::Range(spec.key_type, 0, n).batch(), rows.in()));
  if (spec.bound.max_capacity > 0) table->scores().SetEpoch(5);
  if (spec.admission.kind != AdmissionKind::kAll) {
    CHECK_OK(table->upkeep().Touch(TestKeys::Range(spec.key_type, 50'000, 55'000).batch()));
  }
}

// Puts a file into the place of all that a table has.
Status Load(const PartName& name, const TableSpec& spec, const ContentState& numbers,
            TrainedTable* table, PartFigures* figures) {
  std::unique_ptr<ContentWriter> writer;
  TFRA_RETURN_IF_ERROR(table->NewReplacement({.rule = spec.rule}, &writer));
  TFRA_RETURN_IF_ERROR(ReadPart(name, spec, &numbers, writer.get(), figures));
  return writer->Finish();
}

}  // namespace

TEST(TablesComeBackFromFiles) {
  const Folder folder;
  uint32_t number = 0;
  for (const TableSpec& spec : Specs()) {
    const int64_t n = number % 3 == 0 ? 0 : 6000;
    const PartName name{folder / std::to_string(number), 99, number};
    ++number;
    const auto source = MakeTrained(spec), target = MakeTrained(spec);
    const TrainedTable::Use from(source);
    Fill(from, n);
    source->set_step(41);
    Fill(TrainedTable::Use(target), 10);
    ContentState numbers;
    PartFigures written, read;
    const auto reader = from.NewReader();
    CHECK_OK(WritePart(name, reader.get(), &numbers, &written));
    CHECK_EQ(written.rows, static_cast<uint64_t>(n));
    CHECK_EQ(written.bytes, std::filesystem::file_size(name.path));
    CHECK_OK(Load(name, from->spec(), numbers, target.get(), &read));
    CHECK(read == written);
    const TrainedTable::Use to(target);
    CHECK(LinesOf(*from) == LinesOf(*to));
    CHECK_EQ(target->step(), 41);
    AdmissionState before, after;
    CHECK_OK(from->upkeep().ExportAdmission(&before));
    CHECK_OK(to->upkeep().ExportAdmission(&after));
    CHECK(Same(before, after));
    if (spec.bound.max_capacity > 0) CHECK_EQ(to->scores().epoch(), 5u);
  }
}

TEST(TablesStayIfAFileIsDamaged) {
  const Folder folder;
  const TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, kDim);
  const auto source = MakeTrained(spec), target = MakeTrained(spec);
  Fill(TrainedTable::Use(source), 20'000);
  Fill(TrainedTable::Use(target), 10);
  const auto before = LinesOf(*TrainedTable::Use(target));
  const PartName name{folder / "part", 99, 3};
  ContentState numbers;
  PartFigures figures;
  {
    const TrainedTable::Use from(source);
    const auto reader = from.NewReader();
    CHECK_OK(WritePart(name, reader.get(), &numbers, &figures));
    CHECK(figures.blocks > 3);
    const auto again = from.NewReader();
    CHECK(WritePart(name, again.get(), &numbers, &figures).code() == StatusCode::kIoError);
  }
  std::filesystem::resize_file(name.path, figures.bytes - kBlockAlign);
  const Status status = Load(name, spec, numbers, target.get(), &figures);
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK(status.message().find(name.path + ": block ") == 0);
  CHECK(LinesOf(*TrainedTable::Use(target)) == before);
  FailFilesForTesting(FileCall::kRead, 2);
  CHECK(Load(name, spec, numbers, target.get(), &figures).code() == StatusCode::kIoError);
  FailFilesForTesting(FileCall::kRead, -1);
  CHECK(LinesOf(*TrainedTable::Use(target)) == before);
}

TEST(StateThatIsNotExpectedIsRefused) {
  const Folder folder;
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, kDim);
  spec.metadata = true;
  spec.admission = MinCount(3);
  const auto source = MakeTrained(spec), target = MakeTrained(spec);
  const TrainedTable::Use from(source);
  Fill(from, 100);
  const PartName name{folder / "part", 99, 3};
  PartFigures figures;
  const auto reader = from.NewReader();
  CHECK_OK(WritePart(name, reader.get(), nullptr, &figures));
  std::unique_ptr<ContentWriter> writer;
  CHECK_OK(target->NewReplacement({}, &writer));
  const Status status = ReadPart(name, spec, nullptr, writer.get(), &figures);
  CHECK(status.code() == StatusCode::kInvalidArgument);
  // Waiting keys of another kind of rule.
  spec.admission = Bloom(3, 1000, 0.01);
  const auto other = MakeTrained(spec);
  const ContentState numbers;
  CHECK(Load(name, from->spec(), numbers, other.get(), &figures).code() ==
        StatusCode::kInvalidArgument);
}

}  // namespace tfra::test
