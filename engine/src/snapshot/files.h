// All that snapshots do to files, so that tests can make any of it fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tfra/status.h"

namespace tfra {

// A file that is open. Failures name its path, and are kStorageFull where there is no room.
class File {
 public:
  File() = default;
  ~File() { CloseQuietly(); }
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  // Makes a file that must not be there yet.
  static Status Create(const std::string& path, File* file);
  // Opens a file to be read from the beginning to the end. Refuses all but regular files.
  static Status Open(const std::string& path, File* file);

  const std::string& path() const { return path_; }
  // The bytes that the file had when it was opened.
  uint64_t size() const { return size_; }

  // Adds bytes to the end. After a failure some of them may have been written.
  Status Write(const void* from, size_t bytes);
  // Fills `to` from this place on. kIoError if the file is shorter.
  Status Read(uint64_t offset, void* to, size_t bytes) const;
  // Brings all that was written to the disk, and closes the file.
  Status Finish();

 private:
  void CloseQuietly();

  std::string path_;
  int file_ = -1;
  uint64_t size_ = 0;
};

// For tests: makes all calls of one kind fail after `successes` more of them. A negative number
// ends this.
enum class FileCall : uint8_t { kCreate, kWrite, kSync, kOpen, kRead };
void FailFilesForTesting(FileCall kind, int64_t successes);

}  // namespace tfra
