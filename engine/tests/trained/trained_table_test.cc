// Which optimizer trains a table, its steps and slots, and tables found by their handle.
#include "tfra/trained_table.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "concurrency_helpers.h"
#include "table_helpers.h"

namespace tfra::test {
namespace {

using Use = TrainedTable::Use;
using Keeps = OptimizerKeeps;

constexpr size_t kDim = 2;

std::shared_ptr<TrainedTable> MakeTrained(TableSpec spec = SpecOf(KeyType::kInt64,
                                                                  ValueType::kFloat32, kDim)) {
  std::shared_ptr<TrainedTable> table;
  CHECK_OK(TrainedTable::Create(spec, &table));
  return table;
}

RuleSpec RuleOfKind(RuleKind kind) {
  RuleSpec rule;
  rule.kind = kind;
  return rule;
}

Status Step(const std::shared_ptr<TrainedTable>& table, RuleKind kind,
            std::vector<int64_t> keys = {1, 2, 3}, int64_t step = 0) {
  const std::vector<float> gradients(keys.size() * kDim, 1.0f);
  UpdateParams params;
  params.step = step == 0 ? 1 : step;
  return Use(table).ApplyGradients(KeyBatch(keys.data(), keys.size()), gradients.data(),
                                   ValueType::kFloat32, RuleOfKind(kind), params, step != 0);
}

std::vector<float> Values(const std::shared_ptr<TrainedTable>& table, std::vector<int64_t> keys) {
  std::vector<float> values(keys.size() * kDim);
  CHECK_OK(Use(table)->Lookup(KeyBatch(keys.data(), keys.size()), {}, values.data(), nullptr));
  return values;
}

Status Bind(const std::shared_ptr<TrainedTable>& table, const char* unique, int64_t step,
            Keeps keeps = Keeps::kSlots, const char* name = "adam", const char* worker = "w") {
  return Use(table).Bind({name, unique, worker}, keeps, step, "words");
}

TEST(TrainedTablesAreFoundByHandleWhileTheyLive) {
  std::shared_ptr<TrainedTable> first = MakeTrained(), second = MakeTrained();
  CHECK(first->handle() != 0);
  CHECK(first->handle() != second->handle());
  CHECK(TrainedTable::Find(first->handle()) == first);
  const uint64_t handle = first->handle();
  first.reset();
  CHECK(TrainedTable::Find(handle) == nullptr);
  CHECK(TrainedTable::Find(0) == nullptr);
  CHECK(MakeTrained()->handle() != handle);
}

TEST(TrainedTablesTakeTheSlotsOfARule) {
  std::shared_ptr<TrainedTable> table = MakeTrained();
  CHECK_EQ(Use(table)->slot_elements(), 0u);
  CHECK_OK(Step(table, RuleKind::kAdam));
  CHECK_EQ(Use(table)->slot_elements(), 2 * kDim);
  const std::vector<float> before = Values(table, {1, 2, 3});
  CHECK_OK(Use(table).UseRule(RuleOfKind(RuleKind::kAdagrad)));
  CHECK_EQ(Use(table)->slot_elements(), kDim);
  CHECK(Values(table, {1, 2, 3}) == before);
  CHECK_EQ(Use(table)->size(), 3u);
}

TEST(TrainedTablesCountSteps) {
  std::shared_ptr<TrainedTable> table = MakeTrained();
  CHECK_OK(Step(table, RuleKind::kAdam));
  CHECK_OK(Step(table, RuleKind::kAdam));
  CHECK_EQ(table->step(), 2);
  CHECK_OK(Step(table, RuleKind::kAdam, {1}, 10));
  CHECK_EQ(table->step(), 10);
  // A step that fails is not counted, and changes neither rows nor slots.
  UpdateParams wrong;
  wrong.beta_1 = 2.0;
  const int64_t key = 7;
  const float gradient[kDim] = {1, 1};
  CHECK(!Use(table)
             .ApplyGradients(KeyBatch(&key, 1), gradient, ValueType::kFloat32,
                             RuleOfKind(RuleKind::kAdam), wrong, false)
             .ok());
  CHECK_EQ(table->step(), 10);
  CHECK_EQ(Use(table)->size(), 3u);
}

TEST(TrainedTablesGoOnToTheNextEpoch) {
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, kDim);
  spec.bound = {.max_capacity = 100, .strategy = EvictStrategy::kEpochLru, .steps_per_epoch = 2};
  std::shared_ptr<TrainedTable> table = MakeTrained(spec);
  CHECK_OK(Step(table, RuleKind::kSgd));
  CHECK_EQ(Use(table)->scores().epoch(), 0u);
  Use(table).CountStep();
  CHECK_EQ(Use(table)->scores().epoch(), 1u);
  CHECK_OK(Step(table, RuleKind::kAdam));  // The copy with other slots goes on, too.
  CHECK_OK(Step(table, RuleKind::kAdam));
  CHECK_EQ(Use(table)->scores().epoch(), 2u);
  CHECK_EQ(table->epoch_steps(), 4);
}

TEST(BoundOptimizersKeepTheirSlots) {
  std::shared_ptr<TrainedTable> table = MakeTrained();
  CHECK_OK(Bind(table, "a", 1));
  CHECK_OK(Step(table, RuleKind::kAdam));
  CHECK_OK(Bind(table, "a", 2));
  CHECK_OK(Use(table).RequireBound("a", RuleOfKind(RuleKind::kAdam)));
  CHECK(Use(table).RequireBound("b", RuleOfKind(RuleKind::kAdam)).code() ==
        StatusCode::kFailedPrecondition);
  CHECK(Use(table).RequireBound("a", RuleOfKind(RuleKind::kSgd)).code() ==
        StatusCode::kFailedPrecondition);
  // A second worker of the same program shares them.
  CHECK_OK(Bind(table, "a of another process", 1, Keeps::kSlots, "adam", "w2"));
  CHECK_OK(Bind(table, "a", 3));
}

TEST(BoundOptimizersAreRefusedWhenTheirPlaceWasTaken) {
  std::shared_ptr<TrainedTable> table = MakeTrained();
  CHECK_OK(Bind(table, "a", 1));
  CHECK_OK(Step(table, RuleKind::kAdam));
  CHECK_OK(Bind(table, "b", 1));
  // The first step of the new one starts the slots anew: it is that of a fresh table.
  CHECK_OK(Step(table, RuleKind::kAdam, {1}, 1));
  const Status refused = Bind(table, "a", 2);
  CHECK(refused.code() == StatusCode::kFailedPrecondition);
  CHECK(refused.message().find("'words'") != std::string::npos);
  std::shared_ptr<TrainedTable> fresh = MakeTrained();
  CHECK_OK(Step(fresh, RuleKind::kAdam, {1}, 1));
  std::vector<float> slots(2 * kDim), fresh_slots(2 * kDim), values(kDim);
  const int64_t key = 1;
  CHECK_OK(Use(table)->Lookup(KeyBatch(&key, 1), {}, values.data(), nullptr, slots.data()));
  CHECK_OK(Use(fresh)->Lookup(KeyBatch(&key, 1), {}, values.data(), nullptr, fresh_slots.data()));
  CHECK(slots == fresh_slots);
  CHECK_OK(Bind(table, "a", 1));  // It may start again.
}

struct RowsWithSlots {
  std::vector<float> values = std::vector<float>(3 * kDim);
  std::vector<float> slots = std::vector<float>(3 * 2 * kDim);
  bool operator==(const RowsWithSlots&) const = default;
};

constexpr int64_t kThreeKeys[] = {1, 2, 3};

// REQUIRES: rows have two slots of kDim.
RowsWithSlots RowsOfThreeKeys(const std::shared_ptr<TrainedTable>& table) {
  RowsWithSlots rows;
  CHECK_OK(Use(table)->Lookup(KeyBatch(kThreeKeys, 3), {}, rows.values.data(), nullptr,
                              rows.slots.data()));
  return rows;
}

Status FailingStep(const std::shared_ptr<TrainedTable>& table, RuleKind kind) {
  UpdateParams wrong;
  wrong.beta_1 = 2.0;
  wrong.step = 1;
  const std::vector<float> gradients(3 * kDim, 1.0f);
  return Use(table).ApplyGradients(KeyBatch(kThreeKeys, 3), gradients.data(), ValueType::kFloat32,
                                   RuleOfKind(kind), wrong, true);
}

TEST(FirstStepsThatFailTakeNoPlace) {
  for (const RuleKind other : {RuleKind::kAdam, RuleKind::kNadam}) {
    std::shared_ptr<TrainedTable> table = MakeTrained();
    CHECK_OK(Bind(table, "a", 1));
    CHECK_OK(Step(table, RuleKind::kAdam));
    const RowsWithSlots before = RowsOfThreeKeys(table);
    for (const char* name : {"b", "c"}) {
      CHECK_OK(Bind(table, name, 1));
      CHECK(!FailingStep(table, other).ok());
      CHECK(RowsOfThreeKeys(table) == before);
    }
    // The reads of a step change nothing, either; it would start with initial slots.
    RowsWithSlots read;
    CHECK_OK(Use(table).LookupForStep(KeyBatch(kThreeKeys, 3), RuleOfKind(other),
                                      read.values.data(), read.slots.data()));
    CHECK(read.values == before.values);
    CHECK(read.slots == std::vector<float>(read.slots.size()));
    CHECK(RowsOfThreeKeys(table) == before);
    CHECK_OK(Bind(table, "a", 2));
    CHECK_OK(Use(table).RequireBound("a", RuleOfKind(RuleKind::kAdam)));
    CHECK(RowsOfThreeKeys(table) == before);
    // A step that begins takes the place.
    CHECK_OK(Bind(table, "b", 1));
    CHECK_OK(Step(table, other, {1, 2, 3}, 1));
    CHECK(Bind(table, "a", 3).code() == StatusCode::kFailedPrecondition);
  }
}

TEST(StepsOfARuleGoOnWithItsSlots) {
  std::shared_ptr<TrainedTable> table = MakeTrained();
  const RuleSpec adam = RuleOfKind(RuleKind::kAdam), ftrl = RuleOfKind(RuleKind::kFtrl);
  CHECK_OK(Bind(table, "a", 1));
  CHECK_OK(Step(table, RuleKind::kAdam));
  CHECK_OK(Use(table).BindRule(adam, 0));  // Slots of the rule: takes nobody's place.
  CHECK_OK(Bind(table, "a", 2));
  CHECK_OK(Use(table).BindRule(ftrl, 0));
  CHECK_OK(Step(table, RuleKind::kFtrl));
  CHECK(Bind(table, "a", 3).code() == StatusCode::kFailedPrecondition);
  CHECK_OK(Use(table).BindRule(ftrl, 0));
  // And another optimizer takes the place of the rule.
  CHECK_OK(Bind(table, "b", 1));
  CHECK_OK(Step(table, RuleKind::kAdam, {1}, 1));
  CHECK(Use(table).BindRule(ftrl, 0).code() == StatusCode::kFailedPrecondition);
  CHECK_OK(Use(table).BindRule(ftrl, 1));
}

// Waits until a rule change of another thread waits for the calls of this one.
void AwaitRuleChange(const std::shared_ptr<TrainedTable>& table) {
  for (bool waits = false; !waits;) {
    std::thread([&] { waits = !Use::Try(table).has_value(); }).join();
  }
}

TEST(CallsInsideOfCallsDoNotWaitForRuleChanges) {
  std::shared_ptr<TrainedTable> table = MakeTrained();
  std::thread changes;
  {
    const Use outer(table);
    changes = std::thread([&] { CHECK_OK(Step(table, RuleKind::kAdam)); });
    AwaitRuleChange(table);
    CHECK_EQ(Use(table)->slot_elements(), 0u);
    CHECK(Use::Try(table).has_value());
  }
  changes.join();
  CHECK_EQ(Use(table)->slot_elements(), 2 * kDim);
}

TEST(RuleChangesInsideOfCallsAreRefused) {
  std::shared_ptr<TrainedTable> table = MakeTrained();
  {
    const Use outer(table);
    const Status refused = Step(table, RuleKind::kAdam);
    CHECK(refused.code() == StatusCode::kFailedPrecondition);
    CHECK(refused.message().find("inside of such a call") != std::string::npos);
  }
  CHECK_OK(Step(table, RuleKind::kAdam));
}

TEST(BoundOptimizersOfRestoredTablesAreFree) {
  std::shared_ptr<TrainedTable> table = MakeTrained();
  CHECK_OK(Bind(table, "a", 1));
  CHECK_OK(Step(table, RuleKind::kAdam));
  table->Unbind();
  CHECK_OK(Bind(table, "b", 5));
  CHECK_OK(Use(table).RequireBound("b", RuleOfKind(RuleKind::kAdam)));
  // One that keeps rows in a table of its own starts without them.
  CHECK_OK(Bind(table, "c", 1, Keeps::kRows));
  CHECK_EQ(Use(table)->size(), 0u);
}

// Steps of two rules in turns, by several threads, with readers: every value is one that whole
// steps made, and every call ends.
TEST(ConcurrentRuleChangesLoseNoRow) {
  std::shared_ptr<TrainedTable> table = MakeTrained();
  const std::vector<int64_t> keys = {1, 2, 3, 4, 5, 6, 7, 8};
  CHECK_OK(Step(table, RuleKind::kSgd, keys));
  constexpr int kSteps = 300 / kSlowdown;
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      const Use use(table);
      std::vector<float> values(keys.size() * kDim);
      CHECK_OK(use->Lookup(KeyBatch(keys.data(), keys.size()), {}, values.data(), nullptr));
      for (size_t i = 0; i < values.size(); i += kDim) CHECK_EQ(values[i], values[i + 1]);
    }
  });
  std::vector<std::thread> writers;
  for (RuleKind kind : {RuleKind::kSgd, RuleKind::kAdagrad, RuleKind::kSgd}) {
    writers.emplace_back([&, kind] {
      for (int i = 0; i < kSteps; ++i) CHECK_OK(Step(table, kind, keys));
    });
  }
  for (std::thread& writer : writers) writer.join();
  stop = true;
  reader.join();
  CHECK_EQ(table->step(), 3 * kSteps + 1);
  CHECK_EQ(Use(table)->size(), keys.size());
}

