// How writing calls write: room is made first, then found rows are changed and missing keys
// inserted.
#include "table/table_write.h"

#include <algorithm>
#include <array>

#include "table/table_insert.h"
#include "table/table_stream.h"

namespace tfra {
namespace {

// Where many keys are new they are looked for, and inserted, so many at a time: what the search has
// fetched, buckets and the rows that the call brings, is then still near. And so many keys decide
// how the next ones are written.
constexpr size_t kNewKeysAtOnce = 512;

}  // namespace

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::PrepareInserts(const KeyBits& bits, const KeyGroups& groups, const Op& op,
                                     PendingBlobs* new_keys) {
  const uint64_t rows = bounds_ == nullptr || tiers_ != nullptr
                            ? bits.size()
                            : std::min<uint64_t>(bits.size(), bounds_->max_capacity() - size());
  const uint64_t spare = kStripes * uint64_t{Stripe::RowBlock(arena_.rows() + rows)};
  TFRA_RETURN_IF_ERROR(arena_.Reserve(rows + spare));
  if constexpr (Keys::kStrings) new_keys->Resize(bits.size());
  // Which keys will be let in is not known: most are not, and room for all would be a waste.
  if (admission_ != nullptr && op.context.new_keys == NewKeys::kAdmit) return Status::Ok();
  // Stripes that are too small if all their keys are new and different.
  StripeSet tight = 0;
  for (uint32_t s = 0; s < kStripes; ++s) {
    const bool fits = IndexedKeys(s, groups.stripe_keys()[s]) <= stripes_[s].limit();
    if (!fits) tight |= StripeSet{1} << s;
  }
  if (tight == 0 && !Keys::kStrings) return Status::Ok();
  SharedStatus status;
  ParallelFor(groups.groups(), groups.groups(), [&](size_t group) {
    const StripeSet stripes = groups.stripes(group) & tight;
    // Whom a bounded table evicts depends on the size of its index, which must not depend on how
    // the keys were split.
    const bool all =
        !Keys::kStrings && bounds_ == nullptr && NearlyAllMissing(bits, groups, group, stripes, op);
    if (all && GrowingMuch(stripes, groups.stripe_keys()) == 0) {
      status.Set(MakeRoom(stripes, groups.stripe_keys()));
      return;
    }
    std::vector<uint32_t> missing =
        MissingKeys(bits, groups, group, Keys::kStrings ? kAllStripes : tight, op, all);
    if constexpr (Keys::kStrings) {
      for (const uint32_t i : missing) {
        if (Status made = new_keys->Make(i, bits.bytes(i), "key"); !made.ok()) {
          return status.Set(std::move(made));
        }
      }
    }
    status.Set(MakeRoom(bits, stripes, missing));
  });
  return status.Get();
}

template <typename Keys>
template <typename Op>
bool TableOf<Keys>::NearlyAllMissing(const KeyBits& bits, const KeyGroups& groups, size_t group,
                                     StripeSet stripes, const Op& op) const {
  constexpr size_t kSample = 64;
  if (stripes == 0 || op.context.new_keys == NewKeys::kDrop) return false;
  uint64_t keys = 0;
  for (StripeSet rest = stripes; rest != 0; rest &= rest - 1) {
    keys += groups.stripe_keys()[static_cast<size_t>(__builtin_ctzll(rest))];
  }
  const uint64_t step = keys / kSample;
  if (step < 8) return false;
  ReadGuard guard;
  uint64_t looked_at = 0, missing = 0, next = 0, place = 0;
  groups.ForEachRun(group, SIZE_MAX, [&](const uint32_t* order, size_t count) {
    // By irregular steps: batches often have one feature in every n-th place.
    for (; next < place + count; next += 1 + MixInt64(next) % (2 * step)) {
      const uint32_t i = order[next - place];
      if (!(stripes >> StripeOf(Keys::Hash(bits[i])) & 1)) continue;
      ++looked_at;
      missing += op.Inserts(i) && !ContainsOne(bits[i], bits.bytes(i));
    }
    place += count;
  });
  return looked_at >= kSample / 2 && 8 * missing >= 7 * looked_at;
}

template <typename Keys>
template <typename Op>
std::vector<uint32_t> TableOf<Keys>::MissingKeys(const KeyBits& bits, const KeyGroups& groups,
                                                 size_t group, StripeSet stripes, const Op& op,
                                                 bool all) const {
  std::vector<uint32_t> keys;
  if ((groups.stripes(group) & stripes) == 0 || op.context.new_keys == NewKeys::kDrop) return keys;
  groups.ForEachRun(group, SIZE_MAX, [&](const uint32_t* order, size_t count) {
    for (size_t k = 0; k < count; ++k) {
      const uint32_t i = order[k];
      if (stripes >> StripeOf(Keys::Hash(bits[i])) & 1 && op.Inserts(i)) keys.push_back(i);
    }
  });
  if (all) return keys;
  ReadGuard guard;
  size_t missing = 0;
  const auto late = [&](size_t i) {
    if (!ContainsOne(bits[i], bits.bytes(i))) keys[missing++] = static_cast<uint32_t>(i);
  };
  const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
    if (probe.row == nullptr) {
      keys[missing++] = static_cast<uint32_t>(i);
    } else if (!IsHit(probe, bits.bytes(i)) || !StillValid(probe.bucket, probe.state)) {
      late(i);
    }
    return true;
  };
  // Those found missing are put where keys have been visited already.
  Probes<Access::kRead>(
      bits.data(), keys.size(), 0, [&](size_t k) TFRA_INLINE { return keys[k]; }, [](size_t) {},
      visit, late);
  keys.resize(missing);
  return keys;
}

