#include "tfra/unique_keys.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "kernels/update_kernels.h"
#include "keys/key_groups.h"
#include "keys/key_set.h"
#include "rows/segments.h"

namespace tfra {
namespace {

// How many keys ahead loops prefetch what they read in random order.
constexpr size_t kAhead = 16;

// For each key: the position of the first key that equals it, and how many equal keys come before.
struct Occurrence {
  uint32_t first;
  uint32_t rank;
};

// Finds the occurrences of the keys of a group. If key i is the first of equal keys, sets counts[i]
// to their number.
void FindOccurrences(const KeyBits& bits, const KeyGroups& groups, size_t group,
                     Occurrence* occurrences, uint32_t* counts) {
  size_t keys = 0;
  groups.ForEachRun(group, SIZE_MAX, [&](const uint32_t*, size_t count) { keys += count; });
  struct Entry {
    uint64_t key_bits;
    uint32_t first = kNoKey;
    uint32_t count = 0;
  };
  KeySet<Entry> distinct(bits, keys);
  groups.ForEachRun(group, SIZE_MAX, [&](const uint32_t* order, size_t count) {
    for (size_t k = 0; k < count; ++k) {
      if (k + kAhead < count) distinct.Prefetch(order[k + kAhead]);
      const uint32_t i = order[k];
      bool is_new;
      Entry& entry = distinct.Add(i, &is_new);
      occurrences[i] = {entry.first, entry.count++};
      counts[entry.first] = entry.count;
    }
  });
}

Status CheckGradients(ValueType type) {
  if (IsFloating(type)) return Status::Ok();
  return Status::WrongType(std::string("expected gradients of a floating type, received ") +
                           NameOf(type));
}

}  // namespace

// The positions of all keys, with equal keys together: distinct key d has the positions
// order[begin[d]] .. order[begin[d + 1] - 1], ascending.
struct UniqueKeys::State {
  size_t keys = 0;
  std::vector<uint32_t> first;        // (u)
  std::vector<uint32_t> begin;        // (u + 1)
  std::unique_ptr<uint32_t[]> order;  // (n)

  // Groups equal keys: fills these arrays. Distinct keys are in the order of their first
  // occurrences. Overwrites `counts`.
  void Sort(const Occurrence* occurrences, uint32_t* counts);

  // Sums the gradients of the distinct keys [from, to).
  template <typename Compute>
  void Sum(size_t from, size_t to, const std::byte* gradients, ValueType type, size_t dim,
           const int64_t* row, const Compute* scale, Compute* sums) const;
};

void UniqueKeys::State::Sort(const Occurrence* occurrences, uint32_t* counts) {
  const size_t threads = ThreadsFor(keys);
  struct Totals {
    size_t distinct = 0, keys = 0;
  };
  std::vector<Totals> before(threads + 1);
  const auto for_each_chunk = [&](auto&& body) {
    ParallelFor(threads, threads, [&](size_t chunk) {
      body(chunk, keys * chunk / threads, keys * (chunk + 1) / threads);
    });
  };
  for_each_chunk([&](size_t chunk, size_t from, size_t to) {
    Totals totals;
    for (size_t i = from; i < to; ++i) {
      if (occurrences[i].first != i) continue;
      ++totals.distinct;
      totals.keys += counts[i];
    }
    before[chunk + 1] = totals;
  });
  for (size_t chunk = 0; chunk < threads; ++chunk) {
    before[chunk + 1].distinct += before[chunk].distinct;
    before[chunk + 1].keys += before[chunk].keys;
  }
  first.resize(before[threads].distinct);
  begin.resize(first.size() + 1);
  begin.back() = static_cast<uint32_t>(keys);
  for_each_chunk([&](size_t chunk, size_t from, size_t to) {
    Totals totals = before[chunk];
    for (size_t i = from; i < to; ++i) {
      if (occurrences[i].first != i) continue;
      first[totals.distinct] = static_cast<uint32_t>(i);
      begin[totals.distinct++] = static_cast<uint32_t>(totals.keys);
      // From here on, counts[i] is the index in `order` where the keys that equal key i begin.
      totals.keys += std::exchange(counts[i], static_cast<uint32_t>(totals.keys));
    }
  });
  order.reset(new uint32_t[keys]);
  for_each_chunk([&](size_t, size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) {
      order[counts[occurrences[i].first] + occurrences[i].rank] = static_cast<uint32_t>(i);
    }
  });
}

