// Makes room for the keys that a call inserts before the call changes anything, so that the call
// does not run out of memory half-way.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "keys/key_groups.h"
#include "keys/key_set.h"
#include "keys/pending_blobs.h"
#include "state/finder.h"
#include "state/row_writer.h"

namespace tfra {

template <typename Keys>
class InsertRoom {
 public:
  // The keys and groups must outlive this object.
  InsertRoom(const TableState& state, const KeyBits& bits, const KeyGroups& groups)
      : state_(state), finder_{state}, bits_(bits), groups_(groups) {}

  // Makes room for the keys that the Op would insert: in the arena and in the index. Also allocates
  // the bytes of new string keys (`new_keys`). Other threads may write meanwhile.
  template <typename Op>
  Status Make(const Op& op, PendingBlobs* new_keys) const;

 private:
  using KeyCounts = std::array<uint64_t, kStripes>;  // By stripe.

  // Whether the Op would insert nearly all keys of a group that belong to `stripes`. Looks at a
  // sample only.
  template <typename Op>
  bool NearlyAllMissing(size_t group, StripeSet stripes, const Op& op) const;
  // The positions of the keys of a group that belong to `stripes` and that the Op would insert,
  // with repeated keys. all: include the keys that are in the table, which saves the search for
  // them.
  template <typename Op>
  std::vector<uint32_t> MissingKeys(size_t group, StripeSet stripes, const Op& op, bool all) const;
  // Those of `stripes` that must grow by more than one step for `more` keys.
  StripeSet GrowingMuch(StripeSet stripes, const KeyCounts& more) const;
  // Grows `stripes` so that each has room for `more` keys, or for the `missing` keys.
  Status Grow(StripeSet stripes, const KeyCounts& more) const;
  Status GrowFor(StripeSet stripes, const std::vector<uint32_t>& missing) const;

  const TableState& state_;
  const Finder<Keys> finder_;
  const KeyBits& bits_;
  const KeyGroups& groups_;
};

template <typename Keys>
template <typename Op>
Status InsertRoom<Keys>::Make(const Op& op, PendingBlobs* new_keys) const {
  const uint64_t rows =
      state_.bounds == nullptr || state_.tiers != nullptr
          ? bits_.size()
          : std::min<uint64_t>(bits_.size(), state_.bounds->max_capacity() - state_.size());
  const uint64_t spare = kStripes * uint64_t{Stripe::RowBlock(state_.arena.rows() + rows)};
  TFRA_RETURN_IF_ERROR(state_.arena.Reserve(rows + spare));
  if constexpr (Keys::kStrings) new_keys->Resize(bits_.size());
  // Admission rejects most new keys, so space for them is reserved on demand.
  if (Admits(state_, op)) return Status::Ok();
  // Stripes that are too small if all their keys are new and distinct.
  StripeSet tight = 0;
  for (uint32_t s = 0; s < kStripes; ++s) {
    const uint64_t keys = groups_.stripe_keys()[s];
    const bool fits = state_.IndexedKeys(s, keys) <= state_.stripes[s].limit() &&
                      (keys == 0 || state_.stripes[s].has_free_rows());
    if (!fits) tight |= StripeSet{1} << s;
  }
  if (tight == 0 && !Keys::kStrings) return Status::Ok();
  SharedStatus status;
  ParallelFor(groups_.groups(), groups_.groups(), [&](size_t group) {
    const StripeSet stripes = groups_.stripes(group) & tight;
    // A bounded table counts its new keys exactly: which keys it evicts depends on the size of its
    // index, and must not depend on how the keys were split over threads.
    const bool all =
        !Keys::kStrings && state_.bounds == nullptr && NearlyAllMissing(group, stripes, op);
    if (all && GrowingMuch(stripes, groups_.stripe_keys()) == 0) {
      status.Set(Grow(stripes, groups_.stripe_keys()));
      return;
    }
    std::vector<uint32_t> missing =
        MissingKeys(group, Keys::kStrings ? kAllStripes : tight, op, all);
    if constexpr (Keys::kStrings) {
      for (const uint32_t i : missing) {
        if (Status made = new_keys->Make(i, bits_.bytes(i), "key"); !made.ok()) {
          return status.Set(std::move(made));
        }
      }
    }
    status.Set(GrowFor(stripes, missing));
  });
  return status.Get();
}

template <typename Keys>
template <typename Op>
bool InsertRoom<Keys>::NearlyAllMissing(size_t group, StripeSet stripes, const Op& op) const {
  constexpr size_t kSample = 64;
  if (stripes == 0 || op.context.new_keys == NewKeys::kDrop) return false;
  uint64_t keys = 0;
  for (StripeSet rest = stripes; rest != 0; rest &= rest - 1) {
    keys += groups_.stripe_keys()[static_cast<size_t>(__builtin_ctzll(rest))];
  }
  const uint64_t step = keys / kSample;
  if (step < 8) return false;
  ReadGuard guard;
  uint64_t looked_at = 0, missing = 0, next = 0, place = 0;
  groups_.ForEachRun(group, SIZE_MAX, [&](const uint32_t* order, size_t count) {
    // The steps are irregular, because batches often have the same feature at every n-th position.
    for (; next < place + count; next += 1 + MixInt64(next) % (2 * step)) {
      const uint32_t i = order[next - place];
      if (!(stripes >> StripeOf(Keys::Hash(bits_[i])) & 1)) continue;
      ++looked_at;
      missing += op.Inserts(i) && !finder_.ContainsOne(bits_[i], bits_.bytes(i));
    }
    place += count;
  });
  return looked_at >= kSample / 2 && 8 * missing >= 7 * looked_at;
}

template <typename Keys>
template <typename Op>
std::vector<uint32_t> InsertRoom<Keys>::MissingKeys(size_t group, StripeSet stripes, const Op& op,
                                                    bool all) const {
  std::vector<uint32_t> keys;
  if ((groups_.stripes(group) & stripes) == 0 || op.context.new_keys == NewKeys::kDrop) return keys;
  groups_.ForEachRun(group, SIZE_MAX, [&](const uint32_t* order, size_t count) {
    for (size_t k = 0; k < count; ++k) {
      const uint32_t i = order[k];
      if (stripes >> StripeOf(Keys::Hash(bits_[i])) & 1 && op.Inserts(i)) keys.push_back(i);
    }
  });
  if (all) return keys;
  ReadGuard guard;
  size_t missing = 0;
  const auto late = [&](size_t i) {
    if (!finder_.ContainsOne(bits_[i], bits_.bytes(i))) keys[missing++] = static_cast<uint32_t>(i);
  };
  const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
    if (probe.row == nullptr) {
      keys[missing++] = static_cast<uint32_t>(i);
    } else if (!finder_.IsHit(probe, bits_.bytes(i)) || !StillValid(probe.bucket, probe.state)) {
      late(i);
    }
    return true;
  };
  // Missing keys are stored in the part of `keys` that was visited already.
  finder_.template Probes<Access::kRead>(
      bits_.data(), keys.size(), 0, [&](size_t k) TFRA_INLINE { return keys[k]; }, [](size_t) {},
      visit, late);
  keys.resize(missing);
  return keys;
}

