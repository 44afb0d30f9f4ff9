// Which rows leave: by rank, or because they have expired. And what the rows are like.
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>

#include "rank_search.h"
#include "table_visit.h"

namespace tfra {
namespace {

// The upper half of a rank: what counts more, then the rest. The lower half is the hash of the key,
// which tells equal ones apart: not by chance, and not by their order.
class UpperRank {
 public:
  explicit UpperRank(Ranking ranking) : rotation_(ranking == Ranking::kNewest ? 32 : 0) {}

  // Of what a place of the index has as its metadata.
  [[gnu::always_inline]] uint64_t operator()(const uint64_t* metadata) const {
    static_assert(std::endian::native == std::endian::little && offsetof(RowMetadata, count) == 4);
    return std::rotl(__atomic_load_n(metadata, __ATOMIC_RELAXED), rotation_);
  }

 private:
  int rotation_;
};

// How the upper ranks of the entries of a bucket compare with a range, as bit masks. Without
// branches, which nobody could predict; so places without an entry are looked at too.
struct Sides {
  uint32_t below = 0;
  uint32_t within = 0;

  [[gnu::always_inline]] Sides(const uint64_t* metadata, uint32_t used, UpperRank upper_rank,
                               uint64_t low, uint64_t high) {
#pragma GCC unroll 5
    for (uint32_t i = 0; i < kBucketEntries; ++i) {
      const uint64_t upper = upper_rank(metadata + i);
      below |= static_cast<uint32_t>(upper < low) << i;
      within |= static_cast<uint32_t>(upper - low <= high - low) << i;
    }
    below &= used;
    within &= used;
  }
};

uint64_t UpperHalf(Rank rank) { return static_cast<uint64_t>(rank >> 64); }

}  // namespace

template <typename Keys>
Status TableOf<Keys>::Restrict(uint64_t keep, Ranking ranking, uint64_t* evicted) try {
  TFRA_RETURN_IF_ERROR(CheckMetadata("restricting"));
  const UpperRank upper_rank(ranking);
  const auto rank_of = [=](const BucketArray& array, uint64_t b, uint32_t i) TFRA_INLINE {
    return static_cast<Rank>(upper_rank(array.metadata() + b * kBucketEntries + i)) << 64 |
           Keys::Hash(array.buckets[b].words[i].load(std::memory_order_relaxed));
  };
  RankSearch search(keep);
  for (uint64_t tries = 0; tries == 0 || !search.Found(); ++tries) {
    // Neighbours in the index have nothing else in common: every so many buckets are a fair sample.
    const uint64_t every = size() / RankSearch::kSample;
    std::vector<Rank> sample;
    for (uint32_t s = 0; every > 0 && s < kShards; ++s) {
      std::lock_guard lock(shards_[s].mutex());
      const BucketArray& array = *shards_[s].array();
      for (uint64_t b = tries % every; b < array.count; b += every) {
        ForEachEntry(array.buckets[b].used(),
                     [&](uint32_t i) { sample.push_back(rank_of(array, b, i)); });
      }
    }
    search.Aim(std::move(sample), size());
    const Rank low = search.low(), high = search.high();
    ParallelFor(kShards, ThreadsFor(size()), [&](size_t s) {
      RankSearch::Part part(search);
      {
        std::lock_guard lock(shards_[s].mutex());
        const BucketArray& array = *shards_[s].array();
        const uint64_t* metadata = array.metadata();
        uint64_t below = 0, unclear = 0;
        for (uint64_t b = 0; b < array.count; ++b, metadata += kBucketEntries) {
          const Sides sides(metadata, array.buckets[b].used(), upper_rank, UpperHalf(low),
                            UpperHalf(high));
          below += CountEntries(sides.below);
          unclear += CountEntries(sides.within);
          ForEachEntry(sides.within,
                       [&](uint32_t i) TFRA_INLINE { part.Add(rank_of(array, b, i)); });
        }
        part.Count(RankSearch::kBelow, below);
        part.Count(RankSearch::kAbove, shards_[s].size() - below - unclear);
      }
      search.Take(part);
    });
  }

  const Rank boundary = search.boundary();
  std::atomic<uint64_t> ties{search.ties()};
  const auto goes = [&](Rank rank) TFRA_INLINE {
    if (rank != boundary) [[likely]]
      return rank < boundary;
    uint64_t left = ties.load();
    while (left > 0 && !ties.compare_exchange_weak(left, left - 1)) {
    }
    return left > 0;
  };
  Counting([](Tally* tally) { ++tally->restrict_runs; });
  std::atomic<uint64_t> total{0};
  ParallelFor(kShards, ThreadsFor(size()), [&](size_t s) {
    Counting([&](Tally* tally) {
      std::lock_guard lock(shards_[s].mutex());
      const BucketArray& array = *shards_[s].array();
      const uint64_t* metadata = array.metadata();
      for (uint64_t b = 0; b < array.count; ++b, metadata += kBucketEntries) {
        const Sides sides(metadata, array.buckets[b].used(), upper_rank, UpperHalf(boundary),
                          UpperHalf(boundary));
        uint32_t go = sides.below;
        ForEachEntry(sides.within, [&](uint32_t i) TFRA_INLINE {
          go |= static_cast<uint32_t>(goes(rank_of(array, b, i))) << i;
        });
        if (go == 0) continue;
        RemoveEntries(&shards_[s], array.buckets + b, go, tally);
        tally->evictions += CountEntries(go);
      }
      total += tally->evictions;
    });
  });
  *evicted = total;
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::Expire(const ExpiryRule& rule, uint64_t* expired) try {
  const bool norms = rule.norm_below > 0.0, times = rule.written_before > 0;
  if (times || (norms && rule.norm_writes > 0)) TFRA_RETURN_IF_ERROR(CheckMetadata("expiry"));
  if (norms && !IsFloating(options_.value_type)) {
    return Status::WrongType(std::string("expected floating values for expiry by norm, received ") +
                             NameOf(options_.value_type) + " values");
  }
  *expired = 0;
  if (times) {
    *expired = RemoveByMetadata(&Tally::expirations, [&](const RowMetadata& metadata) {
      return metadata.time < rule.written_before;
    });
  }
  if (norms) {
    const SquaredNorm squared_norm = SquaredNormFor(options_.value_type);
    const double bound = rule.norm_below * rule.norm_below;
    const auto goes = [&](Shard::Entry entry, const std::byte* row) {
      if (options_.metadata && MetadataOf(entry).count < rule.norm_writes) return false;
      return squared_norm(row, static_cast<size_t>(options_.dim)) < bound;
    };
    uint64_t small = 0;
    TFRA_RETURN_IF_ERROR(RemoveRows(0, layout_.value_bytes, &Tally::expirations, &small, goes));
    *expired += small;
  }
  if (admission_ == nullptr || !times) return Status::Ok();
  for (uint32_t s = 0; s < kShards; ++s) {
    std::lock_guard lock(shards_[s].mutex());
    admission_->Expire(s, rule.written_before);
  }
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::Histograms(RowHistograms* histograms) try {
  *histograms = RowHistograms();
  const bool norms = IsFloating(options_.value_type);
  const SquaredNorm squared_norm = norms ? SquaredNormFor(options_.value_type) : nullptr;
  const size_t dim = static_cast<size_t>(options_.dim);
  const uint32_t now = clock();
  std::mutex mutex;
  SharedStatus status;
  ParallelFor(kShards, ThreadsFor(size()), [&](size_t s) {
    RowHistograms part;
    {
      status.Set(VisitShard(
          &shards_[s], 0, layout_.value_bytes, [&](Shard::Entry entry, const std::byte* row) {
            if (options_.metadata) {
              const RowMetadata metadata = MetadataOf(entry);
              ++part.age[std::bit_width(now > metadata.time ? now - metadata.time : 0u)];
              ++part.writes[std::bit_width(metadata.count)];
            }
            if (!norms) return;
            const double norm = std::sqrt(squared_norm(row, dim));
            const double last = static_cast<double>(part.norm.size() - 1);
            const double bin = norm > 0.0 ? std::floor(std::log2(norm)) + 32 : 0.0;
            ++part.norm[std::isnan(norm) ? part.norm.size() - 1
                                         : static_cast<size_t>(std::clamp(bin, 0.0, last))];
          }));
    }
    std::lock_guard lock(mutex);
    const auto add = [](auto* to, const auto& from) {
      for (size_t i = 0; i < from.size(); ++i) (*to)[i] += from[i];
    };
    add(&histograms->age, part.age);
    add(&histograms->writes, part.writes);
    add(&histograms->norm, part.norm);
  });
  return status.Get();
}
TFRA_CATCH_BAD_ALLOC

#define TFRA_INSTANTIATE(Keys)                                           \
  template Status TableOf<Keys>::Restrict(uint64_t, Ranking, uint64_t*); \
  template Status TableOf<Keys>::Expire(const ExpiryRule&, uint64_t*);   \
  template Status TableOf<Keys>::Histograms(RowHistograms*);
TFRA_INSTANTIATE(IntKeys)
TFRA_INSTANTIATE(StringKeys)

}  // namespace tfra
