#include "snapshot/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tfra {
namespace {

std::atomic<int64_t> successes_left[5] = {-1, -1, -1, -1, -1};

// Whether a test wants this call to fail; then errno says how.
bool FailsForTesting(FileCall kind) {
  std::atomic<int64_t>& counter = successes_left[static_cast<size_t>(kind)];
  int64_t left = counter.load();
  while (left > 0 && !counter.compare_exchange_weak(left, left - 1)) {
  }
  if (left == 0) errno = EIO;
  return left == 0;
}

Status Failure(const char* what, const std::string& path) {
  const int error = errno;
  std::string message = std::string("could not ") + what + " " + path + ": " + strerror(error);
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return full ? Status::StorageFull(std::move(message)) : Status::IoError(std::move(message));
}

}  // namespace

void FailFilesForTesting(FileCall kind, int64_t successes) {
  successes_left[static_cast<size_t>(kind)] = successes;
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)), size_(other.size_) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    CloseQuietly();
    path_ = std::move(other.path_);
    file_ = std::exchange(other.file_, -1);
    size_ = other.size_;
  }
  return *this;
}

void File::CloseQuietly() {
  if (file_ >= 0) (void)close(std::exchange(file_, -1));
}

Status File::Create(const std::string& path, File* file) {
  File made;
  made.path_ = path;
  if (!FailsForTesting(FileCall::kCreate)) {
    made.file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  }
  if (made.file_ < 0) return Failure("create", path);
  *file = std::move(made);
  return Status::Ok();
}

Status File::Open(const std::string& path, File* file) {
  File opened;
  opened.path_ = path;
  // A pipe would wait for a writer.
  if (!FailsForTesting(FileCall::kOpen)) {
    opened.file_ = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  }
  struct stat status;
  if (opened.file_ < 0 || fstat(opened.file_, &status) != 0) return Failure("open", path);
  if (!S_ISREG(status.st_mode)) {
    return Status::IoError("could not open " + path + ": expected a file");
  }
  opened.size_ = static_cast<uint64_t>(status.st_size);
  (void)posix_fadvise(opened.file_, 0, 0, POSIX_FADV_SEQUENTIAL);
  *file = std::move(opened);
  return Status::Ok();
}

Status File::Write(const void* from, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    ssize_t written = -1;
    if (!FailsForTesting(FileCall::kWrite)) written = write(file_, at, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failure("write", path_);
    at += written;
    bytes -= static_cast<size_t>(written);
  }
  return Status::Ok();
}

Status File::Read(uint64_t offset, void* to, size_t bytes) const {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    ssize_t read = -1;
    if (!FailsForTesting(FileCall::kRead)) {
      read = pread(file_, at, bytes, static_cast<off_t>(offset));
    }
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return Failure("read", path_);
    if (read == 0) return Status::IoError("could not read " + path_ + ": the file was cut");
    at += read;
    offset += static_cast<uint64_t>(read);
    bytes -= static_cast<size_t>(read);
  }
  return Status::Ok();
}

Status File::Finish() {
  if (FailsForTesting(FileCall::kSync) || fsync(file_) != 0) return Failure("flush", path_);
  if (close(std::exchange(file_, -1)) != 0) return Failure("close", path_);
  return Status::Ok();
}

}  // namespace tfra
