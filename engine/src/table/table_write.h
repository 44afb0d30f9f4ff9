// What writing to bounded and to other tables shares.
#pragma once

#include <iterator>
#include <utility>
#include <vector>

#include "rows/row_ops.h"
#include "table/table_find.h"

namespace tfra {

// A writer holds the mutexes of its stripes for so many keys: some hundred microseconds, and some
// milliseconds where they evict others.
inline constexpr size_t kKeysPerLock = 4096;

// Moves the rows of one batch to the end of another.
inline void AppendBatch(ExportBatch* from, ExportBatch* to) {
  const auto append = [&](auto member) {
    auto& rows = from->*member;
    (to->*member)
        .insert((to->*member).end(), std::make_move_iterator(rows.begin()),
                std::make_move_iterator(rows.end()));
  };
  to->size += from->size;
  append(&ExportBatch::int_keys);
  append(&ExportBatch::string_keys);
  append(&ExportBatch::values);
  append(&ExportBatch::string_values);
  append(&ExportBatch::slots);
  append(&ExportBatch::metadata);
  append(&ExportBatch::scores);
}

// For what is instantiated for every Op.
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

// The metadata that an Op brings for key i, or null.
template <typename Op>
const RowMetadata* GivenMetadata(const Op& op, size_t i) {
  if constexpr (requires { op.metadata; }) {
    return op.metadata == nullptr ? nullptr : op.metadata + i;
  } else {
    return nullptr;
  }
}

// The metadata of a new row. seen: how often the key was, this time included.
template <typename Op>
RowMetadata FreshMetadata(const Op& op, size_t i, uint32_t seen) {
  if (const RowMetadata* given = GivenMetadata(op, i)) return *given;
  uint32_t writes = 1;
  if constexpr (requires { op.fresh_writes(); }) writes = op.fresh_writes();
  return {op.context.now, writes + seen - 1};
}

template <typename Keys>
template <typename Op>
[[gnu::always_inline]] inline bool TableOf<Keys>::UpdateRow(const BucketArray* array, size_t i,
                                                            Stripe::Entry entry, std::byte* row,
                                                            Op* op, Tally* tally) const {
  if (!op->Updates(i)) {
    ++tally->ignored;
    return false;
  }
  const auto [bucket, index] = entry;
  const BucketWrite write(bucket);
  EditRow(row, layout_.stride, [&](std::byte* edited) TFRA_INLINE { op->Update(i, edited); });
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

template <typename Keys>
Status TableOf<Keys>::Enters(const KeyBits& bits, size_t i, const RowContext& context, bool* enters,
                             uint32_t* seen) {
  *enters = context.new_keys != NewKeys::kDrop;
  *seen = 1;
  if (admission_ == nullptr || context.new_keys != NewKeys::kAdmit) return Status::Ok();
  const uint32_t stripe = StripeOf(Keys::Hash(bits[i]));
  try {
    *enters = admission_->Admit(stripe, bits[i], bits.bytes(i), context.now, seen);
  } catch (const std::bad_alloc&) {
    return Status::OutOfMemory("out of memory for counting keys that wait to enter");
  }
  return Status::Ok();
}

template <typename Keys>
template <typename Op, typename Body>
void TableOf<Keys>::RunOp(const Op& prototype, size_t keys, Body&& body) {
  Op op = prototype;
  if constexpr (requires { op.replaced; }) op.replaced.reserve(keys * op.dim);
  Counting([&](Tally* tally) { body(&op, tally); },
           [&](Tally* tally) {
             if constexpr (requires { op.stored_bytes; }) tally->string_bytes += op.stored_bytes;
             if constexpr (requires { op.replaced; }) {
               if (!op.replaced.empty()) Retire(std::move(op.replaced));
             }
             if constexpr (Op::kFinds) {
               tally->hits = std::exchange(tally->updates, 0);
               tally->misses = tally->inserts + tally->rejections;
             }
           });
}

}  // namespace tfra
