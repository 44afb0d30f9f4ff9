// Blocks, which the files of a snapshot consist of: see docs/snapshot-format.md.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "tfra/spec.h"

namespace tfra {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

inline constexpr size_t kBlockAlign = 4096;  // Where blocks start in their file.
inline constexpr size_t kColumnAlign = 64;   // Where columns start in their block.
inline constexpr uint32_t kMaxBlockRows = 4096;
inline constexpr size_t kMaxBlockBytes = size_t{1} << 20;  // Of the columns of several rows.

inline constexpr char kBlockMagic[8] = {'T', 'F', 'R', 'A', 'B', 'L', 'C', 'K'};

enum class BlockKind : uint32_t { kRows = 1, kRemoved, kWaiting, kFilter, kEnd };

struct BlockHeader {
  char magic[8];
  BlockKind kind;
  uint32_t rows;      // Or bytes of the filter.
  uint64_t number;    // Of the block in its file.
  uint64_t bytes;     // Of the columns.
  uint64_t snapshot;  // The id of the snapshot,
  uint32_t part;      // and the number of the file in it.
  uint32_t zero;
  uint64_t rows_before;  // In the blocks of rows of this file before this one.
  uint32_t columns_sum;  // Crc32c of the columns,
  uint32_t header_sum;   // and of the header up to here.
};
static_assert(sizeof(BlockHeader) == 64);
inline constexpr size_t kSummedHeader = sizeof(BlockHeader) - sizeof(uint32_t);

constexpr uint64_t RoundUp(uint64_t bytes, uint64_t align) {
  return (bytes + align - 1) / align * align;
}

// The columns that the rows of a table have in a file.
struct RowFormat {
  KeyType key_type = KeyType::kInt64;
  ValueType value_type = ValueType::kFloat32;
  size_t dim = 1;
  size_t slot_bytes = 0;  // Of all slots of a row.
  bool metadata = false;
  bool scores = false;

  // kInvalidArgument if the rule does not fit the values.
  static Status Of(const TableSpec& spec, RowFormat* format);

  bool has_string_keys() const { return key_type == KeyType::kString; }
  bool has_string_values() const { return value_type == ValueType::kString; }
  // Bytes of a row in the column of values, if these are numbers.
  size_t value_bytes() const { return has_string_values() ? 0 : dim * SizeOf(value_type); }
};

}  // namespace tfra
