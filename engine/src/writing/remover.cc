#include "writing/remover.h"

#include <atomic>

#include "keys/key_groups.h"
#include "state/finder.h"
#include "state/row_writer.h"

namespace tfra {

template <typename Keys>
Status RemoveKeys(const TableState& state, const KeyBatch& keys, uint64_t Tally::* counter,
                  size_t* removed) try {
  const Finder<Keys> finder{state};
  TFRA_RETURN_IF_ERROR(state.CheckKeys(keys));
  KeyBits bits;
  const KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  std::atomic<size_t> total{0};
  ParallelFor(groups.groups(), groups.groups(), [&](size_t group) {
    state.Counting([&](Tally* tally) {
      const auto remove = [&](size_t i) {
        Stripe& stripe = state.StripeFor(Keys::Hash(bits[i]));
        const auto entry = finder.FindEntry(stripe, bits, i);
        if (!entry) return;
        state.RemoveEntry(&stripe, entry, tally);
        ++(tally->*counter);
      };
      const auto visit = [&](size_t i, const Probe& probe) {
        if (probe.row != nullptr) remove(i);
        return true;
      };
      groups.ForEachRun(group, kKeysPerLock, [&](const uint32_t* order, size_t count) {
        ReadGuard guard;
        StripeLocks locks(state.stripes.get(), groups.stripes(group));
        finder.template Probes<Access::kEntry>(
            bits.data(), count, 0, [=](size_t j) TFRA_INLINE { return order[j]; }, [](size_t) {},
            visit, remove);
      });
      total += tally->*counter;
    });
  });
  *removed = total;
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template Status RemoveKeys<IntKeys>(const TableState&, const KeyBatch&, uint64_t Tally::*, size_t*);
template Status RemoveKeys<StringKeys>(const TableState&, const KeyBatch&, uint64_t Tally::*,
                                       size_t*);

}  // namespace tfra
