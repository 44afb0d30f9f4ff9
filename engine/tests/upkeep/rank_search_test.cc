// Compares RankSearch with sorting.
#include "upkeep/rank_search.h"

#include <algorithm>
#include <random>

#include "check.h"

namespace tfra::test {
namespace {

enum class Sample { kFair, kSmallest, kLargest };

// The sample of numbers that the search gets before a pass.
std::vector<uint64_t> Take(const std::vector<uint64_t>& numbers,
                           const std::vector<uint64_t>& sorted, Sample sample, uint64_t seed) {
  if (numbers.size() <= RankSearch::kSample) return {};
  const auto count = static_cast<std::ptrdiff_t>(RankSearch::kSample);
  if (sample == Sample::kSmallest) return {sorted.begin(), sorted.begin() + count};
  if (sample == Sample::kLargest) return {sorted.end() - count, sorted.end()};
  std::mt19937_64 random(seed);
  std::vector<uint64_t> taken;
  std::sample(numbers.begin(), numbers.end(), std::back_inserter(taken), count, random);
  return taken;
}

// Checks for several values of `keep` that the search finds the n - keep smallest numbers.
void CheckAgainstSorting(const std::vector<uint64_t>& numbers, Sample sample = Sample::kFair) {
  const uint64_t n = numbers.size();
  std::vector<uint64_t> sorted = numbers;
  std::sort(sorted.begin(), sorted.end());
  for (uint64_t keep : {uint64_t{0}, uint64_t{1}, n / 3, n / 2, n - n / 5, n > 0 ? n - 1 : 0, n,
                        n + 1, UINT64_MAX}) {
    for (size_t parts : {1, 7}) {
      RankSearch search(keep);
      uint64_t passes = 0;
      do {
        search.Aim(Take(numbers, sorted, sample, passes), n);
        for (size_t p = 0; p < parts; ++p) {
          RankSearch::Part part = search.NewPart();
          for (size_t i = p; i < n; i += parts) {
            RankSearch::Add(1, [&](uint64_t) { return numbers[i]; }, &part);
          }
          CHECK_EQ(part.seen, (n + parts - 1 - p) / parts);
          for (uint64_t number : part.between) CHECK(part.low < number && number < part.high);
          // Numbers that equal `low` or `high` are counted, not stored.
          CHECK(part.below <= part.to_low);
          CHECK(part.to_low + part.between.size() <= part.to_high);
          search.Take(part);
        }
        ++passes;
      } while (!search.Found() && passes < 1000);
      const auto [first, last] = std::equal_range(sorted.begin(), sorted.end(), search.boundary());
      const uint64_t below = static_cast<uint64_t>(first - sorted.begin());
      CHECK_EQ(below + search.ties(), n > keep ? n - keep : 0);
      CHECK_EQ(search.equals(), static_cast<uint64_t>(last - first));
      CHECK(search.ties() <= search.equals());
      // A misleading sample costs more passes: the range doubles until it covers all numbers.
      CHECK(passes <= (sample == Sample::kFair ? 2 : 17));
    }
  }
}

std::vector<uint64_t> Random(uint64_t seed, size_t n, uint64_t mask) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> numbers(n);
  for (uint64_t& number : numbers) number = random() & mask;
  return numbers;
}

constexpr uint64_t kAll = UINT64_MAX;
constexpr uint64_t kUpperHalf = kAll << 32;

TEST(RankSearchOfFew) {
  CheckAgainstSorting({});
  for (uint64_t number : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 50, kAll}) {
    CheckAgainstSorting({number});
    CheckAgainstSorting({number, number});
    CheckAgainstSorting({number, 0});
    CheckAgainstSorting({kAll, number, 0});
    CheckAgainstSorting({number - 1, number, number + 1});
  }
}

TEST(RankSearchOfRandomNumbers) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (uint64_t mask : {uint64_t{1}, uint64_t{7}, uint64_t{0xFFFF}, uint64_t{0x1FFFF}, kUpperHalf,
                          kAll >> 1, kAll}) {
      CheckAgainstSorting(Random(seed, 10 + seed * seed * 3, mask));
    }
  }
}

// More equal numbers than a sample has elements.
TEST(RankSearchOfManyEqualNumbers) {
  for (uint64_t number : {uint64_t{0}, uint64_t{12345} << 32 | 6, kAll}) {
    CheckAgainstSorting(std::vector<uint64_t>(70000, number));
  }
  for (uint64_t other :
       {uint64_t{1}, uint64_t{1} << 32, kAll}) {  // Two values, close together or far apart.
    std::vector<uint64_t> numbers(150000, 0);
    std::fill(numbers.begin() + 72000, numbers.end(), other);
    CheckAgainstSorting(numbers);
  }
  // Many equal numbers among others that cover the whole range.
  std::vector<uint64_t> numbers = Random(1, 30000, kAll);
  numbers.insert(numbers.end(), 70000, uint64_t{5} << 60 | 77);
  numbers.insert(numbers.end(), 70000, uint64_t{5} << 60 | 78);
  CheckAgainstSorting(numbers);
}

TEST(RankSearchOfManyNumbers) {
  CheckAgainstSorting(Random(2, 300000, kAll));
  CheckAgainstSorting(Random(3, 300000, kUpperHalf));
  CheckAgainstSorting(Random(4, 300000, 0xFFF));
  std::vector<uint64_t> rising;
  for (uint64_t i = 0; i < 200000; ++i) rising.push_back(i * i << 20);
  CheckAgainstSorting(rising);
}

TEST(RankSearchWithMisleadingSamples) {
  const std::vector<uint64_t> numbers = Random(5, 300000, kAll);
  CheckAgainstSorting(numbers, Sample::kSmallest);
  CheckAgainstSorting(numbers, Sample::kLargest);
}

}  // namespace
}  // namespace tfra::test
