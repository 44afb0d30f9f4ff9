#include "storage/row_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace tfra {
namespace {

std::atomic<int64_t> successes_left[3] = {-1, -1, -1};

bool FailsForTesting(IoKind kind) {
  std::atomic<int64_t>& counter = successes_left[static_cast<size_t>(kind)];
  int64_t left = counter.load(std::memory_order_relaxed);
  if (left < 0) return false;
  while (left > 0 && !counter.compare_exchange_weak(left, left - 1)) {
  }
  return left == 0;
}

std::atomic<uint64_t> forks{0};  // How many forks lie between the first process and this one.

Status Failure(const char* what, uint64_t bytes, const std::string& directory, int error) {
  std::string message = std::string("could not ") + what + " " + std::to_string(bytes) +
                        " bytes of the file for rows in " + directory + ": " + std::strerror(error);
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return full ? Status::StorageFull(std::move(message)) : Status::IoError(std::move(message));
}

int OpenWithoutName(const std::string& directory) {
#ifdef O_TMPFILE
  // Reads are a tenth faster if they do not update the access time.
  for (const int no_time : {O_NOATIME, 0}) {
    const int file = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | no_time, 0600);
    if (file >= 0) return file;
  }
#endif
  // Not every file system has files without names: make a file with a name, and remove the name.
  std::string name = directory + "/tfra-rows-XXXXXX";
  const int named = mkstemp(name.data());
  if (named < 0) return -1;
  (void)fcntl(named, F_SETFD, FD_CLOEXEC);
  (void)unlink(name.c_str());
  return named;
}

}  // namespace

void CountFork() { forks.fetch_add(1, std::memory_order_relaxed); }

void FailIoForTesting(IoKind kind, int64_t successes) {
  successes_left[static_cast<size_t>(kind)] = successes;
}

RowFile::~RowFile() {
  if (file_ >= 0) (void)close(file_);
}

Status RowFile::Open(const std::string& directory) {
  directory_ = directory;
  if (directory_.empty()) {
    const char* temporary = std::getenv("TMPDIR");
    directory_ = temporary != nullptr && *temporary != 0 ? temporary : "/tmp";
  }
  forks_ = forks.load(std::memory_order_relaxed);
  file_ = OpenWithoutName(directory_);
#ifdef POSIX_FADV_RANDOM
  // Reads are in random order. Only a hint.
  if (file_ >= 0) (void)posix_fadvise(file_, 0, 0, POSIX_FADV_RANDOM);
#endif
  if (file_ >= 0) return Status::Ok();
  return Status::IoError("could not make a file for rows in the directory " + directory_ + ": " +
                         std::strerror(errno));
}

Status RowFile::CheckProcess() const {
  if (forks.load(std::memory_order_relaxed) == forks_) return Status::Ok();
  return Status::IoError("expected the process that made the table to use its file for rows in " +
                         directory_ + ", received a call of a child that was forked from it");
}

Status RowFile::Read(uint64_t offset, std::byte* to, size_t bytes) {
  TFRA_RETURN_IF_ERROR(CheckProcess());
  if (FailsForTesting(IoKind::kRead)) return Failure("read", bytes, directory_, EIO);
  bytes_read_.fetch_add(bytes, std::memory_order_relaxed);
  while (bytes > 0) {
    const ssize_t done = pread(file_, to, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return Failure("read", bytes, directory_, done < 0 ? errno : EIO);
    reads_.fetch_add(1, std::memory_order_relaxed);
    offset += static_cast<uint64_t>(done);
    to += done;
    bytes -= static_cast<size_t>(done);
  }
  return Status::Ok();
}

Status RowFile::Write(uint64_t offset, const std::byte* from, size_t bytes) {
  TFRA_RETURN_IF_ERROR(CheckProcess());
  const bool fails = FailsForTesting(IoKind::kWrite);
  if (fails) bytes /= 2;
  bytes_written_.fetch_add(bytes, std::memory_order_relaxed);
  while (bytes > 0) {
    const ssize_t done = pwrite(file_, from, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return Failure("write", bytes, directory_, done < 0 ? errno : ENOSPC);
    writes_.fetch_add(1, std::memory_order_relaxed);
    offset += static_cast<uint64_t>(done);
    from += done;
    bytes -= static_cast<size_t>(done);
  }
  return fails ? Failure("write", bytes, directory_, ENOSPC) : Status::Ok();
}

Status RowFile::Resize(uint64_t bytes) {
  TFRA_RETURN_IF_ERROR(CheckProcess());
  if (FailsForTesting(IoKind::kResize)) return Failure("take", bytes, directory_, ENOSPC);
  const uint64_t before = size();
#ifdef __linux__
  if (bytes > before) {
    const auto more = static_cast<off_t>(bytes - before);
    if (fallocate(file_, 0, static_cast<off_t>(before), more) == 0) {
      size_.store(bytes, std::memory_order_relaxed);
      return Status::Ok();
    }
    if (errno != EOPNOTSUPP && errno != EINVAL && errno != EINTR) {
      return Failure("take", bytes, directory_, errno);
    }
  }
#endif
  if (bytes != before && ftruncate(file_, static_cast<off_t>(bytes)) != 0) {
    return Failure("take", bytes, directory_, errno);
  }
  size_.store(bytes, std::memory_order_relaxed);
  return Status::Ok();
}

}  // namespace tfra
