#include "tfra/thread_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <vector>

#include "table_helpers.h"

namespace tfra::test {
namespace {

// Whether ParallelFor called each task once before it returned.
bool EachTaskRunsOnce(size_t count) {
  std::vector<int> runs(count);  // Not atomic: ParallelFor must order the writes before its return.
  ParallelFor(count, count, [&](size_t i) { ++runs[i]; });
  for (int each : runs) {
    if (each != 1) return false;
  }
  return true;
}

TEST(ThreadPoolRunsEachTaskOnce) {
  for (int threads : {1, 2, 4, 9}) {
    const ScopedNumThreads scoped(threads);
    CHECK_EQ(NumThreads(), threads);
    for (size_t count : {0, 1, 2, 3, 8, 100, 10000}) CHECK(EachTaskRunsOnce(count));
  }
}

TEST(ThreadPoolServesManyCallers) {
  const ScopedNumThreads scoped(4);
  std::atomic<int> failures{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 8; ++c) {
    callers.emplace_back([&] {
      for (size_t round = 0; round < 300; ++round) failures += !EachTaskRunsOnce(round % 17);
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK_EQ(failures.load(), 0);
}

TEST(ThreadPoolNests) {
  const ScopedNumThreads scoped(3);
  std::atomic<int> failures{0}, runs{0};
  ParallelFor(8, 8, [&](size_t) {
    ParallelFor(8, 8, [&](size_t) {
      failures += !EachTaskRunsOnce(5);
      ++runs;
    });
  });
  CHECK_EQ(failures.load(), 0);
  CHECK_EQ(runs.load(), 64);
}

TEST(ThreadPoolTakesChangesWhileBusy) {
  const ScopedNumThreads scoped(2);
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    for (int threads = 1; !stop; threads = threads % 6 + 1) SetNumThreads(threads);
  });
  for (int round = 0; round < 1000; ++round) CHECK(EachTaskRunsOnce(12));
  stop = true;
  changer.join();
}

// How many threads one call uses, if its tasks take long enough for all threads to take part.
size_t ThreadsOfOneCall(size_t count, size_t allowed = SIZE_MAX) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  ParallelFor(count, allowed, [&](size_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  return threads.size();
}

TEST(ThreadPoolUsesSeveralThreadsOrOne) {
  const ScopedNumThreads scoped(4);
  CHECK(ThreadsOfOneCall(64) > 1);
  CHECK_EQ(ThreadsOfOneCall(64, 1), 1u);
  SetNumThreads(1);
  CHECK_EQ(ThreadsOfOneCall(16), 1u);
}

// The pool keeps its threads, but a call may use only as many as it allows.
TEST(ThreadPoolUsesNoMoreThreadsThanAllowed) {
  const ScopedNumThreads scoped(6);
  ThreadsOfOneCall(64);
  for (int round = 0; round < 5; ++round) CHECK(ThreadsOfOneCall(64, 3) <= 3);
  SetNumThreads(3);
  for (int round = 0; round < 5; ++round) CHECK(ThreadsOfOneCall(64) <= 3);
}

TEST(ThreadPoolThrowsWhatATaskThrows) {
  const ScopedNumThreads scoped(4);
  for (size_t threads : {1, 4}) {
    std::atomic<int> runs{0};
    bool caught = false;
    try {
      ParallelFor(100, threads, [&](size_t i) {
        ++runs;
        if (i == 50) throw std::bad_alloc();
      });
    } catch (const std::bad_alloc&) {
      caught = true;
    }
    CHECK(caught);
    // With helpers, all tasks run; without them, the call ends at once.
    CHECK_EQ(runs.load(), threads == 1 ? 51 : 100);
  }
  CHECK(EachTaskRunsOnce(100));
}

TEST(ThreadPoolStopsBetweenTasks) {
  const ScopedNumThreads scoped(4);
  for (size_t threads : {1, 4}) {
    std::atomic<int> runs{0}, inner{0}, asked{0};
    const std::function<bool()> stop = [&] { return ++asked == 2; };
    bool stopped = false;
    {
      const StopScope scope(&stop);
      try {
        ParallelFor(1000000, threads, [&](size_t) {
          ++runs;
          ParallelFor(3, threads, [&](size_t) { ++inner; });  // A nested call is not stopped.
        });
      } catch (const Stopped&) {
        stopped = true;
      }
      const StopScope outside(nullptr);
      CHECK(EachTaskRunsOnce(100));
    }
    CHECK(stopped);
    CHECK_EQ(asked.load(), 2);
    CHECK_EQ(inner.load(), 3 * runs.load());
    if (threads == 1) CHECK_EQ(runs.load(), 2);
    CHECK(EachTaskRunsOnce(100));
  }
}

TEST(ThreadPoolWorksAfterFork) {
#ifdef TFRA_TSAN
  return;  // The sanitizer does not support new threads in a forked child.
#endif
  const ScopedNumThreads scoped(4);
  CHECK(EachTaskRunsOnce(100));  // Starts the threads of the parent's pool.
  std::unique_ptr<Table> table = MakeTable(SpecOf(KeyType::kInt64, ValueType::kInt32, 1));
  const TestKeys keys = TestKeys::Range(KeyType::kInt64, 0, 50000);
  AssignNumbers(*table, keys, [](size_t, size_t) { return 1; });
  // Some children are forked while the pool is at work.
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) EachTaskRunsOnce(50);
  });
  for (int round = 0; round < 5; ++round) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      alarm(20);  // Ends a child that hangs, which fails the test.
      bool good = EachTaskRunsOnce(1000) && ThreadsOfOneCall(64) == 4;
      const TestRows rows =
          TestRows::Make(ValueType::kInt32, keys.size(), 1, [](size_t, size_t) { return 2; });
      good &= table->Assign(keys.batch(), rows.in()).ok() && table->size() == 50000;
      _exit(good ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop = true;
  busy.join();
  CHECK(EachTaskRunsOnce(100));
}

}  // namespace
}  // namespace tfra::test
