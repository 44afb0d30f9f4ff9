// The first step of writing calls to tiered tables: the rows of the batch move to memory, and room
// is made there for its new keys. So if the file fails, the call has changed nothing yet.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "keys/key_groups.h"
#include "keys/keys.h"
#include "state/finder.h"

namespace tfra {

template <typename Keys>
class RowFetcher {
 public:
  // The keys and groups must outlive the fetcher.
  RowFetcher(const TableState& state, const KeyBits& bits, const KeyGroups& groups)
      : state_(state), bits_(bits), groups_(groups) {}

  // Moves the rows of the batch to memory. inserts(i): whether key i is inserted if it is missing.
  using Inserts = std::function<bool(size_t i)>;
  Status Fetch(const Inserts& inserts) const;
  // Makes room for the next batch, after this one was written.
  void Trim() const;

 private:
  // The number of rows that a batch needs memory for, by stripe.
  using NeededRows = std::array<uint64_t, kStripes>;
  // Fetches the rows of one group: makes room in memory for its rows and new keys, then moves the
  // rows. Counts in the tally how many keys had their rows in memory, and how many in the file.
  Status FetchGroup(size_t group, const Inserts& inserts, Tally* tally) const;
  // Finds the keys of a group whose rows are in the file, and the rows that the group needs memory
  // for. Returns how many of its keys are in the table.
  size_t SurveyGroup(size_t group, const Inserts& inserts, std::vector<SlowRow>* slow,
                     NeededRows* needed) const;

  const TableState& state_;
  const KeyBits& bits_;
  const KeyGroups& groups_;
};

}  // namespace tfra
