#include "memory/page_pool.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "table_helpers.h"

namespace tfra::test {
namespace {

// A block whose bytes all have the same value.
struct Block {
  std::byte* start;
  size_t bytes;
  std::byte number;

  bool IsFullOf(std::byte what) const {
    return std::all_of(start, start + bytes, [&](std::byte b) { return b == what; });
  }
};

// Allocates and frees blocks at random. Blocks must be zeroed at first, and must not overlap.
void UseAtRandom(PagePool* pool, uint64_t seed, int steps, size_t most) {
  std::mt19937_64 random(seed);
  std::vector<Block> blocks;
  const auto give_back = [&](size_t which) {
    std::swap(blocks[which], blocks.back());
    CHECK(blocks.back().IsFullOf(blocks.back().number));
    CHECK(pool->Free(blocks.back().start, blocks.back().bytes));
    blocks.pop_back();
  };
  for (int step = 0; step < steps; ++step) {
    if (blocks.size() == most || (!blocks.empty() && random() % 3 == 0)) {
      give_back(random() % blocks.size());
      continue;
    }
    // Small blocks are more frequent than large blocks.
    const size_t bytes = 1 + random() % (PagePool::kLimit >> random() % 8);
    Block block{pool->Allocate(bytes), bytes, static_cast<std::byte>(1 + random() % 255)};
    CHECK(block.start != nullptr);
    CHECK_EQ(reinterpret_cast<uintptr_t>(block.start) % 4096, 0u);
    CHECK(block.IsFullOf(std::byte{0}));
    std::fill_n(block.start, bytes, block.number);
    blocks.push_back(block);
  }
  while (!blocks.empty()) give_back(blocks.size() - 1);
}

TEST(PagePoolBlocksAreEmptyAndApart) {
  PagePool pool;
  UseAtRandom(&pool, 1, 600, 30);
  // All blocks are free again, so the pool must serve blocks of the largest size.
  UseAtRandom(&pool, 2, 100, 3);
}

TEST(PagePoolServesSeveralThreads) {
  PagePool pool;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] { UseAtRandom(&pool, t, 150, 8); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(PagePoolKnowsItsBlocks) {
  PagePool pool, other;
  std::byte* const block = pool.Allocate(PagePool::kSmallest);
  CHECK(!other.Free(block, PagePool::kSmallest));
  CHECK(pool.Free(block, PagePool::kSmallest));
  CHECK(!pool.Free(block, PagePool::kSmallest));
}

size_t ResidentBytes() {
  size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// The process uses as much memory as the blocks need, and none after they are freed.
TEST(PagePoolGivesMemoryBack) {
  PagePool pool;
  const size_t bytes = PagePool::kLimit - 5000, before = ResidentBytes();
  std::vector<std::byte*> blocks;
  for (int k = 0; k < 20; ++k) {
    blocks.push_back(pool.Allocate(bytes));
    std::fill_n(blocks.back(), bytes, std::byte{1});
  }
  const size_t full = ResidentBytes() - before;
  CHECK(full >= 20 * bytes * 9 / 10);
  // Each of these blocks shares a huge page at each end with a block that stays.
  for (size_t k = 0; k < 20; k += 2) CHECK(pool.Free(blocks[k], bytes));
  CHECK(ResidentBytes() - before <= full - 10 * (bytes - 2 * kHugePage) * 9 / 10);
  // New blocks reuse the same units.
  for (size_t k = 0; k < 20; k += 2) blocks[k] = pool.Allocate(bytes);
  for (const std::byte* block : blocks) CHECK(block != nullptr);
  for (std::byte* block : blocks) CHECK(pool.Free(block, bytes));
  CHECK(ResidentBytes() <= before + full / 5);
}

// Pages that are locked in memory, for example by mlockall, are not cleared when they are released.
// The pool must clear them itself.
TEST(PagePoolClearsLockedPages) {
  PagePool pool;
  std::byte* const first = pool.Allocate(kHugePage);
  Block block{pool.Allocate(kHugePage), kHugePage, std::byte{1}};
  std::fill_n(block.start, kHugePage, block.number);
  if (mlock(block.start, kHugePage) != 0) {
    std::printf("  may not lock memory: nothing to see\n");
    return;
  }
  CHECK(pool.Free(block.start, kHugePage));
  CHECK_EQ(pool.Allocate(kHugePage), block.start);
  CHECK(block.IsFullOf(std::byte{0}));
  CHECK(pool.Free(block.start, kHugePage));
  CHECK(pool.Free(first, kHugePage));
}

TEST(PagePoolSurvivesFork) {
  // Uses the pool of the process, as tables do.
  constexpr size_t kBytes = PagePool::kSmallest;
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) FreePages(AllocatePages(kBytes), kBytes);
  });
  for (int k = 0; k < 50; ++k) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // Ends a child that hangs, which fails the test.
      FreePages(AllocatePages(kBytes), kBytes);
      _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
  }
  stop = true;
  busy.join();
}

}  // namespace
}  // namespace tfra::test
