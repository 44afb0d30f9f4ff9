// What the tests of bounded tables share.
#pragma once

#include "table_helpers.h"

namespace tfra::test {

inline TableSpec BoundedSpec(EvictStrategy strategy, int64_t max_capacity,
                             KeyType key_type = KeyType::kInt64,
                             ValueType type = ValueType::kFloat32, int64_t dim = 2) {
  TableSpec spec = SpecOf(key_type, type, dim);
  spec.bound = {max_capacity, strategy};
  return spec;
}

inline int One(size_t, size_t) { return 1; }

inline void AssignRange(Table& table, int64_t begin, int64_t end) {
  AssignNumbers(table, TestKeys::Range(table.spec().key_type, begin, end), One);
}

inline size_t CountThere(Table& table, const TestKeys& keys) {
  Flags exists(keys.size());
  CHECK_OK(table.Contains(keys.batch(), exists.data()));
  return exists.Count();
}

}  // namespace tfra::test
