// Forks while other threads are in the middle of calls.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/sync.h"
#include "check.h"
#include "memory/read_guard.h"
#include "table_helpers.h"
#include "tfra/thread_pool.h"

namespace tfra::test {
namespace {

constexpr int64_t kKeys = 3000;
constexpr int64_t kDim = 4;

constexpr int kForks = 100;

// Runs body in a forked child, and returns what it returned.
template <typename Body>
bool InChild(Body&& body) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(60);  // A child that hangs dies, and fails the test.
    _exit(body() ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Threads that repeat some work until this object is destroyed.
class Busy {
 public:
  Busy() = default;
  ~Busy() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  template <typename Work>
  void Start(Work work) {
    threads_.emplace_back([this, work] {
      for (int round = 0; !stop_; ++round) work(round);
    });
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

TestRows EqualRows(size_t n, int number) {
  return TestRows::Make(ValueType::kFloat32, n, kDim, [=](size_t, size_t) { return number; });
}

// Whether no row is half written, and the size is right.
bool IsWhole(Table& table) {
  ExportBatch batch;
  if (!table.ExportAll(&batch).ok() || batch.size != table.size()) return false;
  const auto* values = reinterpret_cast<const float*>(batch.values.data());
  for (size_t i = 0; i < batch.size * kDim; ++i) {
    if (values[i] != values[i / kDim * kDim]) return false;
  }
  return true;
}

// Makes every kind of call that takes a lock. Returns whether all succeeded.
bool UseTable(Table& table, const TestKeys& keys, bool tiered) {
  bool good = true;
  const auto expect = [&](const Status& status) {
    good &= status.ok() || (tiered && status.code() == StatusCode::kIoError);
  };
  const TestRows rows = EqualRows(keys.size(), 7);
  TestRows out(ValueType::kFloat32, keys.size(), kDim);
  uint64_t count = 0;
  size_t removed = 0;
  expect(table.Lookup(keys.batch(), Defaults(), out.out(), nullptr));
  expect(table.Assign(keys.batch(), rows.in()));
  expect(table.Remove(keys.batch(), &removed));
  expect(table.Assign(keys.batch(), rows.in()));
  expect(table.Reserve(4 * static_cast<int64_t>(keys.size())));
  expect(table.upkeep().Restrict(keys.size() / 2, Ranking::kNewest, &count));
  expect(table.Shrink());
  std::unique_ptr<Table> copy;
  expect(table.CopyWithRule(RuleSpec(), true, &copy));
  expect(table.Clear());
  const TestKeys one = TestKeys::Range(table.spec().key_type, 1, 2);
  expect(table.Assign(one.batch(), EqualRows(1, 3).in()));
  return good && table.size() == 1 && IsWhole(table);
}

void ForkWhileTablesAreBusy(TableSpec spec) {
#ifdef TFRA_SANITIZED
  // The allocators of the sanitizers do not support fork: if another thread was allocating memory,
  // the child hangs. The allocator of the C library does support it.
  return;
#endif
  const ScopedNumThreads scoped(2);
  spec.metadata = true;
  const bool tiered = spec.tiers.fast_bytes > 0;
  std::unique_ptr<Table> table = MakeTable(spec);
  const TestKeys keys = TestKeys::Range(spec.key_type, 0, kKeys);
  Busy busy;
  for (int t = 0; t < 2; ++t) {
    busy.Start([&, t](int round) {
      const int64_t first = round % 7 * 500 + t;
      const TestKeys some = TestKeys::Range(spec.key_type, first, first + kKeys);
      CHECK_OK(table->Assign(some.batch(), EqualRows(some.size(), round % 100).in()));
      if (round % 10 == t) CHECK_OK(table->Clear());
      if (round % 10 == 5 + t) CHECK_OK(table->Shrink());
    });
  }
  busy.Start([&](int) {
    TestRows out(ValueType::kFloat32, keys.size(), kDim);
    CHECK_OK(table->Lookup(keys.batch(), Defaults(), out.out(), nullptr));
  });
  // Tables are created and destroyed meanwhile.
  busy.Start([&](int) { CHECK_OK(MakeTable(spec)->Reserve(1000)); });
  bool good = true;
  for (int k = 0; k < kForks && good; ++k) {
    good = InChild([&] {
      const bool whole = tiered || IsWhole(*table);
      return whole && UseTable(*table, keys, tiered) && UseTable(*MakeTable(spec), keys, tiered);
    });
  }
  CHECK(good);
}

TEST(ForkWhileIntTablesAreBusy) {
  ForkWhileTablesAreBusy(SpecOf(KeyType::kInt64, ValueType::kFloat32, kDim));
}

TEST(ForkWhileStringTablesAreBusy) {
  ForkWhileTablesAreBusy(SpecOf(KeyType::kString, ValueType::kFloat32, kDim));
}

TEST(ForkWhileBoundedTablesAreBusy) {
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, kDim);
  spec.bound.max_capacity = kKeys;
  spec.bound.strategy = EvictStrategy::kLfu;
  ForkWhileTablesAreBusy(spec);
}

TEST(ForkWhileTieredTablesAreBusy) {
  TableSpec spec = SpecOf(KeyType::kInt64, ValueType::kFloat32, kDim);
  spec.tiers.fast_bytes = 20000;
  ForkWhileTablesAreBusy(spec);
}

// A thread that was reading in the parent does not exist in the child, so it must not keep retired
// memory from being freed there.
TEST(ForkForgetsReadersOfOtherThreads) {
  static std::atomic<int> freed;
  std::atomic<bool> reading{false}, stop{false};
  std::thread reader([&] {
    ReadGuard guard;
    reading = true;
    while (!stop) std::this_thread::yield();
  });
  while (!reading) std::this_thread::yield();
  const auto retire = [] {
    Retire({{nullptr, 0, [](void*, size_t) { ++freed; }}});
    return freed.load();
  };
  freed = 0;
  CHECK_EQ(retire(), 0);
  CHECK(InChild([&] { return retire() == 2; }));
  CHECK_EQ(retire(), 0);
  stop = true;
  reader.join();
  CHECK_EQ(retire(), 3);
}

}  // namespace
}  // namespace tfra::test
