// What the two parts of writing to bounded tables share: renewing scores, and inserting.
#pragma once

#include <algorithm>

#include "table/table_write.h"

namespace tfra {

// The next of the equal keys that an Op takes as one.
template <typename Op>
uint32_t NextEqual(const Op& op, size_t i) {
  if constexpr (requires { op.next; }) {
    return op.next[i];
  } else {
    return KeyChains::kEnd;
  }
}

template <typename Op>
void AddOccurrences(const Scoring& scoring, const Op& op, size_t i,
                    Scoring::Occurrences* occurrences) {
  scoring.Add(i, occurrences);
  for (uint32_t k = NextEqual(op, i); k != KeyChains::kEnd; k = NextEqual(op, k)) {
    scoring.Add(k, occurrences);
  }
}

[[gnu::always_inline]] inline void PrefetchScores(const BucketArray& array, uint64_t bucket,
                                                  uint64_t buckets) {
  const uint64_t* first = array.scores() + bucket * kBucketEntries;
  Prefetch<true>(reinterpret_cast<const std::byte*>(first),
                 std::min(buckets, array.count - bucket) * kBucketEntries * sizeof(*first));
}

template <typename Keys>
struct TableOf<Keys>::BoundedCall {
  const KeyBits& bits;
  const Scoring scoring;
  PendingBlobs* const new_keys;
  const Report& report;
  // Chains of equal missing keys. Null while there is room for all: then it makes no difference
  // whether equal keys are inserted together or one by one.
  std::unique_ptr<uint32_t[]> next = nullptr;
  bool has_room = true;     // For all keys, when the call began to insert.
  bool by_stripes = false;  // WriteFull.

  uint32_t Next(size_t i) const { return next == nullptr ? KeyChains::kEnd : next[i]; }
};

// Keys that one thread has evicted.
template <typename Keys>
struct TableOf<Keys>::Evicted {
  ExportBatch rows;
  std::vector<SlowRow> slow;  // Those of them whose rows are in the file.
};

// One thread that inserts.
template <typename Keys>
template <typename Op>
struct TableOf<Keys>::Insertion {
  const BoundedCall& call;
  Op* const op;
  Tally* const tally;
  Evicted* const evicted;  // Filled if the call reports them.

  bool still_missing = false;  // The mutex was held since the keys were not found.

  // Found some keys ahead of their turn: the lowest candidate, and the array it is in.
  Candidate likely = {};
  const BucketArray* likely_in = nullptr;
  uint64_t lowest_since = kNoScore;  // Of the keys that were inserted since.
  uint64_t inserted = kNoScore;      // The score of the key whose turn it was, if it got in.
};

template <typename Keys>
template <typename Op>
[[gnu::always_inline]] inline void TableOf<Keys>::UpdateEntry(const BoundedCall& call,
                                                              const BucketArray& array, size_t i,
                                                              Stripe::Entry entry, std::byte* row,
                                                              Op* op, Tally* tally) const {
  if (!UpdateRow(&array, i, entry, row, op, tally)) return;
  Scoring::Occurrences occurrences;
  AddOccurrences(call.scoring, *op, i, &occurrences);
  uint64_t* score = array.ScoreOf(entry.bucket, entry.index);
  __atomic_store_n(score, call.scoring.Score(*score, occurrences), __ATOMIC_RELAXED);
}

}  // namespace tfra