template <typename Keys>
StripeSet InsertRoom<Keys>::GrowingMuch(StripeSet stripes, const KeyCounts& more) const {
  StripeSet growing = 0;
  for (; stripes != 0; stripes &= stripes - 1) {
    const auto s = static_cast<uint32_t>(__builtin_ctzll(stripes));
    if (state_.IndexedKeys(s, more[s]) > state_.stripes[s].limit() * 3 / 2)
      growing |= StripeSet{1} << s;
  }
  return growing;
}

template <typename Keys>
Status InsertRoom<Keys>::GrowFor(StripeSet stripes, const std::vector<uint32_t>& missing) const {
  KeyCounts more{};
  for (const uint32_t i : missing) ++more[StripeOf(Keys::Hash(bits_[i]))];
  // If a stripe grows by one step only, equal keys are not worth counting. Otherwise count distinct
  // keys.
  const StripeSet to_count = GrowingMuch(stripes, more);
  if (to_count != 0) {
    for (StripeSet rest = to_count; rest != 0; rest &= rest - 1) more[__builtin_ctzll(rest)] = 0;
    DistinctKeys distinct(bits_, missing.size());
    for (const uint32_t i : missing) {
      const uint32_t s = StripeOf(Keys::Hash(bits_[i]));
      if (to_count >> s & 1) more[s] += distinct.Add(i);
    }
  }
  return Grow(stripes, more);
}

template <typename Keys>
Status InsertRoom<Keys>::Grow(StripeSet stripes, const KeyCounts& more) const {
  for (; stripes != 0; stripes &= stripes - 1) {
    const auto s = static_cast<uint32_t>(__builtin_ctzll(stripes));
    if (more[s] == 0) continue;
    std::lock_guard lock(state_.stripes[s].mutex());
    TFRA_RETURN_IF_ERROR(state_.stripes[s].Grow(state_.IndexedKeys(s, more[s])));
    TFRA_RETURN_IF_ERROR(state_.stripes[s].MakeFreeRows());
  }
  return Status::Ok();
}

}  // namespace tfra
