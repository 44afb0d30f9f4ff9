// Reads one file of a snapshot, block by block. Nothing in the file is believed before it was
// checked: files come from strangers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "snapshot/block.h"
#include "snapshot/files.h"
#include "tfra/content.h"

namespace tfra {

// A block that was read. What it points to is valid until the next one is read.
struct Block {
  BlockKind kind = BlockKind::kEnd;
  // kRows: all columns that the format has. kRemoved: keys. kWaiting: keys, and as metadata when
  // and how often each was seen.
  RowColumns rows{.keys = KeyBatch(static_cast<const int64_t*>(nullptr), 0)};
  // kFilter: bytes of it.
  const std::byte* filter = nullptr;
  size_t filter_bytes = 0;
};

class PartReader {
 public:
  PartReader(std::string path, uint64_t snapshot, uint32_t part, const RowFormat& format)
      : path_(std::move(path)), snapshot_(snapshot), part_(part), format_(format) {}

  // Opens the file. Call this once, before anything else.
  Status Open() { return File::Open(path_, &file_); }

  // The next block; after the last one kEnd, again and again. kInvalidArgument, naming file and
  // block, if it is not the one that was written there. kIoError: the file can't be read.
  Status Next(Block* block);

  // A failure that names the file and the block that is next.
  Status Damaged(const std::string& what) const;

  // Bytes, blocks and rows so far; after kEnd, of the file.
  uint64_t bytes() const { return offset_; }
  uint64_t blocks() const { return number_; }
  uint64_t rows() const { return rows_; }
  uint64_t removed() const { return removed_; }

 private:
  // The columns of a block, from the first one on.
  class Columns;

  Status ReadHeader(BlockHeader* header);
  Status ReadColumns(const BlockHeader& header);
  Status Parse(const BlockHeader& header, Block* block);
  Status CheckNumbers(const Block& block) const;

  const std::string path_;
  const uint64_t snapshot_;
  const uint32_t part_;
  const RowFormat format_;
  File file_;
  uint64_t offset_ = 0;
  uint64_t number_ = 0, rows_ = 0, removed_ = 0;
  bool ended_ = false;
  std::vector<uint64_t> columns_;  // Words, so that columns are aligned.
  std::vector<std::string_view> key_views_, value_views_;
};

}  // namespace tfra
