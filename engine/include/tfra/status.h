// The one error type of the engine.
//
// Every call that can fail returns a Status. A call that returns a failure has changed nothing,
// unless its own comment says otherwise. Adapters turn the code into an exception once, at the
// boundary: kWrongType -> TypeError, kInvalidArgument -> ValueError, kOutOfMemory -> MemoryError,
// kIoError and kStorageFull -> OSError, kFailedPrecondition -> RuntimeError.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace tfra {

enum class StatusCode : uint8_t {
  kOk,
  kInvalidArgument,
  kWrongType,
  kOutOfMemory,
  kIoError,
  kFailedPrecondition,  // Another optimizer is bound to the table.
  kStorageFull,         // A disk, a quota, or the size that a file may have, is used up.
};

class [[nodiscard]] Status {
 public:
  Status() = default;

  static Status Ok() { return Status(); }
  static Status InvalidArgument(std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message));
  }
  static Status WrongType(std::string message) {
    return Status(StatusCode::kWrongType, std::move(message));
  }
  static Status OutOfMemory(std::string message) {
    return Status(StatusCode::kOutOfMemory, std::move(message));
  }
  static Status IoError(std::string message) {
    return Status(StatusCode::kIoError, std::move(message));
  }
  static Status FailedPrecondition(std::string message) {
    return Status(StatusCode::kFailedPrecondition, std::move(message));
  }
  static Status StorageFull(std::string message) {
    return Status(StatusCode::kStorageFull, std::move(message));
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

#define TFRA_RETURN_IF_ERROR(expression)                                      \
  do {                                                                        \
    if (::tfra::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

}  // namespace tfra
