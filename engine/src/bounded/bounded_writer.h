// Writes to a bounded table: keys that are in the table get new scores, the others are inserted.
#pragma once

#include <vector>

#include "bounded/bounded_call.h"
#include "bounded/bounded_inserter.h"
#include "keys/key_groups.h"
#include "state/finder.h"

namespace tfra {

template <typename Keys, typename Op>
class BoundedWriter {
 public:
  // All arguments must outlive the writer.
  BoundedWriter(const TableState& state, const KeyBits& bits, const KeyGroups& groups,
                const Op& prototype, PendingBlobs* new_keys, const WriteReport& report)
      : state_(state),
        bits_(bits),
        groups_(groups),
        prototype_(prototype),
        new_keys_(new_keys),
        report_(report) {}

  // Call this once, after InsertRoom::Make.
  Status Write(const Scores& scores);

 private:
  // Writes many keys, of which most are new, to a full table. Goes stripe by stripe, since each
  // stripe evicts its own keys: first updates the keys of the stripe, then inserts the others.
  Status WriteFull(BoundedCall* call);
  // Inserts several lists of missing keys.
  Status InsertMissing(BoundedCall* call, const std::vector<std::vector<uint32_t>>& missing);
  // Inserts missing keys of these stripes. Equal keys are inserted together.
  Status InsertList(const BoundedCall& call, std::vector<uint32_t>* keys, StripeSet stripes,
                    BoundedInserter<Keys, Op>* inserter) const;
  // Adds the evicted rows to the report, if the call wants one.
  Status ReportEvicted(std::vector<Evicted>* evicted) const;
  // Writes to the keys that are in the table, and adds the positions of the others to `missing`.
  // REQUIRES: the mutexes of the keys' stripes.
  Status UpdateKeys(const BoundedCall& call, const uint32_t* order, size_t count, Op* op,
                    Tally* tally, std::vector<uint32_t>* missing) const;

  const TableState& state_;
  const KeyBits& bits_;
  const KeyGroups& groups_;
  const Op& prototype_;  // Each thread has a copy.
  PendingBlobs* const new_keys_;
  const WriteReport& report_;
};

}  // namespace tfra
