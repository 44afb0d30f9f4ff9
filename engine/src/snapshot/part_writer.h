// Writes one file of a snapshot, block by block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "snapshot/block.h"
#include "snapshot/files.h"
#include "tfra/content.h"

namespace tfra {

class PartWriter {
 public:
  // path: of a file that is not there yet. part: its number in the snapshot.
  PartWriter(std::string path, uint64_t snapshot, uint32_t part, const RowFormat& format);

  // Makes the file. Call this once, before anything else.
  Status Open();

  // Memory for the rows of the next block, for tables whose keys and values are numbers. Fill it
  // from the first row on, with `room` rows at most, and say in Commit how many there are.
  RowArrays Room();
  Status Commit(size_t rows);

  // Rows with all columns that the format has. They are divided into blocks.
  Status WriteRows(const RowColumns& rows);
  Status WriteRemoved(const KeyBatch& keys);
  Status WriteWaiting(const KeyBatch& keys, const RowMetadata* seen);
  Status WriteFilter(const std::byte* filter, size_t bytes);

  // Ends the file, and brings it to the disk.
  Status Finish();

  uint64_t rows() const { return rows_; }
  uint64_t removed() const { return removed_; }
  uint64_t blocks() const { return blocks_; }
  uint64_t bytes() const { return bytes_; }

 private:
  // Begins a block.
  void Begin();
  // Adds a column.
  void Add(const void* from, size_t bytes);
  void AddStrings(const std::string_view* strings, size_t count);
  void AddKeys(const KeyBatch& keys, size_t from, size_t count);
  // Writes the block that was made.
  Status Flush(BlockKind kind, size_t rows);

  const std::string path_;
  const uint64_t snapshot_;
  const uint32_t part_;
  const RowFormat format_;
  const size_t room_;  // Rows in a block of numbers.
  File file_;
  std::vector<std::byte> block_;  // The header, and the columns so far.
  uint64_t rows_ = 0, removed_ = 0, blocks_ = 0, bytes_ = 0;
};

}  // namespace tfra
