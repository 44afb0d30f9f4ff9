// What writing calls do first in tiered tables: the rows of the batch move to memory, and room is
// made there for its new keys. So a call that the file makes fail has changed nothing yet.
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

  // inserts(i): whether key i, if it is missing, is to be inserted.
  using Inserts = std::function<bool(size_t i)>;
  Status Fetch(const Inserts& inserts) const;
  // After the batch was written: makes room for the next one.
  void Trim() const;

 private:
  // The number of rows that a batch needs memory for, by stripe.
  using NeededRows = std::array<uint64_t, kStripes>;
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
