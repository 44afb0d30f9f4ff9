#include "writing/assigner.h"

#include "writing/writer.h"

namespace tfra {

template <typename Keys>
Status AssignRows(const TableState& state, const KeyBatch& keys, const AssignedRows& rows,
                  NewKeys new_keys, const WriteReport& report) try {
  TFRA_RETURN_IF_ERROR(state.CheckKeys(keys));
  KeyBits bits;
  const KeyGroups groups = KeyGroups::Split<Keys>(keys, &bits);
  const RowContext context = ContextOf(state, new_keys);
  if (!state.has_string_values()) {
    const auto* values = static_cast<const std::byte*>(rows.values);
    const auto* slots = static_cast<const std::byte*>(rows.slots);
    return WithRowBytes(slots == nullptr ? state.layout.value_bytes : 0, [&](auto size) {
      return Write<Keys>(state, bits, groups,
                         AssignOp<size>{context, values, slots, rows.metadata, rows.insert_missing},
                         rows.scores, report);
    });
  }
  const size_t dim = static_cast<size_t>(state.spec.dim), n = keys.size * dim;
  const auto* strings = static_cast<const std::string_view*>(rows.values);
  TFRA_RETURN_IF_ERROR(state.CheckStrings(strings, n, "value"));
  PendingBlobs blobs;
  blobs.Resize(n);
  for (size_t i = 0; i < n; ++i) {
    if (!strings[i].empty()) TFRA_RETURN_IF_ERROR(blobs.Make(i, strings[i], "value"));
  }
  return Write<Keys>(state, bits, groups,
                     AssignStringsOp{context, &blobs, rows.metadata, rows.insert_missing, dim, {}},
                     rows.scores, report);
}
TFRA_CATCH_BAD_ALLOC

template Status AssignRows<IntKeys>(const TableState&, const KeyBatch&, const AssignedRows&,
                                    NewKeys, const WriteReport&);
template Status AssignRows<StringKeys>(const TableState&, const KeyBatch&, const AssignedRows&,
                                       NewKeys, const WriteReport&);

}  // namespace tfra
