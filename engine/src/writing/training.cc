#include "writing/training.h"

#include <memory>
#include <string>
#include <vector>

#include "writing/assigner.h"
#include "writing/writer.h"

namespace tfra {

template <typename Keys>
Status TrainingOf<Keys>::Accumulate(const KeyBatch& keys, const void* deltas, const bool* exists,
                                    const Scores& scores, NewKeys new_keys) try {
  TFRA_RETURN_IF_ERROR(state_.CheckKeys(keys));
  if (state_.has_string_values()) {
    return Status::WrongType("accumulating needs values that can be added, received string values");
  }
  // A copy, since other threads may change the array. Bytes other than 0 and 1 mean true.
  const std::unique_ptr<bool[]> known(new bool[keys.size]);
  const auto* bytes = reinterpret_cast<const unsigned char*>(exists);
  for (size_t i = 0; i < keys.size; ++i) known[i] = bytes[i] != 0;
  KeyBits bits;
  const KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  const RowContext context = ContextOf(state_, new_keys);
  return Write<Keys>(
      state_, bits, groups,
      AccumulateOp{context, static_cast<const std::byte*>(deltas), known.get(),
                   AddFor(state_.spec.value_type), static_cast<size_t>(state_.spec.dim)},
      scores);
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TrainingOf<Keys>::AddToRows(const KeyBatch& keys, const void* deltas, const void* slots,
                                   const Scores& scores, NewKeys new_keys) try {
  TFRA_RETURN_IF_ERROR(state_.CheckKeys(keys));
  if (!IsFloating(state_.spec.value_type)) {
    return Status::WrongType(std::string("expected a table of floating values, received ") +
                             NameOf(state_.spec.value_type) + " values");
  }
  KeyBits bits;
  const KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  const RowContext context = ContextOf(state_, new_keys);
  const ValueType compute = ComputeType(state_.spec.value_type);
  return Write<Keys>(
      state_, bits, groups,
      AddToRowOp{context, static_cast<const std::byte*>(deltas),
                 static_cast<const std::byte*>(slots), AddFor(state_.spec.value_type),
                 AddFor(compute), static_cast<size_t>(state_.spec.dim),
                 state_.layout.slots_bytes / SizeOf(compute)},
      scores);
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TrainingOf<Keys>::ApplyGradients(const KeyBatch& keys, const void* gradients,
                                        ValueType gradient_type, const UpdateParams& params,
                                        const Scores& scores, NewKeys new_keys) try {
  TFRA_RETURN_IF_ERROR(state_.CheckKeys(keys));
  TFRA_RETURN_IF_ERROR(CheckStep(state_.spec.rule, params, state_.spec.value_type, gradient_type));
  const ValueType compute = ComputeType(state_.spec.value_type);
  const size_t dim = static_cast<size_t>(state_.spec.dim);
  KeyBits bits;
  KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  const auto next = groups.ExtractDuplicates(bits);
  const RowUpdater updater(state_.spec.rule, params, state_.spec.value_type, dim);
  const RowContext context = ContextOf(state_, new_keys);
  return Write<Keys>(
      state_, bits, groups,
      GradientOp{context, updater, next.get(), static_cast<const std::byte*>(gradients),
                 dim * SizeOf(gradient_type), gradient_type == compute,
                 SumFor(gradient_type, state_.spec.value_type), dim, std::vector<double>(dim),
                 std::vector<double>(updater.scratch_elements())},
      scores);
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TrainingOf<Keys>::FindOrInsert(const KeyBatch& keys, const Defaults& defaults, void* values,
                                      bool* exists, const Scores& scores) try {
  TFRA_RETURN_IF_ERROR(state_.CheckKeys(keys));
  KeyBits bits;
  const KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  const RowContext context = ContextOf(state_, NewKeys::kInsert);
  const bool row_per_key = defaults.kind == Defaults::kRowPerKey;
  if (!state_.has_string_values()) {
    return Write<Keys>(
        state_, bits, groups,
        FindOrInsertOp{context,
                       DefaultRows(defaults, state_.initializer, state_.layout.value_bytes),
                       static_cast<std::byte*>(values), exists},
        scores);
  }

  const size_t dim = static_cast<size_t>(state_.spec.dim), n = keys.size * dim;
  std::vector<std::string_view> initial;
  const auto* rows = static_cast<const std::string_view*>(defaults.rows);
  if (defaults.kind == Defaults::kInitial) {
    initial.assign(state_.initializer.string_row().begin(), state_.initializer.string_row().end());
    rows = initial.data();
  }
  TFRA_RETURN_IF_ERROR(state_.CheckStrings(rows, row_per_key ? n : dim, "value"));
  PendingBlobs blobs;
  blobs.Resize(n);
  const auto default_of = [&](size_t place) { return rows[row_per_key ? place : place % dim]; };
  for (size_t place = 0; place < n; ++place) {
    const std::string_view text = default_of(place);
    if (!text.empty()) TFRA_RETURN_IF_ERROR(blobs.Make(place, text, "value"));
  }
  std::vector<Blob*> found(n);
  const std::unique_ptr<bool[]> was_there(new bool[keys.size]());
  // Keeps the strings that are found until they are copied, even if they leave the table meanwhile.
  ReadGuard guard;
  TFRA_RETURN_IF_ERROR(Write<Keys>(
      state_, bits, groups,
      FindOrInsertStringsOp{context, &blobs, found.data(), was_there.get(), dim}, scores));
  for (size_t place = 0; place < n; ++place) {
    static_cast<std::string*>(values)[place] =
        was_there[place / dim] ? ViewOf(found[place]) : default_of(place);
  }
  if (exists != nullptr) std::copy_n(was_there.get(), keys.size, exists);
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TrainingOf<Keys>::AssignExisting(const KeyBatch& keys, const void* values, const void* slots,
                                        const RowMetadata* metadata, const Scores& scores) {
  return AssignRows<Keys>(state_, keys, {values, slots, metadata, scores, false});
}

template class TrainingOf<IntKeys>;
template class TrainingOf<StringKeys>;

}  // namespace tfra
