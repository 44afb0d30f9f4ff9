// The content of a table by the numbers its keys were made from, in all its parts: for tests that
// compare tables, or a table with a model.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>

#include "table_helpers.h"

namespace tfra::test {

using MetadataMap = std::map<int64_t, std::pair<uint32_t, uint32_t>>;  // Time and count.
using RowsMap = std::map<int64_t, std::vector<std::byte>>;             // Values and slots.

// The numbers that TestKeys were made from.
inline std::vector<int64_t> NumbersOf(const std::vector<int64_t>& ints,
                                      const StringColumn& strings) {
  std::vector<int64_t> numbers = ints;
  for (const std::string_view key : strings.views()) {
    numbers.push_back(std::stoll(std::string(key.substr(4))));
  }
  return numbers;
}

inline ExportBatch Exported(Table& table) {
  ExportBatch batch;
  CHECK_OK(table.ExportAll(&batch));
  return batch;
}

inline size_t ValueBytes(const Table& table) {
  return static_cast<size_t>(table.spec().dim) * SizeOf(table.spec().value_type);
}
inline size_t SlotBytes(const Table& table) {
  return table.slot_elements() * SizeOf(ComputeType(table.spec().value_type));
}

inline RowsMap RowsOf(Table& table) {
  const ExportBatch batch = Exported(table);
  const std::vector<int64_t> numbers = NumbersOf(batch.int_keys, batch.string_keys);
  const size_t value_bytes = ValueBytes(table), slot_bytes = SlotBytes(table);
  RowsMap rows;
  for (size_t i = 0; i < numbers.size(); ++i) {
    std::vector<std::byte> row(value_bytes + slot_bytes);
    std::memcpy(row.data(), batch.values.data() + i * value_bytes, value_bytes);
    if (slot_bytes > 0) {
      std::memcpy(row.data() + value_bytes, batch.slots.data() + i * slot_bytes, slot_bytes);
    }
    CHECK(rows.emplace(numbers[i], std::move(row)).second);
  }
  return rows;
}

inline MetadataMap MetadataOf(const std::vector<int64_t>& keys,
                              const std::vector<RowMetadata>& metadata) {
  MetadataMap map;
  CHECK_EQ(keys.size(), metadata.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    CHECK(map.emplace(keys[i], std::pair(metadata[i].time, metadata[i].count)).second);
  }
  return map;
}

// The L2 norm of a value of a floating type.
inline double NormOf(ValueType type, const std::byte* value, size_t dim) {
  return DispatchNumeric(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    double squares = 0;
    for (size_t j = 0; j < dim; ++j) {
      T element;
      std::memcpy(&element, value + j * sizeof(T), sizeof(T));
      double wide;
      if constexpr (std::is_arithmetic_v<T>) {
        wide = static_cast<double>(element);
      } else {
        wide = static_cast<float>(element);
      }
      squares += wide * wide;
    }
    return std::sqrt(squares);
  });
}

// Another table with the same rows, which came one by one in another order.
inline std::unique_ptr<Table> Twin(Table& table, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::unique_ptr<Table> twin = MakeTable(table.spec());
  CHECK_OK(twin->Reserve(static_cast<int64_t>(random() % 2000)));
  const ExportBatch batch = Exported(table);
  const std::vector<int64_t> numbers = NumbersOf(batch.int_keys, batch.string_keys);
  const size_t value_bytes = ValueBytes(table), slot_bytes = SlotBytes(table);
  std::vector<size_t> order(numbers.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  for (size_t i : order) {
    CHECK_OK(twin->Assign(TestKeys(table.spec().key_type, {numbers[i]}).batch(),
                          batch.values.data() + i * value_bytes,
                          slot_bytes > 0 ? batch.slots.data() + i * slot_bytes : nullptr,
                          &batch.metadata[i]));
  }
  return twin;
}

}  // namespace tfra::test
