#include "rows/segments.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/batch.h"
#include "kernels/update_kernels.h"

namespace tfra {
namespace {

// The rows of a block fit into a near cache, and a block has enough keys to prefetch ahead.
constexpr size_t kBlockBytes = 64 << 10;
constexpr size_t kMinBlock = 64;
constexpr size_t kMaxBlock = 1024;

size_t KeysIn(const Pooling& pooling) {
  return static_cast<size_t>(pooling.splits[pooling.segments]);
}

// Combines the rows of some segments, on one thread.
template <typename Compute>
class Pooler {
 public:
  // For the segments [first, last).
  Pooler(const Pooling& pooling, size_t first, size_t last, ValueType type, size_t dim, void* out)
      : pooling_(pooling),
        kernels_(KernelsFor(BestIsa())->For(type)),
        last_(last),
        dim_(dim),
        row_bytes_(dim * SizeOf(type)),
        out_(static_cast<Compute*>(out)),
        segment_(first) {
    Start();
  }

  // Adds the rows of the next keys, [begin, end).
  void Add(size_t begin, size_t end, const std::byte* rows) {
    const Compute* scales = ScalesOf(begin, end, rows);
    for (size_t i = begin; i < end;) {
      while (End() <= i) Next();
      const size_t stop = std::min(End(), end);
      kernels_.add_rows(rows + (i - begin) * row_bytes_, stop - i,
                        reinterpret_cast<const std::byte*>(scales ? scales + (i - begin) : nullptr),
                        reinterpret_cast<std::byte*>(sum()), dim_);
      i = stop;
    }
  }

  // Call this after the last key.
  void Finish() {
    while (segment_ < last_) Next();
  }

 private:
  Compute* sum() const { return out_ + segment_ * dim_; }
  size_t End() const { return static_cast<size_t>(pooling_.splits[segment_ + 1]); }

  void Start() {
    if (segment_ < last_) std::fill_n(sum(), dim_, Compute{0});
  }

  void Next() {
    Divide(DivisorOf<Compute>(pooling_, segment_));
    ++segment_;
    Start();
  }

  void Divide(Compute divisor) {
    if (divisor == 0) {
      std::fill_n(sum(), dim_, Compute{0});
    } else if (divisor != 1) {
      Compute* const to = sum();
      for (size_t j = 0; j < dim_; ++j) to[j] /= divisor;
    }
  }

  // The factors of the rows, or null if all are 1.
  const Compute* ScalesOf(size_t begin, size_t end, const std::byte* rows) {
    const size_t n = end - begin;
    const float* weights = pooling_.weights == nullptr ? nullptr : pooling_.weights + begin;
    if (weights == nullptr && pooling_.max_norm == 0) return nullptr;
    scales_.resize(n);
    if (pooling_.max_norm == 0) {
      std::copy_n(weights, n, scales_.begin());
      return scales_.data();
    }
    kernels_.row_norms(rows, n, reinterpret_cast<std::byte*>(scales_.data()), dim_);
    const auto limit = static_cast<Compute>(pooling_.max_norm);
    for (size_t i = 0; i < n; ++i) {
      const Compute weight = weights == nullptr ? 1 : Compute{weights[i]};
      scales_[i] = scales_[i] > limit ? weight * (limit / scales_[i]) : weight;
    }
    return scales_.data();
  }

