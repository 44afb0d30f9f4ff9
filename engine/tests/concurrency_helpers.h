// Several threads use one table. Threads count errors; the main thread checks the counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "table_helpers.h"

namespace tfra::test {

// Tests do this many times more work without ThreadSanitizer than with it.
inline constexpr int kScale = kSlowdown == 1 ? 6 : 1;

using Errors = std::atomic<int64_t>;
using Work = std::function<void()>;

// Runs each worker once, and each watcher again and again until the workers are done, but at least
// once. Each has its own thread.
inline void Run(const std::vector<Work>& workers, const std::vector<Work>& watchers) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> watching, working;
  for (const Work& watch : watchers) {
    watching.emplace_back([&] {
      do {
        watch();
      } while (!stop);
    });
  }
  for (const Work& work : workers) working.emplace_back(work);
  for (std::thread& thread : working) thread.join();
  stop = true;
  for (std::thread& thread : watching) thread.join();
}

}  // namespace tfra::test
