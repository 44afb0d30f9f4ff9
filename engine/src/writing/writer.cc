#include "writing/writer.h"

#include <algorithm>

#include "bounded/bounded_writer.h"
#include "tiers/row_fetcher.h"
#include "writing/insert_room.h"
#include "writing/streamer.h"

namespace tfra {
namespace {

// If many keys are new, this many keys are searched and then inserted at a time, while the buckets
// that the search has read are still in the caches. How many of them were new also decides how the
// next keys are written.
constexpr size_t kNewKeysAtOnce = 512;

}  // namespace

template <typename Keys, typename Op>
Status Writer<Keys, Op>::Write(const Scores& scores, const WriteReport& report) {
  TFRA_RETURN_IF_ERROR(state_.CheckScores(scores));
  const RowFetcher<Keys> fetcher(state_, bits_, groups_);
  if (state_.tiers != nullptr) {
    // Admission rejects most new keys, so space for them is reserved on demand.
    const NewKeys policy = prototype_.context.new_keys;
    const bool some_enter =
        policy == NewKeys::kInsert || (policy == NewKeys::kAdmit && state_.admission == nullptr);
    TFRA_RETURN_IF_ERROR(
        fetcher.Fetch([&](size_t i) { return some_enter && prototype_.Inserts(i); }));
  }
  TFRA_RETURN_IF_ERROR(InsertRoom<Keys>(state_, bits_, groups_).Make(prototype_, &new_keys_));
  const Status status =
      state_.bounds == nullptr
          ? WriteUnbounded()
          : BoundedWriter<Keys, Op>(state_, bits_, groups_, prototype_, &new_keys_, report)
                .Write(scores);
  if (state_.tiers != nullptr) fetcher.Trim();
  return status;
}

template <typename Keys, typename Op>
Status Writer<Keys, Op>::WriteUnbounded() {
  SharedStatus result;
  ParallelFor(groups_.groups(), groups_.groups(), [&](size_t group) {
    Status status;
    std::unique_ptr<DistinctKeys> asked;
    if (Admits(state_, prototype_)) asked = std::make_unique<DistinctKeys>(bits_, bits_.size());
    size_t at_once = kNewKeysAtOnce;
    bool nearly_all_new = false;
    RunOp(state_, prototype_, bits_.size(), [&](Op* op, Tally* tally) {
      Inserter<Keys, Op> inserter(state_, bits_, op, &new_keys_, asked.get(), tally);
      groups_.ForEachRun(group, kKeysPerLock, [&](const uint32_t* order, size_t count) {
        if (!status.ok()) return;
        ReadGuard guard;
        StripeLocks locks(state_.stripes.get(), groups_.stripes(group));
        for (StripeSet rest = groups_.stripes(group); rest != 0; rest &= rest - 1) {
          state_.stripes[__builtin_ctzll(rest)].Tidy();
        }
        for (size_t k = 0; k < count && status.ok();) {
          const size_t keys = std::min(at_once, count - k);
          const uint64_t before = tally->inserts;
          // Inserting searches each key too. So if nearly all keys are new, do not search them
          // first.
          status = nearly_all_new ? inserter.Insert(order + k, keys)
                                  : WriteKeys(order + k, keys, op, &inserter, tally);
          const uint64_t inserted = tally->inserts - before;
          at_once = inserted > keys / 8 ? kNewKeysAtOnce : kKeysPerLock;
          nearly_all_new = 8 * inserted > 7 * keys;
          k += keys;
        }
      });
    });
    result.Set(std::move(status));
  });
  return result.Get();
}

template <typename Keys, typename Op>
Status Writer<Keys, Op>::WriteKeys(const uint32_t* order, size_t count, Op* op,
                                   Inserter<Keys, Op>* inserter, Tally* tally) const {
  const TableState& state = state_;
  const Finder<Keys> finder = finder_;
  const KeyBits& bits = bits_;
  // Missing keys are inserted at the end. This keeps the loop that finds keys short, so that the
  // CPU works on many keys at a time.
  uint32_t missing[kKeysPerLock];
  size_t missing_count = 0;
  const auto late = [&](size_t i)
                        TFRA_INLINE { missing[missing_count++] = static_cast<uint32_t>(i); };
  // Copies to which nothing else refers, so that the loop can keep them in registers.
  std::conditional_t<std::is_trivially_copyable_v<Op>, Op, Op&> hot_op = *op;
  Tally hot_tally;
  const bool metadata = hot_op.context.metadata;
  const auto fetch = [&](size_t i) TFRA_INLINE {
    hot_op.Fetch(i);
    if (!metadata) return;
    const uint64_t hash = Keys::Hash(bits[i]);
    FetchMetadata(*state.StripeFor(hash).array(), hash);
  };
  const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
    if (probe.row == nullptr) {
      late(i);
    } else if (finder.HasKey(probe.row, bits.bytes(i))) {
      // The entry is needed only for its metadata.
      const uint32_t mask = metadata ? probe.bucket->Match(bits[i], probe.state) : 1;
      const Stripe::Entry entry{probe.bucket, static_cast<uint32_t>(__builtin_ctz(mask))};
      UpdateRow(state, metadata ? finder.ArrayFor(bits[i]) : nullptr, i, entry, probe.row, &hot_op,
                &hot_tally);
    } else {
      return false;
    }
    return true;
  };
  // Keys that are not streamed, in batch order.
  uint32_t others[kReplacesRows<Keys, Op> ? kKeysPerLock : 1];
  if constexpr (kReplacesRows<Keys, Op>) {
    // Do not stream if many keys are new: they would be searched twice.
    if (count > kNewKeysAtOnce && StreamsRows(state, hot_op)) {
      size_t left;
      const size_t done = StreamKeys<Keys>(state, bits, order, count, hot_op, others, &left);
      hot_tally.updates += done - left;
      std::copy(order + done, order + count, others + left);
      count = left + count - done;
      order = others;
    }
  }
  finder.template Probes<Op::kChangesRows ? Access::kRow : Access::kEntry>(
      bits.data(), count, hot_op.row_bytes(), [=](size_t k) TFRA_INLINE { return order[k]; }, fetch,
      visit, late);
  tally->updates += hot_tally.updates;
  tally->exists_mismatch += hot_tally.exists_mismatch;
  // Restore batch order, which decides which keys are admitted.
  if (state.admission != nullptr) std::sort(missing, missing + missing_count);
  return inserter->Insert(missing, missing_count);
}

#define TFRA_INSTANTIATE(Keys, Op) template class Writer<Keys, Op>;
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, IntKeys)
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, StringKeys)

}  // namespace tfra