template <typename Keys>
StripeSet TableOf<Keys>::GrowingMuch(StripeSet stripes,
                                     const std::array<uint64_t, kStripes>& more) const {
  StripeSet growing = 0;
  for (; stripes != 0; stripes &= stripes - 1) {
    const auto s = static_cast<uint32_t>(__builtin_ctzll(stripes));
    if (IndexedKeys(s, more[s]) > stripes_[s].limit() * 3 / 2) growing |= StripeSet{1} << s;
  }
  return growing;
}

template <typename Keys>
Status TableOf<Keys>::MakeRoom(const KeyBits& bits, StripeSet stripes,
                               const std::vector<uint32_t>& missing) {
  std::array<uint64_t, kStripes> more{};
  for (const uint32_t i : missing) ++more[StripeOf(Keys::Hash(bits[i]))];
  // Growing by one step is cheap, also if it turns out that many of the keys are the same.
  const StripeSet to_count = GrowingMuch(stripes, more);
  if (to_count != 0) {
    for (StripeSet rest = to_count; rest != 0; rest &= rest - 1) more[__builtin_ctzll(rest)] = 0;
    DistinctKeys distinct(bits, missing.size());
    for (const uint32_t i : missing) {
      const uint32_t s = StripeOf(Keys::Hash(bits[i]));
      if (to_count >> s & 1) more[s] += distinct.Add(i);
    }
  }
  return MakeRoom(stripes, more);
}

