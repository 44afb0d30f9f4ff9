// Rows combined by segments of keys, as TensorFlow's embedding_lookup_sparse combines them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tfra/status.h"
#include "tfra/types.h"

namespace tfra {

// How the rows of one call are combined. Points to the caller's memory, which must stay until the
// call returns.
struct Pooling {
  // With w the weights of a segment's keys:
  //   kSum:   sum of w * row
  //   kMean:  sum of w * row / sum of w
  //   kSqrtN: sum of w * row / square root of the sum of w * w
  // A segment without keys, or one that would be divided by zero, gives zeros.
  enum Combiner : uint8_t { kSum, kMean, kSqrtN };

  Combiner combiner = kMean;
  // (segments + 1), ascending: segment s has the keys splits[s] .. splits[s + 1] - 1. The first is
  // 0, the last the number of keys.
  const int64_t* splits = nullptr;
  size_t segments = 0;
  const float* weights = nullptr;  // (n), or null: each key has the weight 1.
  double max_norm = 0;  // Rows of a larger L2 norm are first scaled down to this one; 0: none are.
};

// Whether `pooling` is one of `keys` keys.
Status CheckPooling(const Pooling& pooling, size_t keys);

// Combines rows that the caller has, to the bit as Table::LookupPooled does. rows: (n, dim) of
// `type`. out: (segments, dim) of ComputeType(type). REQUIRES (kWrongType otherwise): a floating
// type.
Status Pool(const Pooling& pooling, const void* rows, size_t n, ValueType type, size_t dim,
            void* out);

}  // namespace tfra
