// Which rows leave: by rank, or because they have expired. And what the rows are like.
#include <atomic>
#include <bit>
#include <cmath>

#include "rank_search.h"
#include "table_visit.h"

namespace tfra {
namespace {

// The upper half of a rank. The lower one is the hash of the key, which tells equal ones apart: not
// by chance, and not by their order.
uint64_t UpperRank(const RowMetadata& metadata, Ranking ranking) {
  const uint64_t time = metadata.time, count = metadata.count;
  return ranking == Ranking::kNewest ? time << 32 | count : count << 32 | time;
}

// What a pass has seen of a shard. Of a bucket it is good for as long as its state is the same.
struct ShardNotes {
  struct BucketNote {
    uint32_t state = 0;
    uint8_t go = 0;  // Which entries have too low a rank.
  };
  struct EntryNote {
    uint64_t bucket;
    uint32_t index;
    Rank rank;
  };
  const BucketArray* array = nullptr;
  std::vector<BucketNote> buckets;
  std::vector<EntryNote> undecided;  // Those for which the pass could not tell.
};

}  // namespace

template <typename Keys>
Status TableOf<Keys>::Restrict(uint64_t keep, Ranking ranking, uint64_t* evicted) try {
  TFRA_RETURN_IF_ERROR(CheckMetadata("restricting"));
  const auto visit_selected = [&](size_t s, auto&& select, auto&& visit) TFRA_INLINE {
    VisitSelected(&shards_[s], layout_.metadata_offset, sizeof(RowMetadata), select,
                  [&](Shard::Entry entry, const std::byte* row) TFRA_INLINE {
                    RowMetadata metadata;
                    std::memcpy(&metadata, row + layout_.metadata_offset, sizeof(metadata));
                    visit(entry, UpperRank(metadata, ranking));
                  });
  };
  const auto rank_of = [](Shard::Entry entry, uint64_t upper) {
    return static_cast<Rank>(upper) << 64 | Keys::Hash(entry.word());
  };
  const auto used = [](const Bucket& bucket) {
    return bucket.state.load(std::memory_order_relaxed) & Bucket::kUsed;
  };

  RankSearch search(keep);
  std::array<ShardNotes, kShards> notes;
  uint64_t tries = 0;
  do {
    // Neighbours in the index have nothing else in common: every so many buckets are a fair sample.
    const uint64_t every = std::bit_floor(size() / RankSearch::kSample);
    std::vector<Rank> sample;
    std::mutex mutex;
    ParallelFor(every == 0 ? 0 : kShards, ThreadsFor(size()), [&](size_t s) {
      std::vector<Rank> part;
      {
        std::lock_guard lock(shards_[s].mutex());
        visit_selected(
            s,
            [&](uint64_t b, const Bucket& bucket) {
              return ((b + tries) & (every - 1)) == 0 ? used(bucket) : 0;
            },
            [&](Shard::Entry entry, uint64_t upper) { part.push_back(rank_of(entry, upper)); });
      }
      std::lock_guard lock(mutex);
      sample.insert(sample.end(), part.begin(), part.end());
    });
    search.Aim(std::move(sample), size());
    ++tries;

    ParallelFor(kShards, ThreadsFor(size()), [&](size_t s) {
      RankSearch::Part part(search);
      {
        std::lock_guard lock(shards_[s].mutex());
        const BucketArray* array = shards_[s].array();
        ShardNotes seen{array, std::vector<ShardNotes::BucketNote>(array->count), {}};
        visit_selected(
            s, [&](uint64_t, const Bucket& bucket) TFRA_INLINE { return used(bucket); },
            [&](Shard::Entry entry, uint64_t upper) TFRA_INLINE {
              const RankSearch::Side side =
                  part.Add(upper, [&] { return Keys::Hash(entry.word()); });
              const auto b = static_cast<uint64_t>(entry.bucket - array->buckets);
              ShardNotes::BucketNote& note = seen.buckets[b];
              note.state = entry.bucket->state.load(std::memory_order_relaxed);
              note.go |= static_cast<uint8_t>((side == RankSearch::kBelow) << entry.index);
              if (side == RankSearch::kWithin) {
                seen.undecided.push_back({b, entry.index, rank_of(entry, upper)});
              }
            });
        notes[s] = std::move(seen);
      }
      search.Take(part);
    });
  } while (!search.Found());

  std::atomic<uint64_t> ties{search.ties()};
  const auto goes = [&](Rank rank) {
    if (rank != search.boundary()) return rank < search.boundary();
    uint64_t left = ties.load();
    while (left > 0 && !ties.compare_exchange_weak(left, left - 1)) {
    }
    return left > 0;
  };
  Counting([](Tally* tally) { ++tally->restrict_runs; });
  std::atomic<uint64_t> total{0};
  ParallelFor(kShards, ThreadsFor(size()), [&](size_t s) {
    Counting([&](Tally* tally) {
      Shard& shard = shards_[s];
      std::lock_guard lock(shard.mutex());
      ShardNotes& seen = notes[s];
      const BucketArray* array = shard.array();
      if (array != seen.array) {
        seen = {array, std::vector<ShardNotes::BucketNote>(array->count), {}};
      }
      const auto changed = [&](uint64_t b) {
        return array->buckets[b].state.load(std::memory_order_relaxed) != seen.buckets[b].state;
      };
      const auto note = [&](uint64_t b, uint32_t index, Rank rank) {
        uint8_t& go = seen.buckets[b].go;
        go = static_cast<uint8_t>((go & ~(1u << index)) | static_cast<uint32_t>(goes(rank))
                                                              << index);
      };
      for (const auto& [b, index, rank] : seen.undecided) {
        if (!changed(b)) note(b, index, rank);
      }
      visit_selected(
          s, [&](uint64_t b, const Bucket& bucket) { return changed(b) ? used(bucket) : 0; },
          [&](Shard::Entry entry, uint64_t upper) {
            note(static_cast<uint64_t>(entry.bucket - array->buckets), entry.index,
                 rank_of(entry, upper));
          });
      for (uint64_t b = 0; b < array->count; ++b) {
        Bucket* bucket = array->buckets + b;
        if (const uint32_t go = seen.buckets[b].go & used(*bucket); go != 0) {
          RemoveEntries(&shard, bucket, go, tally);
          tally->evictions += static_cast<uint64_t>(std::popcount(go));
        }
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
  if (!norms && !times) return Status::Ok();
  const SquaredNorm squared_norm = norms ? SquaredNormFor(options_.value_type) : nullptr;
  const double bound = rule.norm_below * rule.norm_below;
  const size_t dim = static_cast<size_t>(options_.dim);
  const size_t offset = norms ? 0 : layout_.metadata_offset;
  *expired = RemoveRows(offset, layout_.stride - offset, &Tally::expirations,
                        [&](Shard::Entry, const std::byte* row) {
                          RowMetadata metadata{};
                          if (options_.metadata) {
                            std::memcpy(&metadata, row + layout_.metadata_offset, sizeof(metadata));
                          }
                          if (times && metadata.time < rule.written_before) return true;
                          return norms && metadata.count >= rule.norm_writes &&
                                 squared_norm(row, dim) < bound;
                        });
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
  ParallelFor(kShards, ThreadsFor(size()), [&](size_t s) {
    RowHistograms part;
    {
      std::lock_guard lock(shards_[s].mutex());
      VisitShard(&shards_[s], 0, layout_.stride, [&](Shard::Entry, const std::byte* row) {
        if (options_.metadata) {
          RowMetadata metadata;
          std::memcpy(&metadata, row + layout_.metadata_offset, sizeof(metadata));
          ++part.age[std::bit_width(now > metadata.time ? now - metadata.time : 0u)];
          ++part.writes[std::bit_width(metadata.count)];
        }
        if (!norms) return;
        const double norm = std::sqrt(squared_norm(row, dim));
        const double last = static_cast<double>(part.norm.size() - 1);
        const double bin = norm > 0.0 ? std::floor(std::log2(norm)) + 32 : 0.0;
        ++part.norm[std::isnan(norm) ? part.norm.size() - 1
                                     : static_cast<size_t>(std::clamp(bin, 0.0, last))];
      });
    }
    std::lock_guard lock(mutex);
    const auto add = [](auto* to, const auto& from) {
      for (size_t i = 0; i < from.size(); ++i) (*to)[i] += from[i];
    };
    add(&histograms->age, part.age);
    add(&histograms->writes, part.writes);
    add(&histograms->norm, part.norm);
  });
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

#define TFRA_INSTANTIATE(Keys)                                           \
  template Status TableOf<Keys>::Restrict(uint64_t, Ranking, uint64_t*); \
  template Status TableOf<Keys>::Expire(const ExpiryRule&, uint64_t*);   \
  template Status TableOf<Keys>::Histograms(RowHistograms*);
TFRA_INSTANTIATE(IntKeys)
TFRA_INSTANTIATE(StringKeys)

}  // namespace tfra