// A call may need what the thread that forks holds, as calls from Python need the GIL. A change of
// the rule that waits for such a call does not keep fork() waiting.
TEST(ForksWhileARuleWaitsForACall) {
#ifdef TFRA_SANITIZED
  return;  // See ForksWhileRulesChange.
#endif
  std::shared_ptr<TrainedTable> table = MakeTrained();
  CHECK_OK(Step(table, RuleKind::kSgd));
  alarm(60);  // Ends a test that hangs.
  std::mutex needed;
  std::atomic<bool> in_call{false};
  std::unique_lock held(needed);
  std::thread call([&] {
    const Use use(table);
    in_call = true;
    const std::lock_guard lock(needed);
  });
  while (!in_call) std::this_thread::yield();
  std::thread change([&] { CHECK_OK(Step(table, RuleKind::kAdagrad)); });
  while (Use::Try(table)) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(Step(table, RuleKind::kAdam).ok() ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  held.unlock();
  call.join();
  change.join();
  alarm(0);
}

// A child that is forked while other threads change rules and bind optimizers works.
TEST(ForksWhileRulesChange) {
#ifdef TFRA_SANITIZED
  // The allocators of the sanitizers take no part in fork: a child hangs in them if another thread
  // was allocating.
  return;
#endif
  std::shared_ptr<TrainedTable> table = MakeTrained();
  CHECK_OK(Step(table, RuleKind::kSgd));
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (RuleKind kind : {RuleKind::kSgd, RuleKind::kAdagrad}) {
    writers.emplace_back([&, kind] {
      while (!stop) CHECK_OK(Step(table, kind));
    });
  }
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      const bool good = Step(table, RuleKind::kAdam).ok() && Bind(table, "child", 1).ok() &&
                        Use(table)->size() == 3;
      _exit(good ? 0 : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
}

}  // namespace
}  // namespace tfra::test
