// What writing to bounded and to other tables shares.
#pragma once

#include <iterator>
#include <utility>
#include <vector>

#include "row_ops.h"
#include "table_find.h"

namespace tfra {

// A writer holds the mutexes of its shards for so many keys, some hundred microseconds.
inline constexpr size_t kKeysPerLock = 4096;

inline Status FirstError(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) TFRA_RETURN_IF_ERROR(status);
  return Status::Ok();
}

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

template <typename Keys>
template <typename Op, typename Body>
void TableOf<Keys>::RunOp(const Op& prototype, size_t keys, Body&& body) {
  Op op = prototype;
  Tally tally;
  if constexpr (requires { op.replaced; }) {
    op.replaced.reserve(keys * op.dim);
    tally.garbage.reserve(keys * op.dim);
  }
  body(&op, &tally);
  if constexpr (requires { op.stored_bytes; }) tally.string_bytes += op.stored_bytes;
  if constexpr (requires { op.replaced; }) {
    for (Blob* blob : op.replaced) {
      tally.string_bytes -= static_cast<int64_t>(blob->allocated_bytes());
      tally.garbage.push_back(Blob::AsRetired(blob));
    }
  }
  if constexpr (Op::kFinds) {
    tally.hits = std::exchange(tally.updates, 0);
    tally.misses = tally.inserts + tally.rejections;
  }
  Count(std::move(tally));
}

}  // namespace tfra
