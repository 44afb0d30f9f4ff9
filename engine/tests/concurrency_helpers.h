// Real threads on one table. Threads count what they see wrong; the main thread checks the counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "table_helpers.h"

namespace tfra::test {

// How much more than under ThreadSanitizer is done without it.
inline constexpr int kScale = kSlowdown == 1 ? 6 : 1;

using Errors = std::atomic<int64_t>;
using Work = std::function<void()>;

// Runs each `worker` once and each `watcher` over and over, in a thread each, until the workers
// are done; each watcher at least once.
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
