#include "upkeep/upkeep.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <string>

#include "keys/key_groups.h"
#include "reading/reader.h"
#include "upkeep/rank_search.h"
#include "writing/remover.h"
#include "writing/writer.h"

namespace tfra {
namespace {

// The rank of a row: its metadata as one number, the more important half first. Places without an
// entry have rank 0.
class MetadataRank {
 public:
  explicit MetadataRank(Ranking ranking) : rotation_(ranking == Ranking::kNewest ? 32 : 0) {}

  // The rank of the metadata of a place of the index.
  [[gnu::always_inline]] uint64_t operator()(const uint64_t* metadata) const {
    static_assert(std::endian::native == std::endian::little && offsetof(RowMetadata, count) == 4);
    return std::rotl(__atomic_load_n(metadata, __ATOMIC_RELAXED), rotation_);
  }

  // The places of a bucket for whose rank `is` is true, as a bit mask. Without branches, which no
  // CPU could predict.
  template <typename Is>
  [[gnu::always_inline]] uint32_t Mask(const uint64_t* metadata, Is&& is) const {
    uint32_t mask = 0;
#pragma GCC unroll 5
    for (uint32_t i = 0; i < kBucketEntries; ++i) {
      mask |= static_cast<uint32_t>(is((*this)(metadata + i))) << i;
    }
    return mask;
  }

