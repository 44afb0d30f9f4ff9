// What the writing calls do to one row. An Op has
//
//   row_bytes()              how many bytes of a row, from its start, an update touches
//   Fetch(i)                 prefetches the caller's data for key i
//   Updates(i)               whether key i is changed if it is in the table
//   Inserts(i)               whether key i is inserted if it is missing
//   Update(i, row)           changes the row of a key that is in the table
//   Fill(i, key_bits, row)   writes a new row, except the pointer to a string key
//   kFinds                   whether updates are counted as lookups
//   kChangesRows             whether Update changes the row. If not, a tiered table need not write
//                            the row to the file again
//
// and may have
//
//   Reject(i, key_bits)      called instead of Fill if a full table rejects key i
//   next                     chains of equal keys, of which only the first is written
//   metadata                 (n), the metadata to store, or null: writes renew the metadata
//   fresh_writes()           the count of writes in the metadata of a new row; 1 without it
//
// Each thread has its own copy of the Op.
#pragma once

#include <cstring>
#include <vector>

#include "base/sync.h"
#include "kernels/dispatch.h"
#include "kernels/initializer.h"
#include "keys/key_groups.h"
#include "keys/pending_blobs.h"
#include "memory/blob.h"
#include "memory/read_guard.h"
#include "rows/row_layout.h"
#include "tfra/table.h"

namespace tfra {

// What all Ops know about the table.
struct RowContext {
  const RowLayout& layout;
  const Initializer& initializer;
  bool metadata;
  uint32_t now;
  NewKeys new_keys;

  void InitSlots(std::byte* row) const {
    if (layout.slots_bytes > 0) {
      std::memcpy(row + layout.slots_offset, layout.initial_slots.data(), layout.slots_bytes);
    }
  }
};

// Only renews the metadata. Tables with string values may use it only if new keys are dropped.
struct TouchOp {
  static constexpr bool kFinds = false;
  static constexpr bool kChangesRows = false;

  RowContext context;

  size_t row_bytes() const { return 0; }
  void Fetch(size_t) const {}
  bool Updates(size_t) const { return true; }
  bool Inserts(size_t) const { return true; }

  void Update(size_t, std::byte*) const {}

  void Fill(size_t, uint64_t key_bits, std::byte* row) const {
    context.initializer.Fill(key_bits, row);
    context.InitSlots(row);
  }
};

// Replaces values and, if they are given, slots. A new key without given slots gets initial slots.
template <size_t kBytes>  // The bytes of a value, or 0 if the compiler does not know them.
struct AssignOp {
  static constexpr bool kFinds = false;
  static constexpr bool kChangesRows = true;

  RowContext context;
  const std::byte* values;
  const std::byte* slots;       // Or null. REQUIRES: null, or kBytes is 0.
  const RowMetadata* metadata;  // Or null.
  bool insert_missing;

  size_t value_bytes() const { return kBytes > 0 ? kBytes : context.layout.value_bytes; }
  size_t row_bytes() const { return kBytes > 0 ? kBytes : context.layout.stride; }

  TFRA_INLINE void Fetch(size_t i) const {
    Prefetch<false>(values + i * value_bytes(), value_bytes());
  }
  bool Updates(size_t) const { return true; }
  bool Inserts(size_t) const { return insert_missing; }

  TFRA_INLINE void Update(size_t i, std::byte* row) const {
    const RowLayout& layout = context.layout;
    CopyBytes(row, values + i * value_bytes(), value_bytes());
    if (kBytes == 0 && slots != nullptr) {
      std::memcpy(row + layout.slots_offset, slots + i * layout.slots_bytes, layout.slots_bytes);
    }
  }

  TFRA_INLINE void Fill(size_t i, uint64_t, std::byte* row) const {
    context.InitSlots(row);
    Update(i, row);
  }
};

// Assigns string values. They are allocated before the first row changes; the strings that they
// replace are collected, to be freed later.
struct AssignStringsOp {
  static constexpr bool kFinds = false;
  static constexpr bool kChangesRows = true;

  RowContext context;
  PendingBlobs* values;         // (n, dim); empty strings are not allocated.
  const RowMetadata* metadata;  // Or null.
  bool insert_missing;
  size_t dim;
  std::vector<Retired> replaced;  // Has room for all keys of a group, so that Update cannot fail.
  int64_t stored_bytes = 0;       // By how much the bytes of the table's strings have grown.

  size_t row_bytes() const { return context.layout.value_bytes; }
  void Fetch(size_t) const {}
  bool Updates(size_t) const { return true; }
  bool Inserts(size_t) const { return insert_missing; }

  void Write(size_t i, std::byte* row) {
    for (size_t j = 0; j < dim; ++j) {
      Blob* blob = values->Take(i * dim + j);
      if (blob != nullptr) stored_bytes += static_cast<int64_t>(blob->allocated_bytes());
      StoreBlob(row + j * sizeof(Blob*), blob);
    }
  }

