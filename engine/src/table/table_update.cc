// The calls that write: what each checks, and which Op it is.
#include <atomic>
#include <string>

#include "table/table_write.h"

namespace tfra {

template <typename Keys>
Status TableOf<Keys>::Assign(const KeyBatch& keys, const void* values, const void* slots,
                             const RowMetadata* metadata, const Scores& scores,
                             NewKeys new_keys) try {
  return AssignRows(keys, values, slots, metadata, scores, true, new_keys, {});
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::AssignRows(const KeyBatch& keys, const void* values, const void* slots,
                                 const RowMetadata* metadata, const Scores& scores,
                                 bool insert_missing, NewKeys new_keys, const Report& report) {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  KeyBits bits;
  const KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  const RowContext context = Context(new_keys);
  if (!has_string_values()) {
    return WithRowBytes(slots == nullptr ? layout_.value_bytes : 0, [&](auto size) {
      return Write(bits, groups,
                   AssignOp<size>{context, static_cast<const std::byte*>(values),
                                  static_cast<const std::byte*>(slots), metadata, insert_missing},
                   scores, report);
    });
  }
  const size_t dim = static_cast<size_t>(spec_.dim), n = keys.size * dim;
  const auto* strings = static_cast<const std::string_view*>(values);
  TFRA_RETURN_IF_ERROR(CheckStrings(strings, n, "value"));
  PendingBlobs blobs;
  blobs.Resize(n);
  for (size_t i = 0; i < n; ++i) {
    if (!strings[i].empty()) TFRA_RETURN_IF_ERROR(blobs.Make(i, strings[i], "value"));
  }
  return Write(bits, groups, AssignStringsOp{context, &blobs, metadata, insert_missing, dim, {}},
               scores, report);
}

template <typename Keys>
Status TableOf<Keys>::Accumulate(const KeyBatch& keys, const void* deltas, const bool* exists,
                                 const Scores& scores, NewKeys new_keys) try {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  if (has_string_values()) {
    return Status::WrongType("accumulating needs values that can be added, received string values");
  }
  // Read once, as keys are, and bytes other than 0 and 1 are true.
  const std::unique_ptr<bool[]> known(new bool[keys.size]);
  const auto* bytes = reinterpret_cast<const unsigned char*>(exists);
  for (size_t i = 0; i < keys.size; ++i) known[i] = bytes[i] != 0;
  KeyBits bits;
  const KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  const RowContext context = Context(new_keys);
  return Write(bits, groups,
               AccumulateOp{context, static_cast<const std::byte*>(deltas), known.get(),
                            AddFor(spec_.value_type), static_cast<size_t>(spec_.dim)},
               scores);
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::AddToRows(const KeyBatch& keys, const void* deltas, const void* slots,
                                const Scores& scores, NewKeys new_keys) try {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  if (!IsFloating(spec_.value_type)) {
    return Status::WrongType(std::string("expected a table of floating values, received ") +
                             NameOf(spec_.value_type) + " values");
  }
  KeyBits bits;
  const KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  const RowContext context = Context(new_keys);
  const ValueType compute = ComputeType(spec_.value_type);
  return Write(
      bits, groups,
      AddToRowOp{context, static_cast<const std::byte*>(deltas),
                 static_cast<const std::byte*>(slots), AddFor(spec_.value_type), AddFor(compute),
                 static_cast<size_t>(spec_.dim), layout_.slots_bytes / SizeOf(compute)},
      scores);
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::ApplyGradients(const KeyBatch& keys, const void* gradients,
                                     ValueType gradient_type, const UpdateParams& params,
                                     const Scores& scores, NewKeys new_keys) try {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  TFRA_RETURN_IF_ERROR(CheckStep(spec_.rule, params, spec_.value_type, gradient_type));
  const ValueType compute = ComputeType(spec_.value_type);
  const size_t dim = static_cast<size_t>(spec_.dim);
  KeyBits bits;
  KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  const auto next = groups.ExtractDuplicates(bits);
  const RowUpdater updater(spec_.rule, params, spec_.value_type, dim);
  const RowContext context = Context(new_keys);
  return Write(bits, groups,
               GradientOp{context, updater, next.get(), static_cast<const std::byte*>(gradients),
                          dim * SizeOf(gradient_type), gradient_type == compute,
                          SumFor(gradient_type, spec_.value_type), dim, std::vector<double>(dim),
                          std::vector<double>(updater.scratch_elements())},
               scores);
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::Touch(const KeyBatch& keys, NewKeys new_keys) try {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  TFRA_RETURN_IF_ERROR(CheckMetadata("renewing metadata"));
  KeyBits bits;
  KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  groups.ExtractDuplicates(bits);
  return Write(bits, groups, TouchOp{Context(has_string_values() ? NewKeys::kDrop : new_keys)}, {});
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::RemoveKeys(const KeyBatch& keys, uint64_t Tally::* counter,
                                 size_t* removed) try {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  KeyBits bits;
  const KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  std::atomic<size_t> total{0};
  ParallelFor(groups.groups(), groups.groups(), [&](size_t group) {
    Counting([&](Tally* tally) {
      const auto remove = [&](size_t i) {
        Stripe& stripe = StripeFor(Keys::Hash(bits[i]));
        const auto entry = FindEntry(stripe, bits, i);
        if (!entry) return;
        RemoveEntry(&stripe, entry, tally);
        ++(tally->*counter);
      };
      const auto visit = [&](size_t i, const Probe& probe) {
        if (probe.row != nullptr) remove(i);
        return true;
      };
      groups.ForEachRun(group, kKeysPerLock, [&](const uint32_t* order, size_t count) {
        ReadGuard guard;
        StripeLocks locks(stripes_.get(), groups.stripes(group));
        Probes<Access::kEntry>(
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

#define TFRA_INSTANTIATE(Keys)                                                                \
  template Status TableOf<Keys>::Assign(const KeyBatch&, const void*, const void*,            \
                                        const RowMetadata*, const Scores&, NewKeys);          \
  template Status TableOf<Keys>::AssignRows(const KeyBatch&, const void*, const void*,        \
                                            const RowMetadata*, const Scores&, bool, NewKeys, \
                                            const Report&);                                   \
  template Status TableOf<Keys>::AddToRows(const KeyBatch&, const void*, const void*,         \
                                           const Scores&, NewKeys);                           \
  template Status TableOf<Keys>::Accumulate(const KeyBatch&, const void*, const bool*,        \
                                            const Scores&, NewKeys);                          \
  template Status TableOf<Keys>::ApplyGradients(const KeyBatch&, const void*, ValueType,      \
                                                const UpdateParams&, const Scores&, NewKeys); \
  template Status TableOf<Keys>::Touch(const KeyBatch&, NewKeys);                             \
  template Status TableOf<Keys>::RemoveKeys(const KeyBatch&, uint64_t Tally::*, size_t*);
TFRA_INSTANTIATE(IntKeys)
TFRA_INSTANTIATE(StringKeys)

}  // namespace tfra
