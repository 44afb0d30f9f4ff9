// What the threads of one call that writes to a bounded table share.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "keys/key_set.h"
#include "keys/pending_blobs.h"
#include "scores/scores.h"
#include "state/row_writer.h"
#include "state/table_state.h"

namespace tfra {

struct BoundedCall {
  const KeyBits& bits;
  const Scoring scoring;
  PendingBlobs* const new_keys;  // The bytes of new string keys.
  const WriteReport& report;
  // Chains of equal missing keys. Null while there is room for all keys: then it makes no
  // difference whether equal keys are inserted together or one by one.
  std::unique_ptr<uint32_t[]> next = nullptr;
  bool has_room = true;  // For all keys, when the call began to insert.
  // Set by WriteFull: most keys are new, so updates prefetch no data.
  bool by_stripes = false;

  uint32_t Next(size_t i) const { return next == nullptr ? KeyChains::kEnd : next[i]; }
};

// The keys that one thread has evicted.
struct Evicted {
  ExportBatch rows;
  std::vector<SlowRow> slow;  // The rows among them that are in the file.
};

// The next of the equal keys that an Op writes as one key.
template <typename Op>
uint32_t NextEqual(const Op& op, size_t i) {
  if constexpr (requires { op.next; }) {
    return op.next[i];
  } else {
    return KeyChains::kEnd;
  }
}

// Adds key i, and the equal keys that the Op writes together with it, to the occurrences of a key.
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

// Like UpdateRow; also renews the score. REQUIRES: the stripe's mutex.
template <typename Op>
[[gnu::always_inline]] inline void UpdateEntry(const TableState& state, const BoundedCall& call,
                                               const BucketArray& array, size_t i,
                                               Stripe::Entry entry, std::byte* row, Op* op,
                                               Tally* tally) {
  if (!UpdateRow(state, &array, i, entry, row, op, tally)) return;
  Scoring::Occurrences occurrences;
  AddOccurrences(call.scoring, *op, i, &occurrences);
  uint64_t* score = array.ScoreOf(entry.bucket, entry.index);
  __atomic_store_n(score, call.scoring.Score(*score, occurrences), __ATOMIC_RELAXED);
}

}  // namespace tfra