template <typename Compute>
void UniqueKeys::State::Sum(size_t from, size_t to, const std::byte* gradients, ValueType type,
                            size_t dim, const int64_t* row, const Compute* scale,
                            Compute* sums) const {
  const AddRowsKernel add = KernelsFor(BestIsa())->For(type).add_rows;
  const size_t row_bytes = dim * SizeOf(type), end = begin[to];
  const auto gradient_of = [&](size_t i) TFRA_INLINE {
    return gradients + (row == nullptr ? i : static_cast<size_t>(row[i])) * row_bytes;
  };
  for (size_t d = from; d < to; ++d) {
    Compute* const sum = sums + d * dim;
    std::fill_n(sum, dim, Compute{0});
    for (size_t k = begin[d]; k < begin[d + 1]; ++k) {
      if (k + kAhead < end) Prefetch<false>(gradient_of(order[k + kAhead]), row_bytes);
      const size_t i = order[k];
      add(gradient_of(i), 1, reinterpret_cast<const std::byte*>(scale ? scale + i : nullptr),
          reinterpret_cast<std::byte*>(sum), dim);
    }
  }
}

UniqueKeys::UniqueKeys() : state_(new State) {}
UniqueKeys::~UniqueKeys() = default;
UniqueKeys::UniqueKeys(UniqueKeys&&) noexcept = default;
UniqueKeys& UniqueKeys::operator=(UniqueKeys&&) noexcept = default;

size_t UniqueKeys::size() const { return state_->first.size(); }
const uint32_t* UniqueKeys::first() const { return state_->first.data(); }

