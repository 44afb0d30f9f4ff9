// The content of tables in files of blocks: docs/snapshot-format.md is the format.
//
// This is the part of snapshots that handles rows. Which files belong together, their manifest and
// their folder are the business of the caller.
#pragma once

#include <cstdint>
#include <string>

#include "tfra/content.h"

namespace tfra {

// A file of a snapshot.
struct PartName {
  std::string path;
  uint64_t snapshot = 0;  // The id of the snapshot,
  uint32_t part = 0;      // and the number of the file in it.
};

// What is in it.
struct PartFigures {
  uint64_t bytes = 0;
  uint64_t blocks = 0;
  uint64_t rows = 0;
  uint64_t removed = 0;  // Keys.

  bool operator==(const PartFigures&) const = default;
};

// Writes all that a reader gives to a new file, and brings it to the disk. The file has the waiting
// keys and the filter of the state; its numbers (epoch, epoch_steps, step) are not in the file, but
// in `numbers`, unless that is null. kIoError, kStorageFull: the file may be there, but is no whole
// one.
Status WritePart(const PartName& name, ContentReader* reader, ContentState* numbers,
                 PartFigures* figures);

// Gives what is in a file to a writer, which is not finished. spec: that of the table that the file
// was written from. numbers: those that WritePart gave; null if the content has no state.
// kInvalidArgument, with the name of the file and the number of the block, if the file is not what
// was written; the blocks before were given to the writer then. kIoError: it can't be read.
Status ReadPart(const PartName& name, const TableSpec& spec, const ContentState* numbers,
                ContentWriter* writer, PartFigures* figures);

// The checksum of these files, and of their manifest: CRC32C. before: that of the bytes before.
uint32_t Crc32c(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace tfra
