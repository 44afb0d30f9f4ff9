#include "snapshot/part_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "base/crc32c.h"
#include "base/errors.h"

namespace tfra {
namespace {

// Bytes of a row in each column, in the order of the columns. 0: there is no such column.
using Widths = std::array<size_t, 5>;

Widths WidthsOf(const RowFormat& format) {
  return {sizeof(int64_t), format.value_bytes(), format.slot_bytes,
          format.metadata ? sizeof(RowMetadata) : 0, format.scores ? sizeof(uint64_t) : 0};
}

// Where each column starts in a block of so many rows, and where the last one ends.
std::array<size_t, 6> StartsOf(const Widths& widths, size_t rows) {
  std::array<size_t, 6> starts{sizeof(BlockHeader)};
  for (size_t c = 0; c < widths.size(); ++c) {
    starts[c + 1] = RoundUp(starts[c] + widths[c] * rows, kColumnAlign);
  }
  return starts;
}

size_t RoomOf(const RowFormat& format) {
  if (format.has_string_keys() || format.has_string_values()) return 0;
  const Widths widths = WidthsOf(format);
  size_t width = 0;
  for (const size_t each : widths) width += each;
  // Columns are padded.
  const size_t fit = (kMaxBlockBytes - widths.size() * kColumnAlign) / width;
  return std::clamp<size_t>(fit, 1, kMaxBlockRows);
}

// Calls write(first, count) for one block after the other, with as many of n rows as fit.
// bytes_of(i): what row i takes in all columns.
template <typename BytesOf, typename Write>
Status InBlocks(size_t n, BytesOf&& bytes_of, Write&& write) {
  for (size_t first = 0, count; first < n; first += count) {
    size_t bytes = 8 * kColumnAlign;  // Columns are padded. There are seven at most.
    for (count = 0; first + count < n && count < kMaxBlockRows; ++count) {
      bytes += bytes_of(first + count);
      if (bytes > kMaxBlockBytes && count > 0) break;
    }
    TFRA_RETURN_IF_ERROR(write(first, count));
  }
  return Status::Ok();
}

size_t BytesOfStrings(const std::string_view* strings, size_t count) {
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) bytes += sizeof(uint32_t) + strings[i].size();
  return bytes;
}

size_t BytesOfKey(const KeyBatch& keys, size_t i) {
  return keys.type == KeyType::kString ? BytesOfStrings(keys.strings + i, 1) : sizeof(int64_t);
}

}  // namespace

PartWriter::PartWriter(std::string path, uint64_t snapshot, uint32_t part, const RowFormat& format)
    : path_(std::move(path)),
      snapshot_(snapshot),
      part_(part),
      format_(format),
      room_(RoomOf(format)) {}

Status PartWriter::Open() try {
  block_.reserve(sizeof(BlockHeader) + kMaxBlockBytes + kBlockAlign);
  return File::Create(path_, &file_);
}
TFRA_CATCH_BAD_ALLOC

RowArrays PartWriter::Room() {
  const auto starts = StartsOf(WidthsOf(format_), room_);
  block_.resize(starts.back());
  const auto column = [&](size_t c) {
    return starts[c] == starts[c + 1] ? nullptr : block_.data() + starts[c];
  };
  return {.room = room_,
          .keys = reinterpret_cast<int64_t*>(column(0)),
          .values = column(1),
          .slots = column(2),
          .metadata = reinterpret_cast<RowMetadata*>(column(3)),
          .scores = reinterpret_cast<uint64_t*>(column(4))};
}

Status PartWriter::Commit(size_t rows) {
  if (rows == 0) {
    block_.clear();
    return Status::Ok();
  }
  const Widths widths = WidthsOf(format_);
  const auto from = StartsOf(widths, room_), to = StartsOf(widths, rows);
  for (size_t c = 0; c < widths.size(); ++c) {
    const size_t bytes = widths[c] * rows;
    std::memmove(block_.data() + to[c], block_.data() + from[c], bytes);
    std::memset(block_.data() + to[c] + bytes, 0, to[c + 1] - to[c] - bytes);
  }
  block_.resize(to.back());
  return Flush(BlockKind::kRows, rows);
}

