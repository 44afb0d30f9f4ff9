// Inserts missing keys into a bounded table. If the table is full, each of them evicts a key with a
// lower or equal score, or is rejected.
#pragma once

#include "bounded/bounded_call.h"
#include "state/finder.h"

namespace tfra {

// One thread of a call. REQUIRES: the mutexes of the stripes of all keys that are passed; in an
// exact table, the mutexes of all stripes.
template <typename Keys, typename Op>
class BoundedInserter {
 public:
  // evicted: filled if the call reports evicted rows. still_missing: the thread has held the
  // mutexes since it did not find the keys, so they need not be searched again.
  BoundedInserter(const TableState& state, const BoundedCall& call, Op* op, Tally* tally,
                  Evicted* evicted, bool still_missing = false)
      : state_(state),
        finder_{state},
        call_(call),
        op_(op),
        tally_(tally),
        evicted_(evicted),
        still_missing_(still_missing) {}

  // Inserts those of the keys that are not in the table, each with the keys chained to it.
  Status Insert(const uint32_t* keys, size_t count);

 private:
  // Inserts or rejects key i and the keys chained to it.
  Status InsertChain(uint32_t i);
  // Inserts key i with its score, and evicts the lowest candidate if the table is full. entry: set,
  // unless all candidates have higher scores: then the key is rejected, which is no error. seen:
  // how often admission has seen the key, which becomes the count of writes in its metadata.
  Status InsertScored(size_t i, uint64_t score, uint32_t seen, Stripe::Entry* entry);
  // The key that a new key of this hash would evict: the one with the lowest score near its home
  // bucket or, in an exact table, in the whole table.
  Candidate LowestCandidate(uint64_t hash) const;
  // Removes an entry of a full table. The caller gives its row to another key, or drops the row.
  uint32_t Evict(const Candidate& candidate);

  const TableState& state_;
  const Finder<Keys> finder_;
  const BoundedCall& call_;
  Op* const op_;
  Tally* const tally_;
  Evicted* const evicted_;
  const bool still_missing_;

  // The lowest candidate of the present key, which was found some keys earlier, and its array.
  Candidate likely_ = {};
  const BucketArray* likely_in_ = nullptr;
  uint64_t lowest_since_ = kNoScore;  // The lowest score that was inserted since.
  uint64_t inserted_ = kNoScore;      // The score of the present key, if it was inserted.
};

}  // namespace tfra
