// Writes the keys of one call as an Op (rows/row_ops.h) says: makes room, then updates the keys
// that are in the table and inserts the others.
#pragma once

#include "keys/key_groups.h"
#include "keys/keys.h"
#include "keys/pending_blobs.h"
#include "state/finder.h"
#include "state/row_writer.h"
#include "writing/inserter.h"

namespace tfra {

template <typename Keys, typename Op>
class Writer {
 public:
  // The keys, groups and the Op must outlive the writer.
  Writer(const TableState& state, const KeyBits& bits, const KeyGroups& groups, const Op& prototype)
      : state_(state), finder_{state}, bits_(bits), groups_(groups), prototype_(prototype) {}

  // Call this once.
  Status Write(const Scores& scores, const WriteReport& report);

 private:
  // Writes to a table without a bound, after room was made.
  Status WriteUnbounded();
  // Writes some keys of a group. REQUIRES: the mutexes of their stripes.
  Status WriteKeys(const uint32_t* order, size_t count, Op* op, Inserter<Keys, Op>* inserter,
                   Tally* tally) const;

  const TableState& state_;
  const Finder<Keys> finder_;
  const KeyBits& bits_;
  const KeyGroups& groups_;
  const Op& prototype_;    // Each thread has a copy.
  PendingBlobs new_keys_;  // The bytes of new string keys.
};

template <typename Keys, typename Op>
Status Write(const TableState& state, const KeyBits& bits, const KeyGroups& groups,
             const Op& prototype, const Scores& scores = {}, const WriteReport& report = {}) {
  return Writer<Keys, Op>(state, bits, groups, prototype).Write(scores, report);
}

}  // namespace tfra
