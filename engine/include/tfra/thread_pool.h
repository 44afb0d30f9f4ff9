// The engine's own threads. One pool for the process; every batch call shares it.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>

namespace tfra {

// How many threads one call may use, the calling one included. At first that is the environment
// variable TFRA_NUM_THREADS, or the number of CPUs this process may run on.
int NumThreads();

inline constexpr int kMaxThreads = 1024;
// Takes effect for the next call. REQUIRES: 1 <= threads <= kMaxThreads.
void SetNumThreads(int threads);

// Calls task(0) .. task(count - 1) on up to `threads` threads (and NumThreads() at most), and
// returns when all are done. The calling thread takes part, so calls from many threads at once, and
// nested ones, make progress even when the pool is busy. The first exception of a task is thrown
// again here, when all tasks are done.
void ParallelFor(size_t count, size_t threads, const std::function<void(size_t)>& task);

// What ParallelFor throws when a StopScope has ended it early.
class Stopped : public std::exception {};

// While it lives, ParallelFor in this thread asks stop() after each task that this thread has done.
// Once that says true, tasks that have not begun are left out, and ParallelFor throws Stopped. A
// ParallelFor inside of a task is not stopped. Only for calls that change nothing.
class StopScope {
 public:
  // `stop` must live longer than this. Null: ParallelFor is not stopped while this object lives,
  // even inside another StopScope.
  explicit StopScope(const std::function<bool()>* stop);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

 private:
  const std::function<bool()>* const around_;
};

// Gives the process a new pool and leaves the one before as it is: when the library is loaded, and
// in the child of a fork. For the engine only.
void StartThreadPool();

}  // namespace tfra
