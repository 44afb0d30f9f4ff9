// The distinct keys of a batch, and sums of rows over equal keys: what gradients of repeated keys
// need before an optimizer takes one step for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tfra/table.h"

namespace tfra {

// Does not depend on the number of threads, neither the order of the distinct keys nor any bit of a
// sum. Needs the keys in Find only. Threads: const calls may run side by side.
class UniqueKeys {
 public:
  UniqueKeys();
  ~UniqueKeys();
  UniqueKeys(UniqueKeys&&) noexcept;
  UniqueKeys& operator=(UniqueKeys&&) noexcept;

  static Status Find(const KeyBatch& keys, UniqueKeys* out);

  // The number of distinct keys, u.
  size_t size() const;
  // (u): the number of each distinct key's first occurrence, ascending.
  const uint32_t* first() const;

  // For each distinct key the sum over its occurrences i, in their order, of
  // scale[i] * gradients[row[i]]. gradients: rows of dim elements of `type`. row: (n), or null: i
  // itself. scale: (n) of ComputeType(type), or null: 1. sums: (u, dim) of ComputeType(type).
  // REQUIRES (kWrongType otherwise): a floating type.
  Status Sum(const void* gradients, ValueType type, size_t dim, const int64_t* row,
             const void* scale, void* sums) const;

  // The gradient of Table::LookupPooled by the rows of its keys, from that by its result:
  // gradients: (segments, dim) of `type`. sums: as above. REQUIRES (kInvalidArgument otherwise): a
  // pooling of these keys, without max_norm.
  Status SumPooled(const void* gradients, ValueType type, size_t dim, const Pooling& pooling,
                   void* sums) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// duplicate: the number of the first key that equals one before it, or keys.size if all differ.
// Takes up to 8 bytes of memory for each key, 16 for each string; about five times that if most
// keys are equal, or were chosen to collide.
Status FindDuplicate(const KeyBatch& keys, size_t* duplicate);

}  // namespace tfra
