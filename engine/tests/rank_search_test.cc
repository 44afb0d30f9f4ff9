// RankSearch against sorting.
#include "rank_search.h"

#include <algorithm>
#include <random>

#include "check.h"

namespace tfra::test {
namespace {

enum class Sample { kFair, kSmallest, kLargest };

// Numbers that a search may be told before a pass.
std::vector<Rank> Take(const std::vector<Rank>& ranks, const std::vector<Rank>& sorted,
                       Sample sample, uint64_t seed) {
  const size_t count = std::min<size_t>(ranks.size(), RankSearch::kSample);
  if (sample == Sample::kSmallest) return {sorted.begin(), sorted.begin() + count};
  if (sample == Sample::kLargest) return {sorted.end() - count, sorted.end()};
  std::mt19937_64 random(seed);
  std::vector<Rank> taken;
  std::sample(ranks.begin(), ranks.end(), std::back_inserter(taken), count, random);
  return taken;
}

// Checks for several `keep` that what goes are the smallest numbers, as many as are too many.
void CheckAgainstSorting(const std::vector<Rank>& ranks, Sample sample = Sample::kFair) {
  const uint64_t n = ranks.size();
  std::vector<Rank> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  for (uint64_t keep : {uint64_t{0}, uint64_t{1}, n / 3, n / 2, n - n / 5, n > 0 ? n - 1 : 0, n,
                        n + 1, UINT64_MAX}) {
    for (size_t parts : {1, 7}) {
      RankSearch search(keep);
      uint64_t passes = 0;
      do {
        search.Aim(Take(ranks, sorted, sample, passes), n);
        for (size_t p = 0; p < parts; ++p) {
          RankSearch::Part part(search);
          for (size_t i = p; i < n; i += parts) {
            const RankSearch::Side side = search.SideOf(ranks[i]);
            CHECK_EQ(side == RankSearch::kBelow, ranks[i] < search.low());
            CHECK_EQ(side == RankSearch::kAbove, ranks[i] > search.high());
            // Those that are not within need only be counted.
            if (side == RankSearch::kWithin || i % 2 == 0) {
              CHECK(part.Add(ranks[i]) == side);
            } else {
              part.Count(side, 1);
            }
          }
          search.Take(part);
        }
        ++passes;
      } while (!search.Found() && passes < 1000);
      const auto [first, last] = std::equal_range(sorted.begin(), sorted.end(), search.boundary());
      const uint64_t below = static_cast<uint64_t>(first - sorted.begin());
      CHECK_EQ(below + search.ties(), n > keep ? n - keep : 0);
      CHECK(search.ties() <= static_cast<uint64_t>(last - first));
      // A wrong sample costs passes, since the range doubles until it is all numbers.
      CHECK(passes <= (sample == Sample::kFair ? 2 : 17));
    }
  }
}

std::vector<Rank> Random(uint64_t seed, size_t n, Rank mask) {
  std::mt19937_64 random(seed);
  std::vector<Rank> ranks(n);
  for (Rank& rank : ranks) rank = (Rank{random()} << 64 | random()) & mask;
  return ranks;
}

constexpr Rank kAll = ~Rank{0};
constexpr Rank kUpperHalf = kAll << 64;

TEST(RankSearchOfFew) {
  CheckAgainstSorting({});
  for (Rank rank : {Rank{0}, Rank{1}, Rank{1} << 100, kAll}) {
    CheckAgainstSorting({rank});
    CheckAgainstSorting({rank, rank});
    CheckAgainstSorting({rank, 0});
    CheckAgainstSorting({kAll, rank, 0});
    CheckAgainstSorting({rank - 1, rank, rank + 1});
  }
}

TEST(RankSearchOfRandomNumbers) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (Rank mask : {Rank{1}, Rank{7}, Rank{0xFFFF}, Rank{0x1FFFF}, Rank{UINT64_MAX}, kUpperHalf,
                      kAll >> 1, kAll}) {
      CheckAgainstSorting(Random(seed, 10 + seed * seed * 3, mask));
    }
  }
}

// More equal ones than a sample has.
TEST(RankSearchOfManyEqualNumbers) {
  for (Rank rank : {Rank{0}, Rank{12345} << 64 | 6, kAll}) {
    CheckAgainstSorting(std::vector<Rank>(70000, rank));
  }
  for (Rank other : {Rank{1}, Rank{1} << 64, kAll}) {  // Two values, near and far from each other.
    std::vector<Rank> ranks(150000, 0);
    std::fill(ranks.begin() + 72000, ranks.end(), other);
    CheckAgainstSorting(ranks);
  }
  // A crowd at one number in the midst of others, the range of which is as large as can be.
  std::vector<Rank> ranks = Random(1, 30000, kAll);
  ranks.insert(ranks.end(), 70000, Rank{5} << 120 | 77);
  ranks.insert(ranks.end(), 70000, Rank{5} << 120 | 78);
  CheckAgainstSorting(ranks);
}

TEST(RankSearchOfManyNumbers) {
  CheckAgainstSorting(Random(2, 300000, kAll));
  CheckAgainstSorting(Random(3, 300000, kUpperHalf));
  CheckAgainstSorting(Random(4, 300000, 0xFFF));
  std::vector<Rank> rising;
  for (Rank i = 0; i < 200000; ++i) rising.push_back(i * i << 40);
  CheckAgainstSorting(rising);
}

TEST(RankSearchMisled) {
  const std::vector<Rank> ranks = Random(5, 300000, kAll);
  CheckAgainstSorting(ranks, Sample::kSmallest);
  CheckAgainstSorting(ranks, Sample::kLargest);
}

}  // namespace
}  // namespace tfra::test
