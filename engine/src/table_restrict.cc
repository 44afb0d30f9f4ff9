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
  const auto rank_of = [&](Shard::Entry entry, const std::byte* row) {
    RowMetadata metadata;
    std::memcpy(&metadata, row + layout_.metadata_offset, sizeof(metadata));
    return RankOf(metadata, ranking, Keys::Hash(entry.word()));
  };
  RankSearch search;
  SharedStatus status;
  do {
    ParallelFor(kShards, ThreadsFor(size()), [&](size_t s) {
      RankSearch::Part part(search);
      status.Set(VisitShard(
          &shards_[s], layout_.metadata_offset, sizeof(RowMetadata),
          [&](Shard::Entry entry, const std::byte* row) { part.Add(rank_of(entry, row)); }));
      search.Take(part);
    });
    TFRA_RETURN_IF_ERROR(status.Get());
  } while (search.Next(keep));

  const Rank boundary = search.boundary();
  std::atomic<uint64_t> ties{search.ties()};
  const auto goes = [&](Shard::Entry entry, const std::byte* row) {
    const Rank rank = rank_of(entry, row);
    if (rank != boundary) return rank < boundary;
    uint64_t left = ties.load();
    while (left > 0 && !ties.compare_exchange_weak(left, left - 1)) {
    }
    return left > 0;
  };
  Counting([](Tally* tally) { ++tally->restrict_runs; });
  *evicted = 0;
  if (boundary == 0 && search.ties() == 0) return Status::Ok();
  return RemoveRows(layout_.metadata_offset, sizeof(RowMetadata), &Tally::evictions, evicted, goes);
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
  const auto goes = [&](Shard::Entry, const std::byte* row) {
    RowMetadata metadata{};
    if (options_.metadata) {
      std::memcpy(&metadata, row + layout_.metadata_offset, sizeof(metadata));
    }
    if (times && metadata.time < rule.written_before) return true;
    return norms && metadata.count >= rule.norm_writes && squared_norm(row, dim) < bound;
  };
  TFRA_RETURN_IF_ERROR(
      RemoveRows(offset, layout_.stride - offset, &Tally::expirations, expired, goes));
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
      status.Set(
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
