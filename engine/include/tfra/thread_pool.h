// The engine's own threads. One pool for the process; every batch call shares it.
#pragma once

#include <cstddef>
#include <functional>

namespace tfra {

// How many threads one call may use, the calling one included. At first that is the environment
// variable TFRA_NUM_THREADS, or the number of CPUs this process may run on.
int NumThreads();

// Takes effect for the next call. REQUIRES: threads >= 1.
void SetNumThreads(int threads);

// Calls task(0) .. task(count - 1) on up to `threads` threads (and NumThreads() at most), and
// returns when all are done. The calling thread takes part, so calls from many threads at once, and
// nested ones, make progress even when the pool is busy. The first exception of a task is thrown
// again here, when all tasks are done.
void ParallelFor(size_t count, size_t threads, const std::function<void(size_t)>& task);

}  // namespace tfra
