#include "tiers/row_fetcher.h"

#include <algorithm>

#include "tiers/row_mover.h"

namespace tfra {

template <typename Keys>
Status RowFetcher<Keys>::Fetch(const Inserts& inserts) const {
  std::vector<Tally> tallies(groups_.groups());
  SharedStatus status;
  ParallelFor(groups_.groups(), groups_.groups(),
              [&](size_t group) { status.Set(FetchGroup(group, inserts, &tallies[group])); });
  for (Tally& tally : tallies) state_.Count(std::move(tally));
  return status.Get();
}

template <typename Keys>
Status RowFetcher<Keys>::FetchGroup(size_t group, const Inserts& inserts, Tally* tally) const {
  ReadGuard guard;
  std::vector<SlowRow> slow;
  NeededRows needed;
  const size_t found = SurveyGroup(group, inserts, &slow, &needed);
  bool demoted = false;
  for (uint32_t s = 0; s < kStripes; ++s) {
    if (needed[s] == 0) continue;
    state_.tiers->stripe(s).needed.store(needed[s], std::memory_order_relaxed);
    TFRA_RETURN_IF_ERROR(RowMover(state_).MakeFastRoom(s, needed[s], true, &demoted));
  }
  tally->slow_hits = slow.size();
  tally->fast_hits = found - slow.size();
  // Making room may have moved rows of this batch to the file: look again.
  if (demoted) SurveyGroup(group, inserts, &slow, &needed);
  return RowMover(state_).FetchSlow(bits_, &slow);
}

template <typename Keys>
size_t RowFetcher<Keys>::SurveyGroup(size_t group, const Inserts& inserts,
                                     std::vector<SlowRow>* slow, NeededRows* needed) const {
  const Finder<Keys> finder{state_};
  const KeyBits& bits = bits_;
  size_t keys = 0, missing = 0;
  slow->clear();
  std::vector<uint32_t> coming;
  const auto need = [&](size_t i) { coming.push_back(static_cast<uint32_t>(i)); };
  const auto late = [&](size_t i) {
    uint32_t record = kInMemory;
    const bool found = finder.ReadRow(bits[i], bits.bytes(i), &record, [](const std::byte*) {});
    if (found && record == kInMemory) return;
    missing += !found;
    if (found || inserts(i)) need(i);
    if (found) slow->push_back({static_cast<uint32_t>(i), record});
  };
  const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
    if (probe.row == nullptr) {
      ++missing;
      if (inserts(i)) need(i);
    } else if (!finder.IsHit(probe, bits.bytes(i)) || !StillValid(probe.bucket, probe.state)) {
      late(i);
    }
    return true;
  };
  groups_.ForEachRun(group, SIZE_MAX, [&](const uint32_t* order, size_t count) {
    keys += count;
    finder.template Probes<Access::kRead>(
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
void RowFetcher<Keys>::Trim() const {
  ParallelFor(groups_.groups(), groups_.groups(), [&](size_t group) {
    for (StripeSet rest = groups_.stripes(group); rest != 0; rest &= rest - 1) {
      const auto s = static_cast<uint32_t>(__builtin_ctzll(rest));
      // Make as much room as this batch needed. A failure of the file is ignored, because the batch
      // is stored already: the next call will report it.
      const uint64_t needed = state_.tiers->stripe(s).needed.load(std::memory_order_relaxed);
      (void)CatchBadAlloc([&] {
        return RowMover(state_).MakeFastRoom(s, std::min(needed, state_.tiers->share() / 4), false);
      }).ok();
    }
  });
}

template class RowFetcher<IntKeys>;
template class RowFetcher<StringKeys>;

}  // namespace tfra
