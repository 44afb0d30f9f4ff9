#include "snapshot/part_reader.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/crc32c.h"
#include "base/errors.h"

namespace tfra {

// Takes one column after the other. Each call fails if the rest of the block is too short.
class PartReader::Columns {
 public:
  Columns(const std::byte* start, size_t bytes) : at_(start), left_(bytes) {}

  bool Take(size_t bytes, const void** column) {
    const size_t padded = RoundUp(bytes, kColumnAlign);
    if (padded > left_) return false;
    *column = at_;
    at_ += padded;
    left_ -= padded;
    return true;
  }
  // Columns of strings have the place where each ends, and then the text.
  bool TakeStrings(size_t count, std::vector<std::string_view>* strings) {
    const void* column;
    if (!Take(count * sizeof(uint32_t), &column)) return false;
    const auto* ends = static_cast<const uint32_t*>(column);
    uint32_t end = 0;
    for (size_t i = 0; i < count; ++i) {
      if (ends[i] < end) return false;
      end = ends[i];
    }
    if (!Take(end, &column)) return false;
    const auto* text = static_cast<const char*>(column);
    strings->resize(count);
    uint32_t start = 0;
    for (size_t i = 0; i < count; ++i) {
      (*strings)[i] = std::string_view(text + start, ends[i] - start);
      start = ends[i];
    }
    return true;
  }
  bool empty() const { return left_ == 0; }

