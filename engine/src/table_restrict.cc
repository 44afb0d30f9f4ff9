// Which rows leave: by rank, or because they have expired. And what the rows are like.
#include <atomic>
#include <bit>
#include <cmath>

#include "rank_search.h"
#include "table_visit.h"

namespace tfra {
namespace {

// Equal ones are told apart by the hash of the key: not by chance, and not by their order.
Rank RankOf(const RowMetadata& metadata, Ranking ranking, uint64_t hash) {
  const uint64_t time = metadata.time, count = metadata.count;
  const uint64_t rank = ranking == Ranking::kNewest ? time << 32 | count : count << 32 | time;
  return static_cast<Rank>(rank) << 64 | hash;
}

}  // namespace

template <typename Keys>
Status TableOf<Keys>::Restrict(uint64_t keep, Ranking ranking, uint64_t* evicted) try {
  TFRA_RETURN_IF_ERROR(CheckMetadata("restricting"));
  RankSearch search;
  const auto pass = [&](auto&& begin, auto&& end) {
    ParallelFor(kShards, ThreadsFor(size()), [&](size_t s) {
      auto visit = begin(s);
      std::lock_guard lock(shards_[s].mutex());
      VisitShard(&shards_[s], layout_.metadata_offset, sizeof(RowMetadata),
                 [&](Shard::Entry entry, const std::byte* row) {
                   RowMetadata metadata;
                   std::memcpy(&metadata, row + layout_.metadata_offset, sizeof(metadata));
                   visit(entry, RankOf(metadata, ranking, Keys::Hash(entry.word())));
                 });
      end(&visit);
    });
  };
  struct Counter {
    RankSearch::Part part;
    void operator()(Shard::Entry, Rank rank) { part.Add(rank); }
  };
  do {
    pass([&](size_t) { return Counter{RankSearch::Part(search)}; },
         [&](Counter* counter) { search.Take(counter->part); });
  } while (search.Next(keep));
  Tally run;
  run.restrict_runs = 1;
  Count(std::move(run));
  *evicted = 0;
  if (search.boundary() == 0 && search.ties() == 0) return Status::Ok();

  std::atomic<uint64_t> ties{search.ties()}, total{0};
  struct Remover {
    TableOf* table;
    Shard* shard;
    Rank boundary;
    std::atomic<uint64_t>* ties;
    Tally tally;

    void operator()(Shard::Entry entry, Rank rank) {
      if (rank > boundary) return;
      if (rank == boundary) {
        uint64_t left = ties->load();
        while (left > 0 && !ties->compare_exchange_weak(left, left - 1)) {
        }
        if (left == 0) return;
      }
      table->RemoveEntry(shard, entry, &tally);
      ++tally.evictions;
    }
  };
  pass([&](size_t s) { return Remover{this, &shards_[s], search.boundary(), &ties, Tally()}; },
       [&](Remover* remover) {
         total += remover->tally.evictions;
         Count(std::move(remover->tally));
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
  std::atomic<uint64_t> total{0};
  ParallelFor(kShards, ThreadsFor(size()), [&](size_t s) {
    Tally tally;
    {
      std::lock_guard lock(shards_[s].mutex());
      const size_t offset = norms ? 0 : layout_.metadata_offset;
      VisitShard(&shards_[s], offset, layout_.stride - offset,
                 [&](Shard::Entry entry, const std::byte* row) {
                   RowMetadata metadata{};
                   if (options_.metadata) {
                     std::memcpy(&metadata, row + layout_.metadata_offset, sizeof(metadata));
                   }
                   const bool old = times && metadata.time < rule.written_before;
                   if (!old && !(norms && metadata.count >= rule.norm_writes &&
                                 squared_norm(row, dim) < bound)) {
                     return;
                   }
                   RemoveEntry(&shards_[s], entry, &tally);
                   ++tally.expirations;
                 });
      if (admission_ != nullptr && times) {
        admission_->Expire(static_cast<uint32_t>(s), rule.written_before);
      }
    }
    total += tally.expirations;
    Count(std::move(tally));
  });
  *expired = total;
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