 private:
  int rotation_;
};

// Tells a search about all metadata of a stripe.
void AddRanks(const Stripe& stripe, MetadataRank rank_of, RankSearch::Part* part) {
  const BucketArray& array = *stripe.array();
  const uint64_t* metadata = array.metadata();
  const uint64_t places = array.count * kBucketEntries;
  RankSearch::Add(places, [=](uint64_t i) TFRA_INLINE { return rank_of(metadata + i); }, part);
  // The places without an entry, which have rank 0, do not count.
  const uint64_t empty = places - stripe.size();
  part->seen -= empty;
  part->below -= part->low > 0 ? empty : 0;
  part->to_low -= empty;
  part->to_high -= empty;
}

}  // namespace

template <typename Keys>
template <typename Sample, typename Look>
void UpkeepOf<Keys>::FindBoundary(RankSearch* search, uint64_t size, Sample&& sample,
                                  Look&& look) const {
  // Keys are in the order of their hashes, so every n-th bucket makes a fair sample.
  const uint64_t every = state_.size() / RankSearch::kSample;
  for (uint64_t tries = 0; tries == 0 || !search->Found(); ++tries) {
    std::vector<uint64_t> numbers;
    for (uint32_t s = 0; every > 0 && s < kStripes; ++s) {
      std::lock_guard lock(state_.stripes[s].mutex());
      const BucketArray& array = *state_.stripes[s].array();
      for (uint64_t b = tries % every; b < array.count; b += every) sample(array, b, &numbers);
    }
    search->Aim(std::move(numbers), size);
    ParallelFor(kStripes, ThreadsFor(state_.size()), [&](size_t s) {
      RankSearch::Part part = search->NewPart();
      {
        std::lock_guard lock(state_.stripes[s].mutex());
        look(state_.stripes[s], &part);
      }
      search->Take(part);
    });
  }
}

template <typename Keys>
Status UpkeepOf<Keys>::LookupMetadata(const KeyBatch& keys, RowMetadata* metadata, bool* exists) {
  return Reader<Keys>(state_).LookupMetadata(keys, metadata, exists);
}

template <typename Keys>
Status UpkeepOf<Keys>::Touch(const KeyBatch& keys, NewKeys new_keys) try {
  TFRA_RETURN_IF_ERROR(state_.CheckKeys(keys));
  TFRA_RETURN_IF_ERROR(state_.CheckMetadata("renewing metadata"));
  KeyBits bits;
  KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  groups.ExtractDuplicates(bits);
  return Write<Keys>(
      state_, bits, groups,
      TouchOp{ContextOf(state_, state_.has_string_values() ? NewKeys::kDrop : new_keys)});
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status UpkeepOf<Keys>::CountIf(const MetadataPredicate& predicate, uint64_t* count) try {
  TFRA_RETURN_IF_ERROR(state_.CheckMetadata("selecting by metadata"));
  std::vector<uint64_t> counts(kStripes);
  visitor_.VisitMetadata([&](size_t s, Stripe::Entry, const RowMetadata& metadata) {
    counts[s] += predicate(metadata);
  });
  *count = 0;
  for (uint64_t each : counts) *count += each;
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status UpkeepOf<Keys>::RemoveIf(const MetadataPredicate& predicate, uint64_t* removed) try {
  TFRA_RETURN_IF_ERROR(state_.CheckMetadata("selecting by metadata"));
  *removed = visitor_.RemoveByMetadata(&Tally::removals, predicate);
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status UpkeepOf<Keys>::SelectIf(const MetadataPredicate& predicate, ExportBatch* batch) try {
  TFRA_RETURN_IF_ERROR(state_.CheckMetadata("selecting by metadata"));
  *batch = ExportBatch();
  std::vector<ExportBatch> selected(kStripes);
  visitor_.VisitMetadata([&](size_t s, Stripe::Entry entry, const RowMetadata& metadata) {
    if (!predicate(metadata)) return;
    ++selected[s].size;
    if (state_.has_string_keys()) {
      selected[s].string_keys.Append(state_.KeyOf(entry.row())->view());
    } else {
      selected[s].int_keys.push_back(static_cast<int64_t>(entry.key_bits()));
    }
  });
  for (ExportBatch& each : selected) batch->Append(std::move(each));
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status UpkeepOf<Keys>::Restrict(uint64_t keep, Ranking ranking, uint64_t* evicted) try {
  TFRA_RETURN_IF_ERROR(state_.CheckMetadata("restricting"));
  const MetadataRank rank_of(ranking);
  RankSearch ranks(keep);
  FindBoundary(
      &ranks, state_.size(),
      [&](const BucketArray& array, uint64_t b, std::vector<uint64_t>* sample) {
        ForEachEntry(array.buckets[b].used(), [&](uint32_t i) {
          sample->push_back(rank_of(array.metadata() + b * kBucketEntries + i));
        });
      },
      [&](const Stripe& stripe, RankSearch::Part* part) { AddRanks(stripe, rank_of, part); });

  // Among rows whose rank is the boundary, those with the smallest hashes go: that depends neither
  // on chance nor on the order in which they came.
  const auto equal = [&](const BucketArray& array, uint64_t b) TFRA_INLINE {
    const uint64_t boundary = ranks.boundary();
    return array.buckets[b].used() & rank_of.Mask(array.metadata() + b * kBucketEntries,
                                                  [=](uint64_t rank) { return rank == boundary; });
  };
  const auto hash_of = [](const BucketArray& array, uint64_t b, uint32_t i) TFRA_INLINE {
    return Keys::Hash(array.buckets[b].bits[i].load(std::memory_order_relaxed));
  };
  RankSearch hashes(ranks.equals() - ranks.ties());
  const bool some_equals_go = ranks.ties() > 0 && ranks.ties() < ranks.equals();
  if (some_equals_go) {
    FindBoundary(
        &hashes, ranks.equals(),
        [&](const BucketArray& array, uint64_t b, std::vector<uint64_t>* sample) {
          ForEachEntry(equal(array, b),
                       [&](uint32_t i) { sample->push_back(hash_of(array, b, i)); });
        },
        [&](const Stripe& stripe, RankSearch::Part* part) {
          const BucketArray& array = *stripe.array();
          for (uint64_t b = 0; b < array.count; ++b) {
            ForEachEntry(equal(array, b), [&](uint32_t i) TFRA_INLINE {
              RankSearch::Add(1, [&](uint64_t) { return hash_of(array, b, i); }, part);
            });
          }
        });
  }

  std::atomic<uint64_t> ties{hashes.ties()};
  const auto goes_by_hash = [&](uint64_t hash) TFRA_INLINE {
    if (hash != hashes.boundary()) [[likely]]
      return hash < hashes.boundary();
    uint64_t left = ties.load();
    while (left > 0 && !ties.compare_exchange_weak(left, left - 1)) {
    }
    return left > 0;
  };
  state_.Counting([](Tally* tally) { ++tally->restrict_runs; });
  // Rows of a lower rank go; rows of this rank go too if all of them do.
  const uint64_t boundary = ranks.boundary();
  const bool equals_go = ranks.ties() > 0 && !some_equals_go;
  const auto goes = [=](uint64_t rank) { return equals_go ? rank <= boundary : rank < boundary; };
  *evicted = visitor_.RemoveEntriesOf(&Tally::evictions, [&](const BucketArray& array, uint64_t b) {
    uint32_t going = rank_of.Mask(array.metadata() + b * kBucketEntries, goes);
    if (some_equals_go) {
      ForEachEntry(equal(array, b), [&](uint32_t i) TFRA_INLINE {
        going |= static_cast<uint32_t>(goes_by_hash(hash_of(array, b, i))) << i;
      });
    }
    return going;
  });
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status UpkeepOf<Keys>::Expire(const ExpiryRule& rule, uint64_t* expired) try {
  const bool norms = rule.norm_below > 0.0, times = rule.written_before > 0;
  if (times || (norms && rule.norm_writes > 0))
    TFRA_RETURN_IF_ERROR(state_.CheckMetadata("expiry"));
  if (norms && !IsFloating(state_.spec.value_type)) {
    return Status::WrongType(std::string("expected floating values for expiry by norm, received ") +
                             NameOf(state_.spec.value_type) + " values");
  }
  *expired = 0;
  if (times) {
    *expired = visitor_.RemoveByMetadata(&Tally::expirations, [&](const RowMetadata& metadata) {
      return metadata.time < rule.written_before;
    });
  }
  if (norms) {
    const SquaredNorm squared_norm = SquaredNormFor(state_.spec.value_type);
    const double bound = rule.norm_below * rule.norm_below;
    const auto goes = [&](Stripe::Entry entry, const std::byte* row) {
      if (state_.spec.metadata && visitor_.MetadataOf(entry).count < rule.norm_writes) return false;
      return squared_norm(row, static_cast<size_t>(state_.spec.dim)) < bound;
    };
    uint64_t small = 0;
    TFRA_RETURN_IF_ERROR(
        visitor_.RemoveRows(0, state_.layout.value_bytes, &Tally::expirations, &small, goes));
    *expired += small;
  }
  if (state_.admission == nullptr || !times) return Status::Ok();
  for (uint32_t s = 0; s < kStripes; ++s) {
    std::lock_guard lock(state_.stripes[s].mutex());
    state_.admission->Expire(s, rule.written_before);
  }
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status UpkeepOf<Keys>::Histograms(RowHistograms* histograms) try {
  *histograms = RowHistograms();
  const bool norms = IsFloating(state_.spec.value_type);
  const SquaredNorm squared_norm = norms ? SquaredNormFor(state_.spec.value_type) : nullptr;
  const size_t dim = static_cast<size_t>(state_.spec.dim);
  const uint32_t now = state_.clock();
  std::vector<RowHistograms> parts(kStripes);
  const auto add_metadata = [&](size_t s, Stripe::Entry, const RowMetadata& metadata) {
    ++parts[s].age[std::bit_width(now > metadata.time ? now - metadata.time : 0u)];
    ++parts[s].writes[std::bit_width(metadata.count)];
  };
  const auto add_norm = [&](size_t s, const std::byte* row) {
    auto& bins = parts[s].norm;
    const double norm = std::sqrt(squared_norm(row, dim));
    const double last = static_cast<double>(bins.size() - 1);
    const double bin = norm > 0.0 ? std::floor(std::log2(norm)) + 32 : 0.0;
    ++bins[std::isnan(norm) ? bins.size() - 1 : static_cast<size_t>(std::clamp(bin, 0.0, last))];
  };
  SharedStatus status;
  if (norms) {
    ParallelFor(kStripes, ThreadsFor(state_.size()), [&](size_t s) {
      const auto visit = [&](Stripe::Entry entry, const std::byte* row) {
        if (state_.spec.metadata) add_metadata(s, entry, visitor_.MetadataOf(entry));
        add_norm(s, row);
      };
      status.Set(visitor_.VisitStripe(&state_.stripes[s], 0, state_.layout.value_bytes, visit));
    });
  } else if (state_.spec.metadata) {
    visitor_.VisitMetadata(add_metadata);  // Reads no rows, and so no file of a tiered table.
  }
  const auto add = [](auto* to, const auto& from) {
    for (size_t i = 0; i < from.size(); ++i) (*to)[i] += from[i];
  };
  for (const RowHistograms& part : parts) {
    add(&histograms->age, part.age);
    add(&histograms->writes, part.writes);
    add(&histograms->norm, part.norm);
  }
  return status.Get();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status UpkeepOf<Keys>::Evict(const KeyBatch& keys, size_t* evicted) {
  TFRA_RETURN_IF_ERROR(RemoveKeys<Keys>(state_, keys, &Tally::evictions, evicted));
  state_.Counting([](Tally* tally) { ++tally->restrict_runs; });
  return Status::Ok();
}

template class UpkeepOf<IntKeys>;
template class UpkeepOf<StringKeys>;

}  // namespace tfra
