#include "reading/reader.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "rows/row_ops.h"
#include "rows/segments.h"
#include "tiers/row_mover.h"

namespace tfra {

template <typename Keys>
Status Reader<Keys>::Contains(const KeyBatch& keys, bool* exists) const try {
  TFRA_RETURN_IF_ERROR(state_.CheckKeys(keys));
  const KeyBits bits(keys);
  ForEachPart(keys.size, [&](size_t begin, size_t end) {
    ReadGuard guard;
    const auto late = [&](size_t i) { exists[i] = finder_.ContainsOne(bits[i], bits.bytes(i)); };
    const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
      if (probe.row == nullptr) {
        exists[i] = false;
      } else if (finder_.IsHit(probe, bits.bytes(i)) && StillValid(probe.bucket, probe.state)) {
        exists[i] = true;
      } else {
        late(i);
      }
      return true;
    };
    finder_.template Probes<Access::kRead>(
        bits.data(), end - begin, 0, [=](size_t i) { return begin + i; }, [](size_t) {}, visit,
        late);
  });
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status Reader<Keys>::Lookup(const KeyBatch& keys, const Defaults& defaults, void* values,
                            bool* exists, void* slots) const try {
  TFRA_RETURN_IF_ERROR(state_.CheckKeys(keys));
  if (slots != nullptr && state_.has_string_values()) {
    return Status::WrongType("expected values that are numbers");
  }
  const KeyBits bits(keys);
  auto* const rows = static_cast<std::byte*>(values);
  SharedStatus status;
  ForEachPart(keys.size, [&](size_t begin, size_t end) {
    ReadGuard guard;
    Tally tally;
    if (state_.has_string_values()) {
      LookupStrings(bits, begin, end, defaults, static_cast<std::string*>(values), exists, &tally);
    } else if (slots != nullptr) {
      status.Set(LookupRows(bits, begin, end, defaults, rows, static_cast<std::byte*>(slots),
                            exists, &tally));
    } else {
      WithRowBytes(state_.layout.value_bytes, [&](auto size) {
        status.Set(LookupValues<size>(bits, begin, end, defaults, rows, exists, &tally));
      });
    }
    state_.Count(std::move(tally));
  });
  return status.Get();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status Reader<Keys>::LookupPooled(const KeyBatch& keys, const Defaults& defaults,
                                  const Pooling& given, void* out) const try {
  TFRA_RETURN_IF_ERROR(state_.CheckKeys(keys));
  if (!IsFloating(state_.spec.value_type)) {
    return Status::WrongType(std::string("expected floating values to combine, received ") +
                             NameOf(state_.spec.value_type));
  }
  const KeptPooling kept(given);
  const Pooling& pooling = kept.get();
  TFRA_RETURN_IF_ERROR(CheckPooling(pooling, keys.size));
  const KeyBits bits(keys);
  const size_t dim = static_cast<size_t>(state_.spec.dim);
  SharedStatus status;
  ForEachSegments(pooling, [&](size_t first, size_t last) {
    ReadGuard guard;
    Tally tally;
    const auto read = [&](size_t begin, size_t end, std::byte* rows) {
      Defaults of_block = defaults;
      if (defaults.kind == Defaults::kRowPerKey) {
        of_block.rows =
            static_cast<const std::byte*>(defaults.rows) + begin * state_.layout.value_bytes;
      }
      WithRowBytes(state_.layout.value_bytes, [&](auto size) {
        status.Set(LookupValues<size>(bits.Part(begin, end), 0, end - begin, of_block, rows,
                                      nullptr, &tally));
      });
    };
    PoolRows(pooling, first, last, state_.spec.value_type, dim, read, out);
    state_.Count(std::move(tally));
  });
  return status.Get();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
[[gnu::noinline]] bool Reader<Keys>::CopyValue(uint64_t key_bits, std::string_view bytes,
                                               std::byte* out, uint32_t* record) const {
  return finder_.ReadRow(key_bits, bytes, record, [&](const std::byte* row) {
    LoadRow(out, row, state_.layout.value_bytes);
  });
}

template <typename Keys>
template <size_t kBytes>
Status Reader<Keys>::LookupValues(const KeyBits& bits, size_t begin, size_t end,
                                  const Defaults& defaults, std::byte* values, bool* exists,
                                  Tally* tally) const {
  const size_t bytes = kBytes > 0 ? kBytes : state_.layout.value_bytes;
  const auto* default_rows = static_cast<const std::byte*>(defaults.rows);
  const bool row_per_key = defaults.kind == Defaults::kRowPerKey;
  const std::byte* one_row = defaults.kind == Defaults::kOneRow ? default_rows : nullptr;
  if (defaults.kind == Defaults::kInitial && state_.initializer.is_constant()) {
    one_row = state_.initializer.constant_row();
  }
  // Closures that are not inlined get copies: the loop can keep a variable in a register only if
  // no such closure refers to it.
  const auto fill = [=, this, &bits](size_t i) {
    if (one_row != nullptr) {
      std::memcpy(values + i * bytes, one_row, bytes);
    } else if (row_per_key) {
      std::memcpy(values + i * bytes, default_rows + i * bytes, bytes);
    } else {
      state_.initializer.Fill(bits[i], values + i * bytes);
    }
  };
  uint64_t late_hits = 0;
  std::vector<SlowRow> slow;
  const auto late = [=, this, &bits, &late_hits, &slow](size_t i) __attribute__((noinline)) {
    uint32_t record = kInMemory;
    const bool found = CopyValue(bits[i], bits.bytes(i), values + i * bytes, &record);
    if (found && record != kInMemory) slow.push_back({static_cast<uint32_t>(i), record});
    if (!found) fill(i);
    if (exists != nullptr) exists[i] = found;
    if (kCounters) late_hits += found;
  };
  uint64_t hits = 0;
  const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
    const bool found = finder_.IsHit(probe, bits.bytes(i));
    if (found) [[likely]] {
      LoadRow(values + i * bytes, probe.row, bytes);
    } else if (probe.row == nullptr) {
      fill(i);
    }
    if (probe.row != nullptr && (!found || !StillValid(probe.bucket, probe.state))) [[unlikely]] {
      late(i);
      return true;
    }
    if (exists != nullptr) exists[i] = found;
    if (kCounters) hits += found;
    return true;
  };
  finder_.template Probes<Access::kRead>(
      bits.data(), end - begin, bytes, [=](size_t i) TFRA_INLINE { return begin + i; },
      [](size_t) {}, visit, late);
  hits += late_hits;
  tally->hits += hits;
  tally->misses += end - begin - hits;
  if (state_.tiers == nullptr) return Status::Ok();
  tally->slow_hits += slow.size();
  tally->fast_hits += hits - slow.size();
  return RowMover(state_).UseSlow(bits, &slow, bytes, [&](const SlowRow& row) {
    std::memcpy(values + row.number * bytes, row.row, bytes);
  });
}

template <typename Keys>
template <typename Read, typename Missing>
void Reader<Keys>::ReadEntries(const KeyBatch& keys, bool* exists, Read&& read,
                               Missing&& missing) const {
  const KeyBits bits(keys);
  ForEachPart(keys.size, [&](size_t begin, size_t end) {
    ReadGuard guard;
    for (size_t i = begin; i < end; ++i) {
      const bool found = finder_.ReadEntry(
          bits[i], bits.bytes(i),
          [&](const BucketArray& array, Stripe::Entry entry, uint32_t) { read(i, array, entry); });
      if (!found) missing(i);
      if (exists != nullptr) exists[i] = found;
    }
  });
}

template <typename Keys>
Status Reader<Keys>::LookupMetadata(const KeyBatch& keys, RowMetadata* metadata, bool* exists) const
    try {
  TFRA_RETURN_IF_ERROR(state_.CheckKeys(keys));
  TFRA_RETURN_IF_ERROR(state_.CheckMetadata("looking up metadata"));
  ReadEntries(
      keys, exists,
      [&](size_t i, const BucketArray& array, Stripe::Entry entry) {
        metadata[i] = array.MetadataOf(entry.bucket, entry.index);
      },
      [&](size_t i) { metadata[i] = RowMetadata{}; });
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status Reader<Keys>::LookupScores(const KeyBatch& keys, uint64_t* scores, bool* exists) const try {
  TFRA_RETURN_IF_ERROR(state_.CheckBounded("looking up scores"));
  TFRA_RETURN_IF_ERROR(state_.CheckKeys(keys));
  ReadEntries(
      keys, exists,
      [&](size_t i, const BucketArray& array, Stripe::Entry entry) {
        scores[i] = __atomic_load_n(array.ScoreOf(entry.bucket, entry.index), __ATOMIC_RELAXED);
      },
      [&](size_t i) { scores[i] = 0; });
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status Reader<Keys>::LookupRows(const KeyBits& bits, size_t begin, size_t end,
                                const Defaults& defaults, std::byte* values, std::byte* slots,
                                bool* exists, Tally* tally) const {
  const RowLayout& layout = state_.layout;
  const size_t value_bytes = layout.value_bytes, slots_bytes = layout.slots_bytes;
  const DefaultRows default_rows(defaults, state_.initializer, value_bytes);
  uint64_t hits = 0;
  std::vector<SlowRow> slow;
  for (size_t i = begin; i < end; ++i) {
    std::byte* const value = values + i * value_bytes;
    std::byte* const row_slots = slots + i * slots_bytes;
    uint32_t record = kInMemory;
    const bool found = finder_.ReadRow(bits[i], bits.bytes(i), &record, [&](const std::byte* row) {
      LoadRow(value, row, value_bytes);
      LoadRow(row_slots, row + layout.slots_offset, slots_bytes);
    });
    if (exists != nullptr) exists[i] = found;
    hits += found;
    if (!found) {
      default_rows.Copy(i, bits[i], value);
      // Not memcpy: without slots there is no array of them.
      std::copy_n(layout.initial_slots.data(), slots_bytes, row_slots);
    } else if (record != kInMemory) {
      slow.push_back({static_cast<uint32_t>(i), record});
    }
  }
  tally->hits += hits;
  tally->misses += end - begin - hits;
  if (state_.tiers == nullptr) return Status::Ok();
  tally->slow_hits += slow.size();
  tally->fast_hits += hits - slow.size();
  return RowMover(state_).UseSlow(bits, &slow, layout.stride, [&](const SlowRow& row) {
    std::memcpy(values + row.number * value_bytes, row.row, value_bytes);
    std::memcpy(slots + row.number * slots_bytes, row.row + layout.slots_offset, slots_bytes);
  });
}

template <typename Keys>
void Reader<Keys>::LookupStrings(const KeyBits& bits, size_t begin, size_t end,
                                 const Defaults& defaults, std::string* values, bool* exists,
                                 Tally* tally) const {
  const size_t dim = static_cast<size_t>(state_.spec.dim);
  const auto* rows = static_cast<const std::string_view*>(defaults.rows);
  std::vector<Blob*> blobs(dim);
  for (size_t i = begin; i < end; ++i) {
    uint32_t record;  // Always in memory.
    const bool found = finder_.ReadRow(bits[i], bits.bytes(i), &record, [&](const std::byte* row) {
      LoadRow(reinterpret_cast<std::byte*>(blobs.data()), row, state_.layout.value_bytes);
    });
    for (size_t j = 0; j < dim; ++j) {
      std::string& out = values[i * dim + j];
      if (found) {
        out = ViewOf(blobs[j]);
      } else if (defaults.kind == Defaults::kInitial) {
        out = state_.initializer.string_row()[j];
      } else {
        out = rows[defaults.kind == Defaults::kRowPerKey ? i * dim + j : j];
      }
    }
    if (exists != nullptr) exists[i] = found;
    (found ? tally->hits : tally->misses) += 1;
  }
}

template class Reader<IntKeys>;
template class Reader<StringKeys>;

}  // namespace tfra
