// Contents that take the place of a whole table, all or nothing, and rows that get metadata later.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "admission_helpers.h"
#include "check.h"
#include "concurrency_helpers.h"
#include "content_helpers.h"
#include "memory/pages.h"
#include "table_helpers.h"
#include "tfra/content.h"
#include "tfra/trained_table.h"

namespace tfra::test {
namespace {

using Use = TrainedTable::Use;
using Lines = std::map<std::string, std::string>;

constexpr size_t kDim = 2;
constexpr int64_t kKeys = 400;

// Tables of every kind.
std::vector<TableSpec> Specs() {
  std::vector<TableSpec> specs;
  for (const KeyType key_type : {KeyType::kInt64, KeyType::kString}) {
    TableSpec spec = SpecOf(key_type, ValueType::kFloat32, kDim);
    specs.push_back(spec);
    spec.metadata = true;
    specs.push_back(spec);
    spec.admission = MinCount(3);
    specs.push_back(spec);
    TableSpec bounded = SpecOf(key_type, ValueType::kFloat32, kDim);
    bounded.bound = {
        .max_capacity = 1000, .strategy = EvictStrategy::kEpochLfu, .steps_per_epoch = 2};
    specs.push_back(bounded);
    TableSpec tiered = SpecOf(key_type, ValueType::kFloat32, kDim);
    tiered.tiers.fast_bytes = 4096;
    specs.push_back(tiered);
  }
  specs.push_back(SpecOf(KeyType::kInt64, ValueType::kString, kDim));
  return specs;
}

// Keys from `first` on, whose values are all `number`.
void Put(const Use& table, int64_t first, int64_t n, int number) {
  const TestKeys keys = TestKeys::Range(table->spec().key_type, first, first + n);
  const TestRows rows = TestRows::Make(table->spec().value_type, static_cast<size_t>(n), kDim,
                                       [&](size_t, size_t) { return number; });
  CHECK_OK(table->Assign(keys.batch(), rows.in()));
}

void Step(Use& table, RuleKind kind, int64_t first, int64_t n) {
  const TestKeys keys = TestKeys::Range(table->spec().key_type, first, first + n);
  const std::vector<float> gradients(static_cast<size_t>(n) * kDim, 0.5f);
  RuleSpec rule;
  rule.kind = kind;
  CHECK_OK(
      table.ApplyGradients(keys.batch(), gradients.data(), ValueType::kFloat32, rule, {}, false));
}

Status Write(const Use& from, TrainedTable* to, std::unique_ptr<ContentWriter>* writer) {
  TFRA_RETURN_IF_ERROR(to->NewReplacement({.rule = from->spec().rule}, writer));
  const auto reader = from.NewReader({.batch_rows = 100});
  for (;;) {
    ContentBatch batch;
    TFRA_RETURN_IF_ERROR(reader->Next(&batch));
    if (batch.kind == ContentBatch::kEnd) return Status::Ok();
    if (batch.kind == ContentBatch::kState) {
      TFRA_RETURN_IF_ERROR((*writer)->WriteState(batch.state));
      continue;
    }
    // The columns as a caller has them.
    const ExportBatch& rows = batch.rows;
    std::vector<std::string_view> keys, values;
    for (size_t i = 0; i < rows.string_keys.size(); ++i) keys.push_back(rows.string_keys[i]);
    for (size_t i = 0; i < rows.string_values.size(); ++i) values.push_back(rows.string_values[i]);
    const RowColumns columns{
        .keys = keys.empty() ? KeyBatch(rows.int_keys.data(), rows.size)
                             : KeyBatch(keys.data(), keys.size()),
        .values = values.empty() ? static_cast<const void*>(rows.values.data()) : values.data(),
        .slots = rows.slots.empty() ? nullptr : rows.slots.data(),
        .metadata = rows.metadata.empty() ? nullptr : rows.metadata.data(),
        .scores = rows.scores.empty() ? nullptr : rows.scores.data()};
    TFRA_RETURN_IF_ERROR((*writer)->WriteRows(columns));
  }
}

Status Replace(const Use& from, TrainedTable* to) {
  std::unique_ptr<ContentWriter> writer;
  TFRA_RETURN_IF_ERROR(Write(from, to, &writer));
  return writer->Finish();
}

bool IsFloat(const TableSpec& spec) { return spec.value_type == ValueType::kFloat32; }

// A table with rows, slots of Adam and waiting keys.
std::shared_ptr<TrainedTable> MakeSource(const TableSpec& spec) {
  std::shared_ptr<TrainedTable> table = MakeTrained(spec);
  Use use(table);
  use->upkeep().SetClock(17);
  Put(use, 0, kKeys, 7);
  if (IsFloat(spec)) {
    for (int i = 0; i < 3; ++i) Step(use, RuleKind::kAdam, 0, kKeys / 2);
  }
  if (spec.admission.kind != AdmissionKind::kAll) {
    CHECK_OK(use->upkeep().Touch(TestKeys::Range(spec.key_type, 5000, 5020).batch()));
  }
  return table;
}

// A table with other rows, slots of Adagrad, and an optimizer.
std::shared_ptr<TrainedTable> MakeTarget(const TableSpec& spec) {
  std::shared_ptr<TrainedTable> table = MakeTrained(spec);
  Use use(table);
  use->upkeep().SetClock(30);
  Put(use, 300, 200, 1);
  if (IsFloat(spec)) {
    CHECK_OK(use.Bind({"adagrad", "adagrad 1", "here"}, OptimizerKeeps::kSlots, 1, "table"));
    Step(use, RuleKind::kAdagrad, 300, 10);
  }
  return table;
}

}  // namespace

TEST(ReplacementsTakeThePlaceOfAllThatWasThere) {
  for (const TableSpec& spec : Specs()) {
    const auto source = MakeSource(spec), target = MakeTarget(spec);
    const TableStats before = Use(target)->stats();
    CHECK_OK(Replace(Use(source), target.get()));
    const Use from(source), to(target);
    CHECK(LinesOf(*from) == LinesOf(*to));
    CHECK(to->spec().rule == from->spec().rule);
    CHECK_EQ(to.trained().step(), from.trained().step());
    CHECK_EQ(to->stats().waiting, from->stats().waiting);
    if (spec.bound.max_capacity > 0) {
      CHECK_EQ(to->scores().epoch(), from->scores().epoch());
      CHECK_EQ(to.trained().epoch_steps(), from.trained().epoch_steps());
    }
    // Counters go on.
    const TableStats after = to->stats();
    CHECK_EQ(after.removals, before.removals + before.size);
    CHECK_EQ(after.inserts, before.inserts + after.size);
    CHECK_EQ(after.hits, before.hits);
    if (spec.metadata) {  // The clock goes on, too.
      RowMetadata metadata;
      Put(to, 300, 1, 9);
      const TestKeys key = TestKeys::Range(spec.key_type, 300, 301);
      CHECK_OK(to->upkeep().LookupMetadata(key.batch(), &metadata, nullptr));
      CHECK_EQ(metadata.time, 30u);
    }
    if (!IsFloat(spec)) continue;
    // Nobody is bound: another optimizer of the same rule goes on with the slots.
    CHECK_OK(to.Bind({"adam", "adam 2", "here"}, OptimizerKeeps::kSlots, 4, "table"));
    CHECK(to.HasSlotsOf(from->spec().rule));
  }
}

TEST(ReplacementsThatLackARuleOrAStateKeepThoseOfTheTable) {
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, kDim);
  spec.bound = {.max_capacity = 1000, .strategy = EvictStrategy::kEpochLfu, .steps_per_epoch = 1};
  const auto target = MakeTarget(spec);
  const uint32_t epoch = Use(target)->scores().epoch();
  const int64_t step = target->step();
  CHECK(epoch > 0);
  const TestKeys keys = TestKeys::Range(KeyType::kInt64, 0, 10);
  const std::vector<float> values(10 * kDim, 5.0f);
  std::unique_ptr<ContentWriter> writer;
  CHECK_OK(target->NewReplacement({}, &writer));
  CHECK_OK(writer->WriteRows({.keys = keys.batch(), .values = values.data()}));
  CHECK_OK(writer->Finish());
  const Use to(target);
  CHECK_EQ(to->size(), 10u);
  CHECK(to->spec().rule.kind == RuleKind::kAdagrad);
  CHECK_EQ(to->scores().epoch(), epoch);
  CHECK_EQ(target->step(), step);
}

