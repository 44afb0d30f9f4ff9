// What writing calls do first in tiered tables: the rows of the batch come to memory.
#include "table_find.h"

namespace tfra {

template <typename Keys>
Status TableOf<Keys>::FetchRows(const Words& words, const KeyParts& parts,
                                const Inserts& inserts) const {
  std::vector<Tally> tallies(parts.parts());
  SharedStatus status;
  ParallelFor(parts.parts(), parts.parts(), [&](size_t part) {
    status.Set(FetchPart(words, parts, part, inserts, &tallies[part]));
  });
  for (Tally& tally : tallies) Count(std::move(tally));
  return status.Get();
}

template <typename Keys>
Status TableOf<Keys>::FetchPart(const Words& words, const KeyParts& parts, size_t part,
                                const Inserts& inserts, Tally* tally) const {
  EpochGuard guard;
  std::vector<SlowRow> slow;
  NeededRows needed;
  const size_t found = SurveyPart(words, parts, part, inserts, &slow, &needed);
  bool demoted = false;
  for (uint32_t s = 0; s < kShards; ++s) {
    if (needed[s] == 0) continue;
    tiers_->shard(s).needed.store(needed[s], std::memory_order_relaxed);
    TFRA_RETURN_IF_ERROR(MakeFastRoom(s, needed[s], true, &demoted));
  }
  tally->slow_hits = slow.size();
  tally->fast_hits = found - slow.size();
  // Rows of this very batch may have had to leave.
  if (demoted) SurveyPart(words, parts, part, inserts, &slow, &needed);
  return FetchSlow(words, &slow);
}

template <typename Keys>
size_t TableOf<Keys>::SurveyPart(const Words& words, const KeyParts& parts, size_t part,
                                 const Inserts& inserts, std::vector<SlowRow>* slow,
                                 NeededRows* needed) const {
  size_t keys = 0, missing = 0;
  slow->clear();
  std::vector<uint32_t> coming;
  const auto need = [&](size_t i) { coming.push_back(static_cast<uint32_t>(i)); };
  const auto late = [&](size_t i) {
    uint32_t slot = kInMemory;
    const bool found = ReadRow(words[i], words.bytes(i), &slot, [](const std::byte*) {});
    if (found && slot == kInMemory) return;
    missing += !found;
    if (found || inserts(i)) need(i);
    if (found) slow->push_back({static_cast<uint32_t>(i), slot});
  };
  const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
    if (probe.row == nullptr) {
      ++missing;
      if (inserts(i)) need(i);
    } else if (!IsHit(probe, words.bytes(i)) || !StillValid(probe.bucket, probe.state)) {
      late(i);
    }
    return true;
  };
  parts.ForEachRun(part, SIZE_MAX, [&](const uint32_t* order, size_t count) {
    keys += count;
    Probes<Access::kRead>(
        words.data(), count, 0, [=](size_t k) TFRA_INLINE { return order[k]; }, [](size_t) {},
        visit, late);
  });
  needed->fill(0);
  if (coming.empty()) return keys - missing;
  // Each key needs one row, however often the batch has it.
  DistinctKeys distinct(words, coming.size());
  for (const uint32_t i : coming) (*needed)[ShardOf(Keys::Hash(words[i]))] += distinct.Add(i);
  return keys - missing;
}

template <typename Keys>
void TableOf<Keys>::TrimRows(const KeyParts& parts) const {
  ParallelFor(parts.parts(), parts.parts(), [&](size_t part) {
    for (ShardSet rest = parts.shards(part); rest != 0; rest &= rest - 1) {
      const auto s = static_cast<uint32_t>(__builtin_ctzll(rest));
      // As much as this batch needed, so that the next one finds it. The batch is stored: if the
      // file cannot take more, the next call says so.
      const uint64_t needed = tiers_->shard(s).needed.load(std::memory_order_relaxed);
      (void)CatchBadAlloc([&] {
        return MakeFastRoom(s, std::min(needed, tiers_->share() / 4), false);
      }).ok();
    }
  });
}

#define TFRA_INSTANTIATE(Keys)                                  \
  template void TableOf<Keys>::TrimRows(const KeyParts&) const; \
  template Status TableOf<Keys>::FetchRows(const Words&, const KeyParts&, const Inserts&) const;
TFRA_INSTANTIATE(IntKeys)
TFRA_INSTANTIATE(StringKeys)

}  // namespace tfra