  void Update(size_t i, std::byte* row) {
    for (size_t j = 0; j < dim; ++j) {
      Blob* old = LoadBlob(row + j * sizeof(Blob*));
      if (old == nullptr) continue;
      stored_bytes -= static_cast<int64_t>(old->allocated_bytes());
      replaced.push_back(Blob::AsRetired(old));
    }
    Write(i, row);
  }

  void Fill(size_t i, uint64_t, std::byte* row) { Write(i, row); }
};

// Adds a delta to the value if the caller expects the key to exist, and inserts the delta as the
// value if the caller expects the key to be missing: see TableTraining::Accumulate.
struct AccumulateOp {
  static constexpr bool kFinds = false;
  static constexpr bool kChangesRows = true;

  using Add = void (*)(std::byte* value, const std::byte* delta, size_t dim);

  RowContext context;
  const std::byte* deltas;
  const bool* exists;
  Add add;
  size_t dim;

  size_t row_bytes() const { return context.layout.value_bytes; }
  TFRA_INLINE void Fetch(size_t i) const {
    Prefetch<false>(deltas + i * context.layout.value_bytes, context.layout.value_bytes);
  }
  bool Updates(size_t i) const { return exists[i]; }
  bool Inserts(size_t i) const { return !exists[i]; }
  // With kAdmit, the caller updates the key next, and that update counts as the write.
  uint32_t fresh_writes() const { return context.new_keys == NewKeys::kAdmit ? 0 : 1; }

  void Update(size_t i, std::byte* row) const {
    add(row, deltas + i * context.layout.value_bytes, dim);
  }

  void Fill(size_t i, uint64_t, std::byte* row) const {
    std::memcpy(row, deltas + i * context.layout.value_bytes, context.layout.value_bytes);
    context.InitSlots(row);
  }
};

// The function that adds deltas of a value type to a row.
AccumulateOp::Add AddFor(ValueType type);

// Adds deltas to the value and to the slots. A new key starts from its initial row.
struct AddToRowOp {
  static constexpr bool kFinds = false;
  static constexpr bool kChangesRows = true;

  RowContext context;
  const std::byte* deltas;
  const std::byte* slots;  // Or null.
  AccumulateOp::Add add;
  AccumulateOp::Add add_slots;
  size_t dim;
  size_t slot_elements;

  size_t row_bytes() const { return context.layout.stride; }
  void Fetch(size_t i) const {
    Prefetch<false>(deltas + i * context.layout.value_bytes, context.layout.value_bytes);
  }
  bool Updates(size_t) const { return true; }
  bool Inserts(size_t) const { return true; }

  void Update(size_t i, std::byte* row) const {
    const RowLayout& layout = context.layout;
    add(row, deltas + i * layout.value_bytes, dim);
    if (slots != nullptr) {
      add_slots(row + layout.slots_offset, slots + i * layout.slots_bytes, slot_elements);
    }
  }

  void Fill(size_t i, uint64_t key_bits, std::byte* row) const {
    context.initializer.Fill(key_bits, row);
    context.InitSlots(row);
    Update(i, row);
  }
};

// One step of the update rule, by the sum of the gradients of equal keys. A new key starts from its
// initial row.
struct GradientOp {
  static constexpr bool kFinds = false;
  static constexpr bool kChangesRows = true;

  // sum[0 .. dim) = or += gradient, widened to the compute type.
  using Sum = void (*)(std::byte* sum, const std::byte* gradient, size_t dim, bool add);

  RowContext context;
  const RowUpdater& updater;
  const uint32_t* next;  // Chains of equal keys: see KeyGroups::ExtractDuplicates.
  const std::byte* gradients;
  size_t gradient_bytes;  // The bytes of one gradient.
  bool in_place;          // Gradients have the compute type: a single one need not be widened.
  Sum sum;
  size_t dim;
  std::vector<double> sum_buffer;  // Room for dim compute elements.
  std::vector<double> scratch;

  size_t row_bytes() const { return context.layout.stride; }
  TFRA_INLINE void Fetch(size_t i) const {
    Prefetch<false>(gradients + i * gradient_bytes, gradient_bytes);
    FetchChained(next[i]);
  }
  // REQUIRES: k is the position of a key, or kEnd.
  TFRA_INLINE void FetchChained(uint32_t k) const {
    if (k != KeyGroups::kEnd) Prefetch<false>(gradients + k * gradient_bytes, gradient_bytes);
  }
  bool Updates(size_t) const { return true; }
  bool Inserts(size_t) const { return true; }