TEST(ReplacementsChangeNothingUntilTheyFinish) {
  for (const TableSpec& spec : Specs()) {
    const auto source = MakeSource(spec), target = MakeTarget(spec);
    const Lines before = LinesOf(*Use(target));
    std::unique_ptr<ContentWriter> writer, none;
    CHECK_OK(Write(Use(source), target.get(), &writer));
    CHECK(LinesOf(*Use(target)) == before);
    // A replacement that is kept is finished later, or makes room for another.
    CHECK(target->TakeReplacement() == nullptr);
    CHECK_OK(target->KeepReplacement(std::move(writer)));
    CHECK_OK(Write(Use(source), target.get(), &writer));
    CHECK_OK(target->KeepReplacement(std::move(writer)));
    CHECK(LinesOf(*Use(target)) == before);
    writer = target->TakeReplacement();
    CHECK(target->TakeReplacement() == nullptr);
    {
      const Use use(target);
      CHECK(writer->Finish().code() == StatusCode::kFailedPrecondition);
    }
    CHECK(LinesOf(*Use(target)) == before);
    CHECK_OK(writer->Finish());
    CHECK(LinesOf(*Use(target)) == LinesOf(*Use(source)));
    // One that is kept goes with its table.
    CHECK_OK(Write(Use(source), target.get(), &writer));
    CHECK_OK(target->KeepReplacement(std::move(writer)));
  }
}