template <typename Keys>
Status TableOf<Keys>::MakeRoom(StripeSet stripes, const std::array<uint64_t, kStripes>& more) {
  for (; stripes != 0; stripes &= stripes - 1) {
    const auto s = static_cast<uint32_t>(__builtin_ctzll(stripes));
    if (more[s] == 0) continue;
    std::lock_guard lock(stripes_[s].mutex());
    TFRA_RETURN_IF_ERROR(stripes_[s].Grow(IndexedKeys(s, more[s])));
  }
  return Status::Ok();
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::Write(const KeyBits& bits, const KeyGroups& groups, const Op& prototype,
                            const Scores& scores, const Report& report) {
  TFRA_RETURN_IF_ERROR(CheckScores(scores));
  PendingBlobs new_keys;
  if (tiers_ != nullptr) {
    // Admission rejects most new keys, so space for them is reserved on demand.
    const NewKeys policy = prototype.context.new_keys;
    const bool some_enter =
        policy == NewKeys::kInsert || (policy == NewKeys::kAdmit && admission_ == nullptr);
    const auto inserts = [&](size_t i) { return some_enter && prototype.Inserts(i); };
    TFRA_RETURN_IF_ERROR(FetchRows(bits, groups, inserts));
  }
  TFRA_RETURN_IF_ERROR(PrepareInserts(bits, groups, prototype, &new_keys));
  const Status status = bounds_ == nullptr
                            ? WriteUnbounded(bits, groups, prototype, &new_keys)
                            : WriteBounded(bits, groups, prototype, scores, report, &new_keys);
  if (tiers_ != nullptr) TrimRows(groups);
  return status;
}

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::WriteUnbounded(const KeyBits& bits, const KeyGroups& groups,
                                     const Op& prototype, PendingBlobs* new_keys) {
  SharedStatus result;
  ParallelFor(groups.groups(), groups.groups(), [&](size_t group) {
    Status status;
    std::unique_ptr<DistinctKeys> seen;
    if (prototype.context.new_keys == NewKeys::kAdmit && admission_ != nullptr) {
      seen = std::make_unique<DistinctKeys>(bits, bits.size());
    }
    size_t at_once = kNewKeysAtOnce;
    bool nearly_all_new = false;
    RunOp(prototype, bits.size(), [&](Op* op, Tally* tally) {
      groups.ForEachRun(group, kKeysPerLock, [&](const uint32_t* order, size_t count) {
        if (!status.ok()) return;
        ReadGuard guard;
        StripeLocks locks(stripes_.get(), groups.stripes(group));
        Tidy(groups.stripes(group));
        for (size_t k = 0; k < count && status.ok();) {
          const size_t keys = std::min(at_once, count - k);
          const uint64_t before = tally->inserts;
          // Inserting looks for a key, too: where most are not there, looking for all of them first
          // does not pay.
          status = nearly_all_new
                       ? InsertNewKeys(bits, order + k, keys, op, new_keys, seen.get(), tally)
                       : WriteKeys(bits, order + k, keys, op, new_keys, seen.get(), tally);
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

template <typename Keys>
template <typename Op>
Status TableOf<Keys>::WriteKeys(const KeyBits& bits, const uint32_t* order, size_t count, Op* op,
                                PendingBlobs* new_keys, DistinctKeys* seen, Tally* tally) {
  // Keys that were not found are inserted in the end: the loop that finds keys is short, and so has
  // many of them under way.
  uint32_t missing[kKeysPerLock];
  size_t missing_count = 0;
  const auto late = [&](size_t i)
                        TFRA_INLINE { missing[missing_count++] = static_cast<uint32_t>(i); };
  // The loop's own, which nothing else refers to, so that they can be kept in registers.
  std::conditional_t<std::is_trivially_copyable_v<Op>, Op, Op&> hot_op = *op;
  Tally hot_tally;
  const bool metadata = hot_op.context.metadata;
  const auto fetch = [&](size_t i) TFRA_INLINE {
    hot_op.Fetch(i);
    if (!metadata) return;
    const uint64_t hash = Keys::Hash(bits[i]);
    FetchMetadata(*StripeFor(hash).array(), hash);
  };
  const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
    if (probe.row == nullptr) {
      late(i);
    } else if (HasKey(probe.row, bits.bytes(i))) {
      // Only metadata have to know which entry it is.
      const uint32_t mask = metadata ? probe.bucket->Match(bits[i], probe.state) : 1;
      const Stripe::Entry entry{probe.bucket, static_cast<uint32_t>(__builtin_ctz(mask))};
      UpdateRow(metadata ? ArrayFor(bits[i]) : nullptr, i, entry, probe.row, &hot_op, &hot_tally);
    } else {
      return false;
    }
    return true;
  };
  // Those that are streamed leave the others, which stay in their order.
  uint32_t others[kReplacesRows<Keys, Op> ? kKeysPerLock : 1];
  if constexpr (kReplacesRows<Keys, Op>) {
    // Not where many keys are new: they would be looked for twice.
    if (count > kNewKeysAtOnce && StreamsRows(hot_op)) {
      size_t left;
      const size_t done = StreamKeys(bits, order, count, hot_op, others, &left);
      hot_tally.updates += done - left;
      std::copy(order + done, order + count, others + left);
      count = left + count - done;
      order = others;
    }
  }
  Probes<Op::kChangesRows ? Access::kRow : Access::kEntry>(
      bits.data(), count, hot_op.row_bytes(), [=](size_t k) TFRA_INLINE { return order[k]; }, fetch,
      visit, late);
  tally->updates += hot_tally.updates;
  tally->ignored += hot_tally.ignored;
  // In the order of the batch, which decides who is let in.
  if (admission_ != nullptr) std::sort(missing, missing + missing_count);
  return InsertNewKeys(bits, missing, missing_count, op, new_keys, seen, tally);
}

#define TFRA_INSTANTIATE(Keys, Op)                                                                 \
  template Status TableOf<Keys>::Write(const KeyBits&, const KeyGroups&, const Op&, const Scores&, \
                                       const Report&);
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, IntKeys)
TFRA_FOR_EACH_OP(TFRA_INSTANTIATE, StringKeys)

}  // namespace tfra
