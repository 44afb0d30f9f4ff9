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

template <typename HashOf>
ShardNotes NoteRanks(const BucketArray& array, UpperRank upper_rank, HashOf hash_of,
                     RankSearch::Part* part) {
  ShardNotes notes{&array, std::vector<ShardNotes::BucketNote>(array.count), {}};
  const Rank low = part->search().low(), high = part->search().high();
  const uint64_t upper_low = static_cast<uint64_t>(low >> 64);
  const uint64_t width = static_cast<uint64_t>(high >> 64) - upper_low;
  const uint64_t* metadata = array.metadata();
  uint64_t all_below = 0, all_above = 0;
  for (uint64_t b = 0; b < array.count; ++b, metadata += kBucketEntries) {
    const Bucket& bucket = array.buckets[b];
    // Without branches, which nobody could predict; so places that are not used are looked at too.
    uint32_t below = 0, unclear = 0;
#pragma GCC unroll 5
    for (uint32_t i = 0; i < kBucketEntries; ++i) {
      const uint64_t upper = upper_rank(metadata + i);
      below |= static_cast<uint32_t>(upper < upper_low) << i;
      unclear |= static_cast<uint32_t>(upper - upper_low <= width) << i;
    }
    const uint32_t state = bucket.state.load(std::memory_order_relaxed);
    const uint32_t used = state & Bucket::kUsed;
    uint32_t within = 0;
    ForEachEntry(unclear & used, [&](uint32_t i) TFRA_INLINE {
      const Rank rank = static_cast<Rank>(upper_rank(metadata + i)) << 64 | hash_of(bucket, i);
      below |= static_cast<uint32_t>(rank < low) << i;
      within |= static_cast<uint32_t>(rank >= low && rank <= high) << i;
    });
    below &= used;
    all_below += CountEntries(below);
    all_above += CountEntries(used & ~(below | within));
    notes.buckets[b] = {state, static_cast<uint8_t>(below)};
    ForEachEntry(within, [&](uint32_t i) {
      const Rank rank = static_cast<Rank>(upper_rank(metadata + i)) << 64 | hash_of(bucket, i);
      part->Add(rank);
      notes.undecided.push_back({b, i, rank});
    });
  }
  part->Count(RankSearch::kBelow, all_below);
  part->Count(RankSearch::kAbove, all_above);
  return notes;
}

}  // namespace

template <typename Keys>
Status TableOf<Keys>::Restrict(uint64_t keep, Ranking ranking, uint64_t* evicted) try {
  TFRA_RETURN_IF_ERROR(CheckMetadata("restricting"));
  const UpperRank upper_rank(ranking);
  const auto hash_of = [](const Bucket& bucket, uint32_t i) TFRA_INLINE {
    return Keys::Hash(bucket.words[i].load(std::memory_order_relaxed));
  };
  const auto rank_of = [=](const BucketArray& array, uint64_t b, uint32_t i) {
    return static_cast<Rank>(upper_rank(array.metadata() + b * kBucketEntries + i)) << 64 |
           hash_of(array.buckets[b], i);
  };
  EpochGuard guard;  // An array that is seen twice has been there all the time.
  RankSearch search(keep);
  std::array<ShardNotes, kShards> notes;
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
    ParallelFor(kShards, ThreadsFor(size()), [&](size_t s) {
      RankSearch::Part part(search);
      {
        std::lock_guard lock(shards_[s].mutex());
        notes[s] = NoteRanks(*shards_[s].array(), upper_rank, hash_of, &part);
      }
      search.Take(part);
    });
  }

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
      std::lock_guard lock(shards_[s].mutex());
      const BucketArray& array = *shards_[s].array();
      ShardNotes& seen = notes[s];
      const bool same_array = &array == seen.array;
      if (!same_array) seen = {&array, std::vector<ShardNotes::BucketNote>(array.count), {}};
      const auto unchanged = [&](uint64_t b) {
        const uint32_t state = array.buckets[b].state.load(std::memory_order_relaxed);
        return same_array && state == seen.buckets[b].state;
      };
      for (const auto& [b, i, rank] : seen.undecided) {
        if (unchanged(b)) seen.buckets[b].go |= static_cast<uint8_t>(goes(rank) << i);
      }
      size_t leaving = 0;
      for (uint64_t b = 0; b < array.count; ++b) {
        uint32_t go = seen.buckets[b].go;
        if (!unchanged(b)) {  // By other threads: it is looked at anew.
          go = 0;
          ForEachEntry(array.buckets[b].used(), [&](uint32_t i) {
            go |= static_cast<uint32_t>(goes(rank_of(array, b, i))) << i;
          });
          seen.buckets[b].go = static_cast<uint8_t>(go);
        }
        leaving += CountEntries(go);
      }
      PrepareDrop(&shards_[s], leaving, tally);
      for (uint64_t b = 0; b < array.count; ++b) {
        if (const uint32_t go = seen.buckets[b].go; go != 0) {
          RemoveEntries(&shards_[s], array.buckets + b, go, tally);
        }
      }
      tally->evictions += leaving;
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