TEST(ReplacementsOfAnotherRuleOfAdmissionAreRefused) {
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, kDim);
  spec.metadata = true;
  spec.admission = MinCount(3);
  const auto source = MakeSource(spec);
  spec.admission = Bloom(2, 1000, 0.01);
  const auto target = MakeTarget(spec);
  const Lines before = LinesOf(*Use(target));
  CHECK(Replace(Use(source), target.get()).code() == StatusCode::kInvalidArgument);
  CHECK(LinesOf(*Use(target)) == before);
}

// Each allocation of pages fails in turn: then nothing has changed.
TEST(ReplacementsThatRunOutOfMemoryChangeNothing) {
  for (const TableSpec& spec : Specs()) {
    const auto source = MakeSource(spec), target = MakeTarget(spec);
    const Lines before = LinesOf(*Use(target)), wanted = LinesOf(*Use(source));
    int failures = 0;
    for (int point = 0;; point += point < 20 ? 1 : 37) {
      FailAllocationsForTesting(point);
      const Status status = Replace(Use(source), target.get());
      FailAllocationsForTesting(-1);
      if (status.ok()) break;
      ++failures;
      CHECK(status.code() == StatusCode::kOutOfMemory);
      CHECK(LinesOf(*Use(target)) == before);
    }
    CHECK(failures > 0);
    CHECK(LinesOf(*Use(target)) == wanted);
  }
}

TEST(SeveralReplacementsFinishOrNoneDoes) {
  for (const TableSpec& spec : Specs()) {
    const auto source = MakeSource(spec);
    const std::vector<std::shared_ptr<TrainedTable>> targets = {MakeTarget(spec), MakeTarget(spec)};
    const Lines before = LinesOf(*Use(targets[0])), wanted = LinesOf(*Use(source));
    const auto keep = [&](size_t count) {
      for (size_t i = 0; i < count; ++i) {
        std::unique_ptr<ContentWriter> writer;
        CHECK_OK(Write(Use(source), targets[i].get(), &writer));
        CHECK_OK(targets[i]->KeepReplacement(std::move(writer)));
      }
    };
    const auto check_all = [&](const Lines& lines) {
      for (const auto& target : targets) CHECK(LinesOf(*Use(target)) == lines);
    };
    keep(1);  // And none for the second table.
    CHECK(TrainedTable::FinishReplacements(targets).code() == StatusCode::kFailedPrecondition);
    check_all(before);
    keep(2);
    {
      const Use last(targets[1]);  // As in the handler of a signal.
      CHECK(TrainedTable::FinishReplacements(targets).code() == StatusCode::kFailedPrecondition);
    }
    check_all(before);
    CHECK_OK(TrainedTable::FinishReplacements(targets));
    check_all(wanted);
  }
}

