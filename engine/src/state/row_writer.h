// How one key is written: the steps that writing to bounded and to unbounded tables shares.
//
// An Op (rows/row_ops.h) says what a call does to one row.
#pragma once

#include <utility>

#include "keys/keys.h"
#include "rows/row_ops.h"
#include "state/table_state.h"

namespace tfra {

// A writer holds the mutexes of its stripes for at most this many keys: some hundred microseconds,
// or some milliseconds if it evicts other keys.
inline constexpr size_t kKeysPerLock = 4096;

// Instantiates a template for every Op.
#define TFRA_FOR_EACH_OP(INSTANTIATE, Keys) \
  INSTANTIATE(Keys, AssignOp<0>)            \
  INSTANTIATE(Keys, AssignOp<32>)           \
  INSTANTIATE(Keys, AssignOp<64>)           \
  INSTANTIATE(Keys, AssignOp<128>)          \
  INSTANTIATE(Keys, AssignOp<256>)          \
  INSTANTIATE(Keys, AssignStringsOp)        \
  INSTANTIATE(Keys, AccumulateOp)           \
  INSTANTIATE(Keys, AddToRowOp)             \
  INSTANTIATE(Keys, GradientOp)             \
  INSTANTIATE(Keys, TouchOp)                \
  INSTANTIATE(Keys, FindOrInsertOp)         \
  INSTANTIATE(Keys, FindOrInsertStringsOp)

// What every Op of a call knows about the table.
inline RowContext ContextOf(const TableState& state, NewKeys new_keys) {
  return {state.layout, state.initializer, state.spec.metadata, state.clock(), new_keys};
}

// What a writing call reports about a bounded table.
struct WriteReport {
  ExportBatch* evicted = nullptr;  // Null: not wanted.
  bool* rejected = nullptr;        // (n), all false at first. Null: not wanted.
};

// The metadata that an Op brings for key i, or null.
template <typename Op>
const RowMetadata* GivenMetadata(const Op& op, size_t i) {
  if constexpr (requires { op.metadata; }) {
    return op.metadata == nullptr ? nullptr : op.metadata + i;
  } else {
    return nullptr;
  }
}

// The metadata of a new row. seen: how often the key was seen, this time included.
template <typename Op>
RowMetadata FreshMetadata(const Op& op, size_t i, uint32_t seen) {
  if (const RowMetadata* given = GivenMetadata(op, i)) return *given;
  uint32_t writes = 1;
  if constexpr (requires { op.fresh_writes(); }) writes = op.fresh_writes();
  return {op.context.now, writes + seen - 1};
}

// Changes the row of key i, and its metadata, as the Op says. Returns whether the Op changes it.
// array: the array of the entry; it is used only for metadata. REQUIRES: the stripe's mutex.
template <typename Op>
[[gnu::always_inline]] inline bool UpdateRow(const TableState& state, const BucketArray* array,
                                             size_t i, Stripe::Entry entry, std::byte* row, Op* op,
                                             Tally* tally) {
  if (!op->Updates(i)) {
    ++tally->exists_mismatch;
    return false;
  }
  const auto [bucket, index] = entry;
  const BucketWrite write(bucket);
  EditRow(row, state.layout.stride, [&](std::byte* edited) TFRA_INLINE { op->Update(i, edited); });
  if (op->context.metadata) {
    RowMetadata metadata = array->MetadataOf(bucket, index);
    metadata.time = op->context.now;
    metadata.count += metadata.count < UINT32_MAX;
    const RowMetadata* given = GivenMetadata(*op, i);
    array->SetMetadata(bucket, index, given == nullptr ? metadata : *given);
  }
  ++tally->updates;
  return true;
}

// Whether admission decides about the new keys of an Op.
template <typename Op>
bool Admits(const TableState& state, const Op& op) {
  return state.admission != nullptr && op.context.new_keys == NewKeys::kAdmit;
}

// Sets `enters`: whether key i, which is not in the table, may enter. If admission decides, this
// call counts as seeing the key once more, and `seen` is how often it was seen, this time included.
// Otherwise `seen` is 1. Fails only if memory runs out. REQUIRES: the stripe's mutex.
template <typename Keys>
Status MayEnter(const TableState& state, const KeyBits& bits, size_t i, const RowContext& context,
                bool* enters, uint32_t* seen) {
  *enters = context.new_keys != NewKeys::kDrop;
  *seen = 1;
  if (state.admission == nullptr || context.new_keys != NewKeys::kAdmit) return Status::Ok();
  const uint32_t stripe = StripeOf(Keys::Hash(bits[i]));
  try {
    *enters = state.admission->Admit(stripe, bits[i], bits.bytes(i), context.now, seen);
  } catch (const std::bad_alloc&) {
    return Status::OutOfMemory("out of memory for counting keys that wait to enter");
  }
  return Status::Ok();
}

// Tells admission that key i has entered. REQUIRES: the stripe's mutex.
template <typename Keys>
void NoteEntered(const TableState& state, const KeyBits& bits, size_t i) {
  if (state.admission == nullptr) return;
  state.admission->Forget(StripeOf(Keys::Hash(bits[i])), bits[i], bits.bytes(i));
}

// Calls body(op, tally) with a copy of the Op for one thread, and counts what it did.
template <typename Op, typename Body>
void RunOp(const TableState& state, const Op& prototype, size_t keys, Body&& body) {
  Op op = prototype;
  if constexpr (requires { op.replaced; }) op.replaced.reserve(keys * op.dim);
  state.Counting([&](Tally* tally) { body(&op, tally); },
                 [&](Tally* tally) {
                   if constexpr (requires { op.stored_bytes; }) {
                     tally->string_bytes += op.stored_bytes;
                   }
                   if constexpr (requires { op.replaced; }) {
                     if (!op.replaced.empty()) Retire(std::move(op.replaced));
                   }
                   if constexpr (Op::kFinds) {
                     tally->hits = std::exchange(tally->updates, 0);
                     tally->misses = tally->inserts + tally->score_too_low;
                   }
                 });
}

}  // namespace tfra
