// The file of a tiered table: bytes by offset. All reading and writing of files in the engine is
// here, so that tests can make any of it fail.
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

  // Makes a file without a name in `directory` (empty: $TMPDIR, or /tmp): it goes with this object,
  // or with the process, however that ends. Once, before anything else.
  Status Open(const std::string& directory);

  // The rest may be called by any thread, but only of the process that made the file: children that
  // were forked from it share the file and know nothing of each other's changes. To them it is an
  // error (kIoError), and destroying the object leaves the file to the others.

  // Whether this process may use the file.
  Status CheckProcess() const;

  // Fills `to`. REQUIRES: the bytes are within size().
  Status Read(uint64_t offset, std::byte* to, size_t bytes);
  // After a failure some of the bytes may have been written.
  Status Write(uint64_t offset, const std::byte* from, size_t bytes);
  // Sets the size. A larger one takes room on the disk at once, where the file system can do that.
  // REQUIRES: no two threads at the same time.
  Status Resize(uint64_t bytes);

  uint64_t size() const { return size_.load(std::memory_order_relaxed); }
  uint64_t reads() const { return reads_.load(std::memory_order_relaxed); }
  uint64_t writes() const { return writes_.load(std::memory_order_relaxed); }
  uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }
  uint64_t bytes_written() const { return bytes_written_.load(std::memory_order_relaxed); }

 private:
  int file_ = -1;
  uint64_t forks_ = 0;  // Between this process and the first, when the file was made.
  std::string directory_;
  std::atomic<uint64_t> size_{0};
  std::atomic<uint64_t> reads_{0}, writes_{0}, bytes_read_{0}, bytes_written_{0};
};

// In the child of a fork: files of the parent can't be used. See process/fork.cc, the only caller.
void CountFork();

// What tests make fail: the calls of one kind, after `successes` more of them succeeded. A write
// that fails writes half of its bytes. A negative number ends that.
enum class IoKind : uint8_t { kRead, kWrite, kResize };
void FailIoForTesting(IoKind kind, int64_t successes);

}  // namespace tfra