Status UniqueKeys::Find(const KeyBatch& keys, UniqueKeys* out) try {
  TFRA_RETURN_IF_ERROR(CheckBatchSize(keys));
  UniqueKeys found;
  State& state = *found.state_;
  state.keys = keys.size;
  KeyBits bits;
  const KeyGroups groups = keys.type == KeyType::kString ? KeyGroups::Split<StringKeys>(keys, &bits)
                                                         : KeyGroups::Split<IntKeys>(keys, &bits);
  const std::unique_ptr<Occurrence[]> occurrences(new Occurrence[keys.size]);
  const std::unique_ptr<uint32_t[]> counts(new uint32_t[keys.size]);
  ParallelFor(groups.groups(), groups.groups(), [&](size_t group) {
    FindOccurrences(bits, groups, group, occurrences.get(), counts.get());
  });
  state.Sort(occurrences.get(), counts.get());
  *out = std::move(found);
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status UniqueKeys::Sum(const void* gradients, ValueType type, size_t dim, const int64_t* row,
                       const void* scale, void* sums) const try {
  TFRA_RETURN_IF_ERROR(CheckGradients(type));
  // Split the work into parts with about the same number of keys, equal keys included.
  const std::vector<uint32_t>& begin = state_->begin;
  const auto distinct_at = [&](size_t key) {
    return static_cast<size_t>(std::lower_bound(begin.begin(), begin.end(), key) - begin.begin());
  };
  ForEachPart(state_->keys, [&](size_t first_key, size_t last_key) {
    const size_t from = distinct_at(first_key), to = distinct_at(last_key);
    const auto* bytes = static_cast<const std::byte*>(gradients);
    if (ComputeType(type) == ValueType::kFloat64) {
      state_->Sum(from, to, bytes, type, dim, row, static_cast<const double*>(scale),
                  static_cast<double*>(sums));
    } else {
      state_->Sum(from, to, bytes, type, dim, row, static_cast<const float*>(scale),
                  static_cast<float*>(sums));
    }
  });
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status UniqueKeys::SumPooled(const void* gradients, ValueType type, size_t dim,
                             const Pooling& given, void* sums) const try {
  TFRA_RETURN_IF_ERROR(CheckGradients(type));
  const KeptPooling kept(given);
  const Pooling& pooling = kept.get();
  TFRA_RETURN_IF_ERROR(CheckPooling(pooling, state_->keys));
  if (pooling.max_norm != 0) {
    return Status::InvalidArgument("expected a pooling without max_norm, received " +
                                   std::to_string(pooling.max_norm));
  }
  const std::unique_ptr<int64_t[]> segment_of(new int64_t[state_->keys]);
  const auto run = [&]<typename Compute>(Compute) {
    const bool scaled = pooling.weights != nullptr || pooling.combiner != Pooling::kSum;
    const std::unique_ptr<Compute[]> scale(scaled ? new Compute[state_->keys] : nullptr);
    ForEachSegments(pooling, [&](size_t begin, size_t end) {
      for (size_t s = begin; s < end; ++s) {
        const Compute divisor = DivisorOf<Compute>(pooling, s);
        for (int64_t i = pooling.splits[s]; i < pooling.splits[s + 1]; ++i) {
          segment_of[i] = static_cast<int64_t>(s);
          if (!scaled) continue;
          const Compute weight = pooling.weights == nullptr ? 1 : Compute{pooling.weights[i]};
          scale[i] = divisor == 0 ? 0 : weight / divisor;
        }
      }
    });
    return Sum(gradients, type, dim, segment_of.get(), scale.get(), sums);
  };
  return ComputeType(type) == ValueType::kFloat64 ? run(double{}) : run(float{});
}
TFRA_CATCH_BAD_ALLOC

Status FindDuplicate(const KeyBatch& keys, size_t* duplicate) try {
  TFRA_RETURN_IF_ERROR(CheckBatchSize(keys));
  *duplicate = keys.size;
  const KeyBits bits(keys);
  const size_t n = bits.size();
  // Each key sets a mark, and equal keys set the same mark. So only keys that share a mark are
  // compared: about one key in 16. The top bits of MixInt64 select the mark: the int64 keys of an
  // export are nearly in that order, so marks are accessed nearly in sequence.
  const size_t marks = std::bit_ceil(16 * n + 64);
  const int shift = 64 - std::countr_zero(marks);
  std::vector<uint64_t> seen(marks / 64), shared(marks / 64);
  bool any = false;
  for (size_t i = 0; i < n; ++i) {
    const size_t place = MixInt64(bits[i]) >> shift;
    const uint64_t mark = uint64_t{1} << place % 64;
    if (seen[place / 64] & mark) {
      shared[place / 64] |= mark;
      any = true;
    }
    seen[place / 64] |= mark;
  }
  if (!any) return Status::Ok();
  const size_t chunks = ThreadsFor(n);
  std::vector<std::vector<uint32_t>> found(chunks);
  ParallelFor(chunks, chunks, [&](size_t chunk) {
    for (size_t i = n * chunk / chunks; i < n * (chunk + 1) / chunks; ++i) {
      const size_t place = MixInt64(bits[i]) >> shift;
      if (shared[place / 64] >> place % 64 & 1) found[chunk].push_back(static_cast<uint32_t>(i));
    }
  });
  // The keys to compare, and their positions in the batch.
  std::vector<uint32_t> positions;
  std::vector<int64_t> ints;
  std::vector<std::string_view> strings;
  for (const std::vector<uint32_t>& some : found) {
    positions.insert(positions.end(), some.begin(), some.end());
  }
  const bool are_strings = keys.type == KeyType::kString;
  for (const uint32_t i : positions) {
    are_strings ? strings.push_back(keys.strings[i]) : ints.push_back(keys.ints[i]);
  }
  UniqueKeys unique;
  TFRA_RETURN_IF_ERROR(UniqueKeys::Find(
      are_strings ? KeyBatch(strings.data(), strings.size()) : KeyBatch(ints.data(), ints.size()),
      &unique));
  if (unique.size() == positions.size()) return Status::Ok();
  size_t k = 0;
  while (k < unique.size() && unique.first()[k] == k) ++k;
  *duplicate = positions[k];
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

}  // namespace tfra
