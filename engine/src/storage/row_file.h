// The row file of a tiered table, as bytes by offset. All file access of the engine is here, so
// that tests can make any of it fail.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tfra/status.h"

namespace tfra {

class RowFile {
 public:
  RowFile() = default;
  ~RowFile();
  RowFile(const RowFile&) = delete;
  RowFile& operator=(const RowFile&) = delete;

  // Makes a file without a name in `directory` (empty: $TMPDIR, or /tmp). It vanishes with this
  // object, or when the process ends in any way. Call this once, before anything else.
  Status Open(const std::string& directory);

  // Any thread may call the rest, but only in the process that made the file. A forked child shares
  // the file, but does not know what its parent changes in it. So in a child these calls fail with
  // kIoError, and destroying the object does not affect the parent's file.

  // Whether this process may use the file.
  Status CheckProcess() const;

  // Fills `to`. REQUIRES: the bytes are within size().
  Status Read(uint64_t offset, std::byte* to, size_t bytes);
  // After a failure some of the bytes may have been written.
  Status Write(uint64_t offset, const std::byte* from, size_t bytes);
  // Sets the size. Growth allocates disk space at once, if the file system can do that.
  // REQUIRES: no two threads at the same time.
  Status Resize(uint64_t bytes);

  uint64_t size() const { return size_.load(std::memory_order_relaxed); }
  uint64_t reads() const { return reads_.load(std::memory_order_relaxed); }
  uint64_t writes() const { return writes_.load(std::memory_order_relaxed); }
  uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }
  uint64_t bytes_written() const { return bytes_written_.load(std::memory_order_relaxed); }

 private:
  int file_ = -1;
  uint64_t forks_ = 0;  // The number of forks when the file was made: see CountFork.
  std::string directory_;
  std::atomic<uint64_t> size_{0};
  std::atomic<uint64_t> reads_{0}, writes_{0}, bytes_read_{0}, bytes_written_{0};
};

// Called in the child of a fork by process/fork.cc: the child cannot use files of its parent.
void CountFork();

// For tests: makes all calls of one kind fail after `successes` more of them. A write that fails
// writes half of its bytes. A negative number ends this.
enum class IoKind : uint8_t { kRead, kWrite, kResize };
void FailIoForTesting(IoKind kind, int64_t successes);

}  // namespace tfra