Status PartWriter::WriteRows(const RowColumns& rows) try {
  const Widths widths = WidthsOf(format_);
  const void* const columns[] = {nullptr, rows.values, rows.slots, rows.metadata, rows.scores};
  const auto* strings =
      format_.has_string_values() ? static_cast<const std::string_view*>(rows.values) : nullptr;
  const auto bytes_of = [&](size_t i) {
    const size_t bytes = BytesOfKey(rows.keys, i) + widths[1] + widths[2] + widths[3] + widths[4];
    return strings == nullptr ? bytes
                              : bytes + BytesOfStrings(strings + i * format_.dim, format_.dim);
  };
  return InBlocks(rows.keys.size, bytes_of, [&](size_t first, size_t count) {
    Begin();
    AddKeys(rows.keys, first, count);
    if (strings != nullptr) AddStrings(strings + first * format_.dim, count * format_.dim);
    for (size_t c = 1; c < widths.size(); ++c) {
      if (widths[c] == 0) continue;
      Add(static_cast<const std::byte*>(columns[c]) + first * widths[c], count * widths[c]);
    }
    return Flush(BlockKind::kRows, count);
  });
}
TFRA_CATCH_BAD_ALLOC

Status PartWriter::WriteRemoved(const KeyBatch& keys) try {
  const auto bytes_of = [&](size_t i) { return BytesOfKey(keys, i); };
  return InBlocks(keys.size, bytes_of, [&](size_t first, size_t count) {
    Begin();
    AddKeys(keys, first, count);
    return Flush(BlockKind::kRemoved, count);
  });
}
TFRA_CATCH_BAD_ALLOC

Status PartWriter::WriteWaiting(const KeyBatch& keys, const RowMetadata* seen) try {
  const auto bytes_of = [&](size_t i) { return BytesOfKey(keys, i) + sizeof(RowMetadata); };
  return InBlocks(keys.size, bytes_of, [&](size_t first, size_t count) {
    Begin();
    AddKeys(keys, first, count);
    Add(seen + first, count * sizeof(RowMetadata));
    return Flush(BlockKind::kWaiting, count);
  });
}
TFRA_CATCH_BAD_ALLOC

Status PartWriter::WriteFilter(const std::byte* filter, size_t bytes) try {
  for (size_t done = 0; done < bytes; done += kMaxBlockBytes) {
    const size_t count = std::min(bytes - done, kMaxBlockBytes);
    Begin();
    Add(filter + done, count);
    TFRA_RETURN_IF_ERROR(Flush(BlockKind::kFilter, count));
  }
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status PartWriter::Finish() {
  Begin();
  TFRA_RETURN_IF_ERROR(Flush(BlockKind::kEnd, 0));
  return file_.Finish();
}

void PartWriter::Begin() { block_.assign(sizeof(BlockHeader), std::byte{0}); }

void PartWriter::Add(const void* from, size_t bytes) {
  const auto* start = static_cast<const std::byte*>(from);
  block_.insert(block_.end(), start, start + bytes);
  block_.resize(RoundUp(block_.size(), kColumnAlign));
}

void PartWriter::AddStrings(const std::string_view* strings, size_t count) {
  std::vector<uint32_t> ends(count);
  uint64_t end = 0;
  for (size_t i = 0; i < count; ++i) ends[i] = static_cast<uint32_t>(end += strings[i].size());
  Add(ends.data(), count * sizeof(uint32_t));
  for (size_t i = 0; i < count; ++i) {
    const auto* start = reinterpret_cast<const std::byte*>(strings[i].data());
    block_.insert(block_.end(), start, start + strings[i].size());
  }
  block_.resize(RoundUp(block_.size(), kColumnAlign));
}

void PartWriter::AddKeys(const KeyBatch& keys, size_t from, size_t count) {
  if (format_.has_string_keys()) {
    AddStrings(keys.strings + from, count);
  } else {
    Add(keys.ints + from, count * sizeof(int64_t));
  }
}

Status PartWriter::Flush(BlockKind kind, size_t rows) try {
  const size_t bytes = block_.size() - sizeof(BlockHeader);
  if (bytes > std::numeric_limits<uint32_t>::max()) {
    return Status::InvalidArgument("expected rows of less than 4 GiB, received one of " +
                                   std::to_string(bytes) + " bytes");
  }
  BlockHeader header{};
  std::memcpy(header.magic, kBlockMagic, sizeof(kBlockMagic));
  header.kind = kind;
  header.rows = static_cast<uint32_t>(rows);
  header.number = blocks_;
  header.bytes = bytes;
  header.snapshot = snapshot_;
  header.part = part_;
  header.rows_before = rows_;
  header.columns_sum = Crc32c(block_.data() + sizeof(header), bytes);
  header.header_sum = Crc32c(&header, kSummedHeader);
  std::memcpy(block_.data(), &header, sizeof(header));
  block_.resize(RoundUp(block_.size(), kBlockAlign));
  TFRA_RETURN_IF_ERROR(file_.Write(block_.data(), block_.size()));
  bytes_ += block_.size();
  ++blocks_;
  if (kind == BlockKind::kRows) rows_ += rows;
  if (kind == BlockKind::kRemoved) removed_ += rows;
  block_.clear();
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

}  // namespace tfra