  void Update(size_t i, std::byte* row) {
    const std::byte* gradient = gradients + i * gradient_bytes;
    auto* buffer = reinterpret_cast<std::byte*>(sum_buffer.data());
    if (!in_place || next[i] != KeyGroups::kEnd) {
      sum(buffer, gradient, dim, false);
      // Gradients of equal keys are not adjacent in memory: prefetch along the chain.
      constexpr int kAhead = 6;
      const auto after = [&](uint32_t k) { return k == KeyGroups::kEnd ? k : next[k]; };
      uint32_t ahead = next[i];
      for (int step = 0; step < kAhead; ++step) FetchChained(ahead = after(ahead));
      for (uint32_t k = next[i]; k != KeyGroups::kEnd; k = next[k]) {
        FetchChained(ahead = after(ahead));
        sum(buffer, gradients + k * gradient_bytes, dim, true);
      }
      gradient = buffer;
    }
    updater.Apply(row, row + context.layout.slots_offset, gradient,
                  reinterpret_cast<std::byte*>(scratch.data()));
  }

  void Fill(size_t i, uint64_t key_bits, std::byte* row) {
    context.initializer.Fill(key_bits, row);
    context.InitSlots(row);
    Update(i, row);
  }
};

// The values of missing keys: one row for all keys, one row for each key, or the initial value.
struct DefaultRows {
  DefaultRows(const Defaults& defaults, const Initializer& initial, size_t row_bytes)
      : initializer(initial),
        rows(defaults.kind == Defaults::kInitial ? nullptr
                                                 : static_cast<const std::byte*>(defaults.rows)),
        stride(defaults.kind == Defaults::kRowPerKey ? row_bytes : 0),
        bytes(row_bytes) {}

  const Initializer& initializer;
  const std::byte* rows;  // Null: the initial value.
  size_t stride;          // Bytes from the row of one key to that of the next; 0: one row for all.
  size_t bytes;

  void Copy(size_t i, uint64_t key_bits, std::byte* to) const {
    if (rows == nullptr) {
      initializer.Fill(key_bits, to);
    } else {
      std::memcpy(to, rows + i * stride, bytes);
    }
  }
};

struct FindOrInsertOp {
  static constexpr bool kFinds = true;
  static constexpr bool kChangesRows = false;

  RowContext context;
  DefaultRows defaults;
  std::byte* values;
  bool* exists;  // Or null.

  size_t row_bytes() const { return context.layout.value_bytes; }
  void Fetch(size_t) const {}
  bool Updates(size_t) const { return true; }
  bool Inserts(size_t) const { return true; }

  void Report(size_t i, bool found) const {
    if (exists != nullptr) exists[i] = found;
  }
  TFRA_INLINE void Update(size_t i, std::byte* row) const {
    CopyBytes(values + i * defaults.bytes, row, defaults.bytes);
    Report(i, true);
  }
  void Fill(size_t i, uint64_t key_bits, std::byte* row) const {
    Reject(i, key_bits);
    std::memcpy(row, values + i * defaults.bytes, defaults.bytes);
    context.InitSlots(row);
  }
  void Reject(size_t i, uint64_t key_bits) const {
    defaults.Copy(i, key_bits, values + i * defaults.bytes);
    Report(i, false);
  }
};

// FindOrInsertOp for string values. The strings of missing keys are allocated before the first row
// changes. Strings that are found are copied later, by the caller, because copying may fail.
struct FindOrInsertStringsOp {
  static constexpr bool kFinds = true;
  static constexpr bool kChangesRows = false;

  RowContext context;
  PendingBlobs* defaults;  // (n, dim); empty strings are not allocated.
  Blob** found;            // (n, dim)
  bool* exists;            // (n), all false at first.
  size_t dim;
  int64_t stored_bytes = 0;

  size_t row_bytes() const { return context.layout.value_bytes; }
  void Fetch(size_t) const {}
  bool Updates(size_t) const { return true; }
  bool Inserts(size_t) const { return true; }

  void Update(size_t i, std::byte* row) const {
    for (size_t j = 0; j < dim; ++j) found[i * dim + j] = LoadBlob(row + j * sizeof(Blob*));
    exists[i] = true;
  }
  void Fill(size_t i, uint64_t, std::byte* row) {
    for (size_t j = 0; j < dim; ++j) {
      Blob* blob = defaults->Take(i * dim + j);
      if (blob != nullptr) stored_bytes += static_cast<int64_t>(blob->allocated_bytes());
      StoreBlob(row + j * sizeof(Blob*), blob);
    }
  }
};

// The sum of the squares of a value's elements. REQUIRES: a floating type.
using SquaredNorm = double (*)(const std::byte* value, size_t dim);
SquaredNorm SquaredNormFor(ValueType type);

// The function that widens gradients of a type to the compute type of the values and sums them.
GradientOp::Sum SumFor(ValueType gradient_type, ValueType value_type);

}  // namespace tfra
