#include <cstring>
#include <string>

#include "rows/segments.h"
#include "table/table_find.h"

namespace tfra {

template <typename Keys>
[[gnu::noinline]] bool TableOf<Keys>::ContainsOne(uint64_t key_bits, std::string_view bytes) const {
  return ReadEntry(key_bits, bytes, [](const BucketArray&, Stripe::Entry, uint32_t) {});
}

template <typename Keys>
Status TableOf<Keys>::Contains(const KeyBatch& keys, bool* exists) try {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  const KeyBits bits(keys);
  ForEachPart(keys.size, [&](size_t begin, size_t end) {
    ReadGuard guard;
    const auto late = [&](size_t i) { exists[i] = ContainsOne(bits[i], bits.bytes(i)); };
    const auto visit = [&](size_t i, const Probe& probe) TFRA_INLINE {
      if (probe.row == nullptr) {
        exists[i] = false;
      } else if (IsHit(probe, bits.bytes(i)) && StillValid(probe.bucket, probe.state)) {
        exists[i] = true;
      } else {
        late(i);
      }
      return true;
    };
    Probes<Access::kRead>(
        bits.data(), end - begin, 0, [=](size_t i) { return begin + i; }, [](size_t) {}, visit,
        late);
  });
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::Lookup(const KeyBatch& keys, const Defaults& defaults, void* values,
                             bool* exists) try {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  const KeyBits bits(keys);
  SharedStatus status;
  ForEachPart(keys.size, [&](size_t begin, size_t end) {
    ReadGuard guard;
    Tally tally;
    if (has_string_values()) {
      LookupStrings(bits, begin, end, defaults, static_cast<std::string*>(values), exists, &tally);
    } else {
      WithRowBytes(layout_.value_bytes, [&](auto size) {
        status.Set(LookupValues<size>(bits, begin, end, defaults, static_cast<std::byte*>(values),
                                      exists, &tally));
      });
    }
    Count(std::move(tally));
  });
  return status.Get();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::LookupPooled(const KeyBatch& keys, const Defaults& defaults,
                                   const Pooling& given, void* out) try {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  if (!IsFloating(spec_.value_type)) {
    return Status::WrongType(std::string("expected floating values to combine, received ") +
                             NameOf(spec_.value_type));
  }
  const KeptPooling kept(given);
  const Pooling& pooling = kept.get();
  TFRA_RETURN_IF_ERROR(CheckPooling(pooling, keys.size));
  const KeyBits bits(keys);
  const size_t dim = static_cast<size_t>(spec_.dim);
  SharedStatus status;
  ForEachSegments(pooling, [&](size_t first, size_t last) {
    ReadGuard guard;
    Tally tally;
    const auto read = [&](size_t begin, size_t end, std::byte* rows) {
      Defaults of_block = defaults;
      if (defaults.kind == Defaults::kRowPerKey) {
        of_block.rows = static_cast<const std::byte*>(defaults.rows) + begin * layout_.value_bytes;
      }
      WithRowBytes(layout_.value_bytes, [&](auto size) {
        status.Set(LookupValues<size>(bits.Part(begin, end), 0, end - begin, of_block, rows,
                                      nullptr, &tally));
      });
    };
    PoolRows(pooling, first, last, spec_.value_type, dim, read, out);
    Count(std::move(tally));
  });
  return status.Get();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
[[gnu::noinline]] bool TableOf<Keys>::CopyValue(uint64_t key_bits, std::string_view bytes,
                                                std::byte* out, uint32_t* record) const {
  return ReadRow(key_bits, bytes, record,
                 [&](const std::byte* row) { LoadRow(out, row, layout_.value_bytes); });
}

template <typename Keys>
template <size_t kBytes>
Status TableOf<Keys>::LookupValues(const KeyBits& bits, size_t begin, size_t end,
                                   const Defaults& defaults, std::byte* values, bool* exists,
                                   Tally* tally) const {
  const size_t bytes = kBytes > 0 ? kBytes : layout_.value_bytes;
  const auto* default_rows = static_cast<const std::byte*>(defaults.rows);
  const bool row_per_key = defaults.kind == Defaults::kRowPerKey;
  const std::byte* one_row = defaults.kind == Defaults::kOneRow ? default_rows : nullptr;
  if (defaults.kind == Defaults::kInitial && initializer_.is_constant()) {
    one_row = initializer_.constant_row();
  }
  // Copies in the closures that are called, not inlined: what they refer to could not be kept in
  // registers by the loop.
  const auto fill = [=, this, &bits](size_t i) {
    if (one_row != nullptr) {
      std::memcpy(values + i * bytes, one_row, bytes);
    } else if (row_per_key) {
      std::memcpy(values + i * bytes, default_rows + i * bytes, bytes);
    } else {
      initializer_.Fill(bits[i], values + i * bytes);
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
    const bool found = IsHit(probe, bits.bytes(i));
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
  Probes<Access::kRead>(
      bits.data(), end - begin, bytes, [=](size_t i) TFRA_INLINE { return begin + i; },
      [](size_t) {}, visit, late);
  hits += late_hits;
  tally->hits += hits;
  tally->misses += end - begin - hits;
  if (tiers_ == nullptr) return Status::Ok();
  tally->slow_hits += slow.size();
  tally->fast_hits += hits - slow.size();
  return UseSlow(bits, &slow, bytes, [&](const SlowRow& row) {
    std::memcpy(values + row.number * bytes, row.row, bytes);
  });
}

template <typename Keys>
Status TableOf<Keys>::LookupMetadata(const KeyBatch& keys, RowMetadata* metadata,
                                     bool* exists) try {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  TFRA_RETURN_IF_ERROR(CheckMetadata("looking up metadata"));
  const KeyBits bits(keys);
  ForEachPart(keys.size, [&](size_t begin, size_t end) {
    ReadGuard guard;
    for (size_t i = begin; i < end; ++i) {
      const bool found = ReadEntry(bits[i], bits.bytes(i),
                                   [&](const BucketArray& array, Stripe::Entry entry, uint32_t) {
                                     metadata[i] = array.MetadataOf(entry.bucket, entry.index);
                                   });
      if (!found) metadata[i] = RowMetadata{};
      if (exists != nullptr) exists[i] = found;
    }
  });
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
Status TableOf<Keys>::LookupRows(const KeyBatch& keys, void* values, void* slots) try {
  TFRA_RETURN_IF_ERROR(CheckKeys(keys));
  if (has_string_values()) return Status::WrongType("expected values that are numbers");
  const size_t value_bytes = layout_.value_bytes, slots_bytes = layout_.slots_bytes;
  const KeyBits bits(keys);
  SharedStatus status;
  ForEachPart(keys.size, [&](size_t begin, size_t end) {
    ReadGuard guard;
    Tally tally;
    std::vector<SlowRow> slow;
    const auto value_of = [&](size_t i) {
      return static_cast<std::byte*>(values) + i * value_bytes;
    };
    const auto slots_of = [&](size_t i) {
      return slots == nullptr ? nullptr : static_cast<std::byte*>(slots) + i * slots_bytes;
    };
    for (size_t i = begin; i < end; ++i) {
      std::byte* row_slots = slots_of(i);
      uint32_t record = kInMemory;
      const bool found = ReadRow(bits[i], bits.bytes(i), &record, [&](const std::byte* row) {
        LoadRow(value_of(i), row, value_bytes);
        if (row_slots != nullptr) LoadRow(row_slots, row + layout_.slots_offset, slots_bytes);
      });
      (found ? tally.hits : tally.misses) += 1;
      if (found) {
        if (record != kInMemory) slow.push_back({static_cast<uint32_t>(i), record});
        continue;
      }
      initializer_.Fill(bits[i], value_of(i));
      if (row_slots != nullptr) {
        std::memcpy(row_slots, layout_.initial_slots.data(), slots_bytes);
      }
    }
    if (tiers_ != nullptr) {
      tally.slow_hits = slow.size();
      tally.fast_hits = tally.hits - slow.size();
      const size_t bytes = slots != nullptr ? layout_.stride : value_bytes;
      status.Set(UseSlow(bits, &slow, bytes, [&](const SlowRow& row) {
        const size_t i = row.number;
        std::memcpy(value_of(i), row.row, value_bytes);
        if (slots != nullptr) {
          std::memcpy(slots_of(i), row.row + layout_.slots_offset, slots_bytes);
        }
      }));
    }
    Count(std::move(tally));
  });
  return status.Get();
}
TFRA_CATCH_BAD_ALLOC

template <typename Keys>
void TableOf<Keys>::LookupStrings(const KeyBits& bits, size_t begin, size_t end,
                                  const Defaults& defaults, std::string* values, bool* exists,
                                  Tally* tally) const {
  const size_t dim = static_cast<size_t>(spec_.dim);
  const auto* rows = static_cast<const std::string_view*>(defaults.rows);
  std::vector<Blob*> blobs(dim);
  for (size_t i = begin; i < end; ++i) {
    uint32_t record;  // Always in memory.
    const bool found = ReadRow(bits[i], bits.bytes(i), &record, [&](const std::byte* row) {
      LoadRow(reinterpret_cast<std::byte*>(blobs.data()), row, layout_.value_bytes);
    });
    for (size_t j = 0; j < dim; ++j) {
      std::string& out = values[i * dim + j];
      if (found) {
        out = ViewOf(blobs[j]);
      } else if (defaults.kind == Defaults::kInitial) {
        out = initializer_.string_row()[j];
      } else {
        out = rows[defaults.kind == Defaults::kRowPerKey ? i * dim + j : j];
      }
    }
    if (exists != nullptr) exists[i] = found;
    (found ? tally->hits : tally->misses) += 1;
  }
}

#define TFRA_INSTANTIATE(Keys)                                                                  \
  template bool TableOf<Keys>::ContainsOne(uint64_t, std::string_view) const;                   \
  template Status TableOf<Keys>::Contains(const KeyBatch&, bool*);                              \
  template Status TableOf<Keys>::Lookup(const KeyBatch&, const Defaults&, void*, bool*);        \
  template Status TableOf<Keys>::LookupRows(const KeyBatch&, void*, void*);                     \
  template Status TableOf<Keys>::LookupMetadata(const KeyBatch&, RowMetadata*, bool*);          \
  template Status TableOf<Keys>::LookupPooled(const KeyBatch&, const Defaults&, const Pooling&, \
                                              void*);
TFRA_INSTANTIATE(IntKeys)
TFRA_INSTANTIATE(StringKeys)

}  // namespace tfra
