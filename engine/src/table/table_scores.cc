// Calls that only bounded tables serve, and variants of writing that say more.
#include <string>

#include "table/table_visit.h"
#include "table/table_write.h"

namespace tfra {

template <typename Keys>
Status TableOf<Keys>::AssignAndEvict(const KeyBatch& keys, const void* values, const void* slots,
                                     const RowMetadata* metadata, const Scores& scores,
                                     ExportBatch* evicted, bool* rejected) try {
  evicted->Clear();
  if (rejected != nullptr) std::fill_n(rejected, keys.size, false);
  return AssignRows(keys, values, slots, metadata, scores, true, NewKeys::kInsert,
                    {evicted, rejected});
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::AssignExisting(const KeyBatch& keys, const void* values, const void* slots,
                                     const RowMetadata* metadata, const Scores& scores) try {
  return AssignRows(keys, values, slots, metadata, scores, false, NewKeys::kInsert, {});
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::FindOrInsert(const KeyBatch& keys, const Defaults& defaults, void* values,
                                   bool* exists, const Scores& scores) try {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  KeyBits bits;
  const KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  const RowContext context = Context(NewKeys::kInsert);
  const bool row_per_key = defaults.kind == Defaults::kRowPerKey;
  if (!has_string_values()) {
    const auto* rows = defaults.kind == Defaults::kInitial
                           ? nullptr
                           : static_cast<const std::byte*>(defaults.rows);
    const size_t bytes = layout_.value_bytes;
    return Write(bits, groups,
                 FindOrInsertOp{context,
                                {initializer_, rows, row_per_key ? bytes : 0, bytes},
                                static_cast<std::byte*>(values),
                                exists},
                 scores);
  }

  const size_t dim = static_cast<size_t>(spec_.dim), n = keys.size * dim;
  std::vector<std::string_view> initial;
  const auto* rows = static_cast<const std::string_view*>(defaults.rows);
  if (defaults.kind == Defaults::kInitial) {
    initial.assign(initializer_.string_row().begin(), initializer_.string_row().end());
    rows = initial.data();
  }
  TFRA_RETURN_IF_ERROR(CheckStrings(rows, row_per_key ? n : dim, "value"));
  PendingBlobs blobs;
  blobs.Resize(n);
  const auto default_of = [&](size_t place) { return rows[row_per_key ? place : place % dim]; };
  for (size_t place = 0; place < n; ++place) {
    const std::string_view text = default_of(place);
    if (!text.empty()) TFRA_RETURN_IF_ERROR(blobs.Make(place, text, "value"));
  }
  std::vector<Blob*> found(n);
  const std::unique_ptr<bool[]> was_there(new bool[keys.size]());
  // Strings that are found stay until they are copied, also if they leave the table meanwhile.
  ReadGuard guard;
  TFRA_RETURN_IF_ERROR(
      Write(bits, groups,
            FindOrInsertStringsOp{context, &blobs, found.data(), was_there.get(), dim}, scores));
  for (size_t place = 0; place < n; ++place) {
    static_cast<std::string*>(values)[place] =
        was_there[place / dim] ? ViewOf(found[place]) : default_of(place);
  }
  if (exists != nullptr) std::copy_n(was_there.get(), keys.size, exists);
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::LookupScores(const KeyBatch& keys, uint64_t* scores, bool* exists) try {
  TFRA_RETURN_IF_ERROR(CheckBounded("looking up scores"));
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  const KeyBits bits(keys);
  ForEachPart(keys.size, [&](size_t begin, size_t end) {
    ReadGuard guard;
    for (size_t i = begin; i < end; ++i) {
      const bool found = ReadEntry(
          bits[i], bits.bytes(i), [&](const BucketArray& array, Stripe::Entry entry, uint32_t) {
            const uint64_t* score = array.ScoreOf(entry.bucket, entry.index);
            scores[i] = __atomic_load_n(score, __ATOMIC_RELAXED);
          });
      if (!found) scores[i] = 0;
      if (exists != nullptr) exists[i] = found;
    }
  });
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::AssignScores(const KeyBatch& keys, const uint64_t* scores) try {
  TFRA_RETURN_IF_ERROR(CheckBounded("assigning scores"));
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  bounds_->AdvancePast(scores, keys.size);
  KeyBits bits;
  const KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  ParallelFor(groups.groups(), groups.groups(), [&](size_t group) {
    Tally tally;
    groups.ForEachRun(group, kKeysPerLock, [&](const uint32_t* order, size_t count) {
      StripeLocks locks(stripes_.get(), groups.stripes(group));
      for (size_t k = 0; k < count; ++k) {
        const size_t i = order[k];
        Stripe& stripe = StripeFor(Keys::Hash(bits[i]));
        const auto entry = FindEntry(stripe, bits, i);
        if (entry) stripe.SetScore(entry, std::min(scores[i], kMaxScore));
        tally.ignored += !entry;
      }
    });
    Count(std::move(tally));
  });
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
template <typename Visit>
Status TableOf<Keys>::VisitScores(Visit&& visit) {
  TFRA_RETURN_IF_ERROR(CheckBounded("selecting by score"));
  ParallelFor(kStripes, ThreadsFor(size()), [&](size_t s) {
    std::lock_guard lock(stripes_[s].mutex());
    const BucketArray* array = stripes_[s].array();
    for (uint64_t place = 0; place < array->count * kBucketEntries; ++place) {
      const uint64_t score = array->scores()[place];
      if (score == kNoScore) continue;
      Bucket* bucket = array->buckets + place / kBucketEntries;
      visit(s, Stripe::Entry{bucket, static_cast<uint32_t>(place % kBucketEntries)}, score);
    }
  });
  return Status::Ok();
}

template <typename Keys>
Status TableOf<Keys>::CountIfScore(const ScorePredicate& predicate, uint64_t* count) try {
  std::vector<uint64_t> counts(kStripes);
  TFRA_RETURN_IF_ERROR(
      VisitScores([&](size_t s, Stripe::Entry, uint64_t score) { counts[s] += predicate(score); }));
  *count = 0;
  for (uint64_t each : counts) *count += each;
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::RemoveIfScore(const ScorePredicate& predicate, uint64_t* removed) try {
  TFRA_RETURN_IF_ERROR(CheckBounded("selecting by score"));
  *removed = RemoveEntriesOf(&Tally::removals, [&](const BucketArray& array, uint64_t b) {
    const Bucket* bucket = array.buckets + b;
    uint32_t going = 0;
    ForEachEntry(bucket->used(), [&](uint32_t i) {
      going |= static_cast<uint32_t>(predicate(*array.ScoreOf(bucket, i))) << i;
    });
    return going;
  });
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::ExportIfScore(const ScorePredicate& predicate, ExportBatch* batch) try {
  *batch = ExportBatch();
  std::vector<ExportBatch> selected(kStripes);
  std::vector<std::vector<SlowRow>> slow(kStripes);
  ReadGuard guard;  // Until rows in the file have been read.
  TFRA_RETURN_IF_ERROR(VisitScores([&](size_t s, Stripe::Entry entry, uint64_t score) {
    if (!predicate(score)) return;
    AppendEntry(entry.key_bits(), entry.row(), &selected[s], &slow[s]);
    AppendColumns(*stripes_[s].array(), entry.bucket, entry.index, &selected[s]);
  }));
  for (uint32_t s = 0; s < kStripes; ++s) {
    TFRA_RETURN_IF_ERROR(FillRows(&slow[s], &selected[s]));
    AppendBatch(&selected[s], batch);
  }
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

#define TFRA_INSTANTIATE(Keys)                                                                   \
  template Status TableOf<Keys>::AssignAndEvict(const KeyBatch&, const void*, const void*,       \
                                                const RowMetadata*, const Scores&, ExportBatch*, \
                                                bool*);                                          \
  template Status TableOf<Keys>::AssignExisting(const KeyBatch&, const void*, const void*,       \
                                                const RowMetadata*, const Scores&);              \
  template Status TableOf<Keys>::FindOrInsert(const KeyBatch&, const Defaults&, void*, bool*,    \
                                              const Scores&);                                    \
  template Status TableOf<Keys>::LookupScores(const KeyBatch&, uint64_t*, bool*);                \
  template Status TableOf<Keys>::AssignScores(const KeyBatch&, const uint64_t*);                 \
  template Status TableOf<Keys>::CountIfScore(const ScorePredicate&, uint64_t*);                 \
  template Status TableOf<Keys>::RemoveIfScore(const ScorePredicate&, uint64_t*);                \
  template Status TableOf<Keys>::ExportIfScore(const ScorePredicate&, ExportBatch*);
TFRA_INSTANTIATE(IntKeys)
TFRA_INSTANTIATE(StringKeys)

}  // namespace tfra