  const Pooling& pooling_;
  const TypeKernels& kernels_;
  const size_t last_, dim_, row_bytes_;
  Compute* const out_;
  size_t segment_;  // The segment to which rows are added.
  std::vector<Compute> scales_;
};

}  // namespace

Status CheckPooling(const Pooling& pooling, size_t keys) {
  const int64_t* splits = pooling.splits;
  if (splits[0] != 0) {
    return Status::InvalidArgument("expected splits that start with 0, received " +
                                   std::to_string(splits[0]) + " as the first");
  }
  for (size_t s = 0; s < pooling.segments; ++s) {
    if (splits[s] <= splits[s + 1]) continue;
    return Status::InvalidArgument("expected ascending splits, received " +
                                   std::to_string(splits[s + 1]) + " after " +
                                   std::to_string(splits[s]) + " at " + std::to_string(s + 1));
  }
  if (KeysIn(pooling) != keys) {
    return Status::InvalidArgument("expected splits that end with the number of keys, " +
                                   std::to_string(keys) + ", received " +
                                   std::to_string(splits[pooling.segments]) + " as the last");
  }
  if (!(pooling.max_norm >= 0)) {
    return Status::InvalidArgument("expected a max_norm of 0 or more, received " +
                                   std::to_string(pooling.max_norm));
  }
  return Status::Ok();
}

void ForEachSegments(const Pooling& pooling, const std::function<void(size_t, size_t)>& body) {
  // A segment costs about as much as a key, so many empty segments are split over threads too.
  const size_t work = KeysIn(pooling) + pooling.segments;
  const size_t threads = ThreadsFor(work);
  const size_t parts = threads == 1 ? 1 : std::min(4 * threads, work / kMinKeysPerThread);
  // The first segment that has at least `before` units of work before it.
  const auto segment_at = [&](size_t before) {
    size_t low = 0, high = pooling.segments;
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (static_cast<size_t>(pooling.splits[middle]) + middle < before) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  };
  ParallelFor(parts, threads, [&](size_t part) {
    const size_t first = segment_at(work * part / parts);
    const size_t last = segment_at(work * (part + 1) / parts);
    if (first < last) body(first, last);
  });
}

template <typename Compute>
Compute DivisorOf(const Pooling& pooling, size_t segment) {
  const int64_t begin = pooling.splits[segment], end = pooling.splits[segment + 1];
  if (pooling.combiner == Pooling::kSum) return 1;
  Compute total = 0;
  if (pooling.weights == nullptr) {
    total = static_cast<Compute>(end - begin);
  } else if (pooling.combiner == Pooling::kMean) {
    for (int64_t i = begin; i < end; ++i) total += Compute{pooling.weights[i]};
  } else {
    for (int64_t i = begin; i < end; ++i) {
      total += Compute{pooling.weights[i]} * Compute{pooling.weights[i]};
    }
  }
  return pooling.combiner == Pooling::kMean ? total : std::sqrt(total);
}

template float DivisorOf(const Pooling&, size_t);
template double DivisorOf(const Pooling&, size_t);

void PoolRows(const Pooling& pooling, size_t first, size_t last, ValueType type, size_t dim,
              const ReadRows& read, void* out) {
  const size_t row_bytes = dim * SizeOf(type);
  const size_t begin = static_cast<size_t>(pooling.splits[first]);
  const size_t end = static_cast<size_t>(pooling.splits[last]);
  const size_t block =
      std::min(std::clamp(kBlockBytes / row_bytes, kMinBlock, kMaxBlock), end - begin);
  const std::unique_ptr<std::byte[]> rows(new std::byte[block * row_bytes]);
  const auto run = [&](auto pooler) {
    for (size_t i = begin; i < end; i += block) {
      const size_t stop = std::min(i + block, end);
      read(i, stop, rows.get());
      pooler.Add(i, stop, rows.get());
    }
    pooler.Finish();
  };
  if (ComputeType(type) == ValueType::kFloat64) {
    run(Pooler<double>(pooling, first, last, type, dim, out));
  } else {
    run(Pooler<float>(pooling, first, last, type, dim, out));
  }
}

Status Pool(const Pooling& given, const void* rows, size_t n, ValueType type, size_t dim,
            void* out) {
  if (!IsFloating(type)) {
    return Status::WrongType(std::string("expected floating values to combine, received ") +
                             NameOf(type));
  }
  const KeptPooling kept(given);
  const Pooling& pooling = kept.get();
  TFRA_RETURN_IF_ERROR(CheckPooling(pooling, n));
  const size_t row_bytes = dim * SizeOf(type);
  const auto read = [&](size_t begin, size_t end, std::byte* block) {
    std::memcpy(block, static_cast<const std::byte*>(rows) + begin * row_bytes,
                (end - begin) * row_bytes);
  };
  ForEachSegments(pooling, [&](size_t first, size_t last) {
    PoolRows(pooling, first, last, type, dim, read, out);
  });
  return Status::Ok();
}

}  // namespace tfra
