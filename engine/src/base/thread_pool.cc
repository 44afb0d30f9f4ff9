#include "tfra/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/sync.h"

namespace tfra {
namespace {

// Waking a sleeping thread takes as long as a thousand keys, and calls follow each other quickly.
// So a thread that waits spins for about ten microseconds before it sleeps.
template <typename Condition>
bool SpinUntil(Condition&& condition) {
  constexpr int kSpins = 400;
  for (int i = 0; i < kSpins; ++i) {
    if (condition()) return true;
    CpuRelax();
  }
  return false;
}

// One ParallelFor. Threads draw task numbers from `next` until none is left.
struct Job {
  const std::function<void(size_t)>* task;
  size_t count;
  size_t helpers_wanted;  // Guarded by the pool's mutex.
  std::atomic<size_t> next{0};
  std::atomic<size_t> done{0};
  std::mutex mutex;
  std::condition_variable finished;
  std::exception_ptr failure;  // The first one. Guarded by mutex.

  bool Exhausted() const { return next.load(std::memory_order_relaxed) >= count; }

  void Work() {
    for (size_t i; (i = next.fetch_add(1)) < count;) {
      try {
        (*task)(i);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
      if (done.fetch_add(1) + 1 == count) {
        std::lock_guard lock(mutex);
        finished.notify_all();
      }
    }
  }
};

class ThreadPool {
 public:
  // Workers are started when they are first needed, and never end.
  void Submit(const std::shared_ptr<Job>& job, size_t helpers) {
    job->helpers_wanted = helpers;
    {
      std::lock_guard lock(mutex_);
      while (workers_ < helpers) {
        try {
          std::thread([this] { Loop(); }).detach();
        } catch (const std::system_error&) {
          break;  // No more threads can be started: the caller and the running workers do the work.
        }
        ++workers_;
      }
      jobs_.push_back(job);
      waiting_jobs_.store(jobs_.size(), std::memory_order_relaxed);
      if (sleepers_ == 0) return;
    }
    if (helpers == 1) {
      wake_.notify_one();
    } else {
      wake_.notify_all();
    }
  }

 private:
  void Loop() {
    for (;;) {
      std::shared_ptr<Job> job = NextJob();
      job->Work();
    }
  }

  std::shared_ptr<Job> NextJob() {
    (void)SpinUntil([this] { return waiting_jobs_.load(std::memory_order_relaxed) > 0; });
    std::unique_lock lock(mutex_);
    for (;;) {
      while (!jobs_.empty() && jobs_.front()->Exhausted()) PopJob();
      if (!jobs_.empty()) break;
      ++sleepers_;
      wake_.wait(lock);
      --sleepers_;
    }
    std::shared_ptr<Job> job = jobs_.front();
    if (--job->helpers_wanted == 0) PopJob();
    return job;
  }

  // REQUIRES: mutex_ is held.
  void PopJob() {
    jobs_.pop_front();
    waiting_jobs_.store(jobs_.size(), std::memory_order_relaxed);
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> jobs_;  // Guarded by mutex_.
  size_t workers_ = 0;                     // Guarded by mutex_.
  size_t sleepers_ = 0;                    // Guarded by mutex_.
  std::atomic<size_t> waiting_jobs_{0};    // The size of jobs_, to be read without the mutex.
};

// Created when the library is loaded (process/fork.cc). Never destroyed: threads may still run
// while the process ends.
std::atomic<ThreadPool*> the_pool{nullptr};

int DefaultThreads() {
  if (const char* text = std::getenv("TFRA_NUM_THREADS")) {
    const int threads = std::atoi(text);
    if (threads >= 1) return threads;
  }
#ifdef __linux__
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) return std::max(1, CPU_COUNT(&cpus));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::atomic<int> thread_count{0};  // 0: not set yet.

// The stop() of the innermost StopScope of this thread, or null.
thread_local const std::function<bool()>* stop_scope = nullptr;

void RunTasks(size_t count, size_t threads, const std::function<void(size_t)>& task) {
  threads = std::min({count, threads, static_cast<size_t>(NumThreads())});
  if (threads <= 1) {
    for (size_t i = 0; i < count; ++i) task(i);
    return;
  }
  auto job = std::make_shared<Job>();
  job->task = &task;
  job->count = count;
  the_pool.load()->Submit(job, threads - 1);
  job->Work();
  (void)SpinUntil([&] { return job->done.load() == count; });
  std::unique_lock lock(job->mutex);
  job->finished.wait(lock, [&] { return job->done.load() == count; });
  if (job->failure) std::rethrow_exception(job->failure);
}

}  // namespace

void StartThreadPool() { the_pool.store(new ThreadPool); }

int NumThreads() {
  int threads = thread_count.load(std::memory_order_relaxed);
  if (threads > 0) return threads;
  // Several threads may make the first call at once. A number that was set meanwhile is kept.
  const int first = DefaultThreads();
  return thread_count.compare_exchange_strong(threads, first) ? first : threads;
}

void SetNumThreads(int threads) { thread_count.store(threads); }

StopScope::StopScope(const std::function<bool()>* stop) : around_(stop_scope) { stop_scope = stop; }

StopScope::~StopScope() { stop_scope = around_; }

void ParallelFor(size_t count, size_t threads, const std::function<void(size_t)>& task) {
  const std::function<bool()>* const stop = stop_scope;
  if (stop == nullptr) return RunTasks(count, threads, task);
  const StopScope outside(nullptr);  // Calls inside of the tasks and of stop() are not stopped.
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> stopped{false};
  RunTasks(count, threads, [&](size_t i) {
    if (stopped.load(std::memory_order_relaxed)) return;
    task(i);
    if (std::this_thread::get_id() == caller && (*stop)()) {
      stopped.store(true, std::memory_order_relaxed);
    }
  });
  if (stopped) throw Stopped();
}

}  // namespace tfra