// A policy is made while a restore is under way.
TEST(ReplacementsHaveTheMetadataThatRowsGetMeanwhile) {
  for (const bool kept : {false, true}) {
    for (const TableSpec& spec : Specs()) {
      const auto source = MakeSource(spec), target = MakeTarget(spec);
      std::unique_ptr<ContentWriter> writer;
      CHECK_OK(Write(Use(source), target.get(), &writer));
      if (kept) {
        CHECK_OK(target->KeepReplacement(std::move(writer)));
        CHECK_OK(target->KeepMetadata());
        CHECK_OK(TrainedTable::FinishReplacements({target}));
      } else {
        CHECK_OK(target->KeepMetadata());
        CHECK_OK(writer->Finish());
      }
      CHECK_OK(source->KeepMetadata());
      const Use from(source), to(target);
      CHECK(to->spec().metadata);
      CHECK_EQ(to->size(), from->size());
      CHECK_EQ(to->stats().waiting, from->stats().waiting);
      RowMetadata metadata;
      const TestKeys key = TestKeys::Range(spec.key_type, 0, 1);
      CHECK_OK(to->upkeep().LookupMetadata(key.batch(), &metadata, nullptr));
      CHECK(metadata.count >= 1);
    }
  }
}

// Calls see all of the content before, or all of the one after.
TEST(ThreadsSeeReplacementsAsAWhole) {
  const TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, kDim);
  const auto target = MakeTrained(spec), ones = MakeTrained(spec), twos = MakeTrained(spec);
  Put(Use(ones), 0, kKeys, 1);
  Put(Use(twos), 0, kKeys, 2);
  Put(Use(target), 0, kKeys, 1);
  const TestKeys keys = TestKeys::Range(KeyType::kInt64, 0, kKeys);
  Errors mixed{0};
  const Work look = [&] {
    std::vector<float> values(kKeys * kDim);
    const Status status = Use(target)->Lookup(keys.batch(), {}, values.data(), nullptr);
    if (!status.ok()) ++mixed;
    for (const float value : values) {
      if (value != values[0] || value < 1) ++mixed;
    }
  };
  const Work replace = [&] {
    for (int i = 0; i < 10 * kScale; ++i) {
      if (!Replace(Use(i % 2 == 0 ? twos : ones), target.get()).ok()) ++mixed;
    }
  };
  Run({replace, replace}, {look, look});
  CHECK_EQ(mixed.load(), 0);
}

TEST(RowsGetMetadataLater) {
  for (const TableSpec& spec : Specs()) {
    const auto source = MakeSource(spec);
    {
      const Use use(source);
      const Status inside = source->KeepMetadata();  // Between calls, if there is anything to do.
      CHECK(inside.code() == (spec.metadata ? StatusCode::kOk : StatusCode::kFailedPrecondition));
    }
    const TableStats before = Use(source)->stats();
    const Lines lines = LinesOf(*Use(source));
    const int64_t step = source->step();
    CHECK_OK(source->KeepMetadata());
    CHECK_OK(source->KeepMetadata());
    const Use table(source);
    CHECK(table->spec().metadata);
    const TableStats after = table->stats();
    CHECK_EQ(after.size, before.size);
    CHECK_EQ(after.inserts, before.inserts);
    CHECK_EQ(after.removals, before.removals);
    CHECK_EQ(after.waiting, before.waiting);
    CHECK_EQ(source->step(), step);
    Lines got = LinesOf(*table);
    if (!spec.metadata) {
      const std::string added = " at 17 count 1";
      for (auto& [key, line] : got) {
        const size_t at = line.find(added);
        CHECK(at != std::string::npos);
        if (at != std::string::npos) line.erase(at, added.size());
      }
    }
    CHECK(got == lines);
    // From now on they are kept.
    table->upkeep().SetClock(40);
    const TestKeys key = TestKeys::Range(spec.key_type, 0, 1);
    Put(table, 0, 1, 3);
    RowMetadata metadata;
    CHECK_OK(table->upkeep().LookupMetadata(key.batch(), &metadata, nullptr));
    CHECK_EQ(metadata.time, 40u);
    CHECK(metadata.count >= 2);
  }
}

}  // namespace tfra::test