 private:
  const std::byte* at_;
  size_t left_;
};

Status PartReader::Damaged(const std::string& what) const {
  return Status::InvalidArgument(path_ + ": block " + std::to_string(number_) + " " + what);
}

Status PartReader::Next(Block* block) try {
  *block = Block();
  if (ended_) return Status::Ok();
  BlockHeader header;
  TFRA_RETURN_IF_ERROR(ReadHeader(&header));
  TFRA_RETURN_IF_ERROR(ReadColumns(header));
  TFRA_RETURN_IF_ERROR(Parse(header, block));
  TFRA_RETURN_IF_ERROR(CheckNumbers(*block));
  offset_ += RoundUp(sizeof(header) + header.bytes, kBlockAlign);
  ++number_;
  if (header.kind == BlockKind::kRows) rows_ += header.rows;
  if (header.kind == BlockKind::kRemoved) removed_ += header.rows;
  ended_ = header.kind == BlockKind::kEnd;
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status PartReader::ReadHeader(BlockHeader* header) {
  const uint64_t left = file_.size() - offset_;
  if (left < kBlockAlign) return Damaged("is missing: the file is too short");
  TFRA_RETURN_IF_ERROR(file_.Read(offset_, header, sizeof(*header)));
  if (std::memcmp(header->magic, kBlockMagic, sizeof(kBlockMagic)) != 0 ||
      header->header_sum != Crc32c(header, kSummedHeader)) {
    return Damaged("has a damaged header");
  }
  if (header->snapshot != snapshot_) return Damaged("belongs to another snapshot");
  if (header->part != part_) {
    return Damaged("belongs to part " + std::to_string(header->part) + " of the snapshot");
  }
  if (header->number != number_ || header->rows_before != rows_) {
    return Damaged("is the block " + std::to_string(header->number) + " of the file");
  }
  if (header->bytes > left - sizeof(*header) || header->bytes % kColumnAlign != 0) {
    return Damaged("has a wrong size");
  }
  if (header->bytes > kMaxBlockBytes && header->rows != 1) return Damaged("is too large");
  return Status::Ok();
}

Status PartReader::ReadColumns(const BlockHeader& header) {
  // Up to the next block: zeros, which no checksum covers.
  const uint64_t padded = RoundUp(sizeof(header) + header.bytes, kBlockAlign) - sizeof(header);
  if (padded > file_.size() - offset_ - sizeof(header)) return Damaged("has a wrong size");
  columns_.resize(padded / sizeof(uint64_t));
  TFRA_RETURN_IF_ERROR(file_.Read(offset_ + sizeof(header), columns_.data(), padded));
  if (header.columns_sum != Crc32c(columns_.data(), header.bytes)) return Damaged("is damaged");
  const auto* end = reinterpret_cast<const std::byte*>(columns_.data()) + padded;
  if (std::any_of(end - (padded - header.bytes), end,
                  [](std::byte b) { return b != std::byte{0}; })) {
    return Damaged("is damaged after its end");
  }
  return Status::Ok();
}

Status PartReader::Parse(const BlockHeader& header, Block* block) {
  const size_t n = header.rows;
  Columns columns(reinterpret_cast<const std::byte*>(columns_.data()), header.bytes);
  const auto take = [&](size_t bytes, auto** column) {
    const void* start;
    if (!columns.Take(bytes, &start)) return false;
    *column = static_cast<std::remove_pointer_t<decltype(column)>>(start);
    return true;
  };
  const auto take_keys = [&] {
    if (format_.has_string_keys()) {
      if (!columns.TakeStrings(n, &key_views_)) return false;
      block->rows.keys = KeyBatch(key_views_.data(), n);
      return true;
    }
    const int64_t* keys;
    if (!take(n * sizeof(int64_t), &keys)) return false;
    block->rows.keys = KeyBatch(keys, n);
    return true;
  };
  const auto take_values = [&] {
    if (!format_.has_string_values()) return take(n * format_.value_bytes(), &block->rows.values);
    if (!columns.TakeStrings(n * format_.dim, &value_views_)) return false;
    block->rows.values = value_views_.data();
    return true;
  };
  bool fits = header.zero == 0;
  block->kind = header.kind;
  switch (header.kind) {
    case BlockKind::kRows:
      fits = fits && n > 0 && n <= kMaxBlockRows && take_keys() && take_values();
      if (format_.slot_bytes > 0) fits = fits && take(n * format_.slot_bytes, &block->rows.slots);
      if (format_.metadata) fits = fits && take(n * sizeof(RowMetadata), &block->rows.metadata);
      if (format_.scores) fits = fits && take(n * sizeof(uint64_t), &block->rows.scores);
      break;
    case BlockKind::kRemoved:
      fits = fits && n > 0 && n <= kMaxBlockRows && take_keys();
      break;
    case BlockKind::kWaiting:
      fits = fits && n > 0 && n <= kMaxBlockRows && take_keys() &&
             take(n * sizeof(RowMetadata), &block->rows.metadata);
      break;
    case BlockKind::kFilter:
      fits = fits && n > 0 && n <= kMaxBlockBytes && take(n, &block->filter);
      block->filter_bytes = n;
      break;
    case BlockKind::kEnd:
      fits = fits && n == 0;
      if (fits && offset_ + kBlockAlign != file_.size()) {
        return Damaged("is the last one, but the file goes on");
      }
      break;
    default:
      return Damaged("is of an unknown kind, " +
                     std::to_string(static_cast<uint32_t>(header.kind)));
  }
  if (!fits || !columns.empty()) {
    return Damaged("has other columns than rows of this table");
  }
  return Status::Ok();
}

// Numbers that a table could not have written.
Status PartReader::CheckNumbers(const Block& block) const {
  const RowColumns& rows = block.rows;
  const size_t n = rows.keys.size;
  if (format_.key_type == KeyType::kInt32 &&
      std::any_of(rows.keys.ints, rows.keys.ints + n, [](int64_t key) {
        return key < std::numeric_limits<int32_t>::min() ||
               key > std::numeric_limits<int32_t>::max();
      })) {
    return Damaged("has a key that is no int32");
  }
  if (format_.value_type == ValueType::kBool && rows.values != nullptr) {
    const auto* values = static_cast<const uint8_t*>(rows.values);
    if (std::any_of(values, values + n * format_.dim, [](uint8_t value) { return value > 1; })) {
      return Damaged("has a value that is no bool");
    }
  }
  if (block.kind == BlockKind::kWaiting &&
      std::any_of(rows.metadata, rows.metadata + n,
                  [](const RowMetadata& seen) { return seen.count == 0; })) {
    return Damaged("has a waiting key that was never seen");
  }
  return Status::Ok();
}

}  // namespace tfra
