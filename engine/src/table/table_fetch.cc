// What writing calls do first in tiered tables: the rows of the batch come to memory.
#include "table/table_find.h"

namespace tfra {

template <typename Keys>
Status TableOf<Keys>::FetchRows(const KeyBits& bits, const KeyGroups& groups,
                                const Inserts& inserts) const {
  std::vector<Tally> tallies(groups.groups());
  SharedStatus status;
  ParallelFor(groups.groups(), groups.groups(), [&](size_t group) {
    status.Set(FetchGroup(bits, groups, group, inserts, &tallies[group]));
  });
  for (Tally& tally : tallies) Count(std::move(tally));
  return status.Get();
}

template <typename Keys>
Status TableOf<Keys>::FetchGroup(const KeyBits& bits, const KeyGroups& groups, size_t group,
                                 const Inserts& inserts, Tally* tally) const {
  ReadGuard guard;
  std::vector<SlowRow> slow;
  NeededRows needed;
  const size_t found = SurveyGroup(bits, groups, group, inserts, &slow, &needed);
  bool demoted = false;
  for (uint32_t s = 0; s < kStripes; ++s) {
    if (needed[s] == 0) continue;
    tiers_->stripe(s).needed.store(needed[s], std::memory_order_relaxed);
    TFRA_RETURN_IF_ERROR(MakeFastRoom(s, needed[s], true, &demoted));
  }
  tally->slow_hits = slow.size();
  tally->fast_hits = found - slow.size();
  // Rows of this very batch may have had to leave.
  if (demoted) SurveyGroup(bits, groups, group, inserts, &slow, &needed);
  return FetchSlow(bits, &slow);
}

template <typename Keys>
size_t TableOf<Keys>::SurveyGroup(const KeyBits& bits, const KeyGroups& groups, size_t group,
                                  const Inserts& inserts, std::vector<SlowRow>* slow,
                                  NeededRows* needed) const {
  size_t keys = 0, missing = 0;
  slow->clear();
  std::vector<uint32_t> coming;
  const auto need = [&](size_t i) { coming.push_back(static_cast<uint32_t>(i)); };
  const auto late = [&](size_t i) {
    uint32_t record = kInMemory;
    const bool found = ReadRow(bits[i], bits.bytes(i), &record, [](const std::byte*) {});
    if (found && record == kInMemory) return;
    missing += !found;
    if (found || inserts(i)) need(i);
    if (found) slow->push_back({static_cast<uint32_t>(i), record});
  };
  const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
    if (probe.row == nullptr) {
      ++missing;
      if (inserts(i)) need(i);
    } else if (!IsHit(probe, bits.bytes(i)) || !StillValid(probe.bucket, probe.state)) {
      late(i);
    }
    return true;
  };
  groups.ForEachRun(group, SIZE_MAX, [&](const uint32_t* order, size_t count) {
    keys += count;
    Probes<Access::kRead>(
        bits.data(), count, 0, [=](size_t k) TFRA_INLINE { return order[k]; }, [](size_t) {}, visit,
        late);
  });
  needed->fill(0);
  if (coming.empty()) return keys - missing;
  // Each key needs one row, however often the batch has it.
  DistinctKeys distinct(bits, coming.size());
  for (const uint32_t i : coming) (*needed)[StripeOf(Keys::Hash(bits[i]))] += distinct.Add(i);
  return keys - missing;
}

template <typename Keys>
void TableOf<Keys>::TrimRows(const KeyGroups& groups) const {
  ParallelFor(groups.groups(), groups.groups(), [&](size_t group) {
    for (StripeSet rest = groups.stripes(group); rest != 0; rest &= rest - 1) {
      const auto s = static_cast<uint32_t>(__builtin_ctzll(rest));
      // As much as this batch needed, so that the next one finds it. The batch is stored: if the
      // file cannot take more, the next call says so.
      const uint64_t needed = tiers_->stripe(s).needed.load(std::memory_order_relaxed);
      (void)CatchBadAlloc([&] {
        return MakeFastRoom(s, std::min(needed, tiers_->share() / 4), false);
      }).ok();
    }
  });
}

#define TFRA_INSTANTIATE(Keys)                                   \
  template void TableOf<Keys>::TrimRows(const KeyGroups&) const; \
  template Status TableOf<Keys>::FetchRows(const KeyBits&, const KeyGroups&, const Inserts&) const;
TFRA_INSTANTIATE(IntKeys)
TFRA_INSTANTIATE(StringKeys)

}  // namespace tfra
