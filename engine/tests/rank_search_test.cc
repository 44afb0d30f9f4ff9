// RankSearch against sorting.
#include "rank_search.h"

#include <algorithm>
#include <random>

#include "check.h"

namespace tfra::test {
namespace {

// Checks for several `keep` that what goes are the smallest numbers, as many as are too many.
void CheckAgainstSorting(const std::vector<Rank>& ranks) {
  // A range of 128 bits, of which each pass settles 16; and one pass for the bounds.
  constexpr int kMostPasses = 1 + 128 / 16;
  const uint64_t n = ranks.size();
  std::vector<Rank> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  for (uint64_t keep : {uint64_t{0}, uint64_t{1}, n / 3, n / 2, n - n / 5, n > 0 ? n - 1 : 0, n,
                        n + 1, UINT64_MAX}) {
    for (size_t parts : {1, 7}) {
      RankSearch search;
      int passes = 0;
      do {
        for (size_t p = 0; p < parts; ++p) {
          RankSearch::Part part(search);
          for (size_t i = p; i < n; i += parts) part.Add(ranks[i]);
          search.Take(part);
        }
        ++passes;
      } while (passes < 1000 && search.Next(keep));
      const auto [first, last] = std::equal_range(sorted.begin(), sorted.end(), search.boundary());
      const uint64_t below = static_cast<uint64_t>(first - sorted.begin());
      CHECK_EQ(below + search.ties(), n > keep ? n - keep : 0);
      CHECK(search.ties() <= static_cast<uint64_t>(last - first));
      CHECK(passes <= kMostPasses);
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

// More equal ones than are looked at one by one.
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

}  // namespace
}  // namespace tfra::test
