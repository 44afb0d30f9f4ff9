// Reads the bytes of one run as numbers, strings and keys. A target is one function,
// LLVMFuzzerTestOneInput. For all bytes it must end without a sanitizer report and without a failed
// REQUIRE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "tfra/status.h"

// libFuzzer calls this for each input.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace tfra::fuzz {

[[noreturn]] inline void Fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::abort();
}

// Reading past the end returns zeros, so that every input is valid.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }
  size_t left() const { return left_; }

  template <typename T>
  T Take() {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    T value{};
    const size_t bytes = left_ < sizeof(T) ? left_ : sizeof(T);
    if (bytes > 0) std::memcpy(&value, data_, bytes);
    Skip(bytes);
    return value;
  }
  // Reads one byte and returns a number below `count`. REQUIRES: 1 <= count <= 256.
  uint32_t Below(uint32_t count) { return Take<uint8_t>() % count; }
  bool Flag() { return Below(2) == 1; }

  // Integer and Real often return a number at the end of a range, where defects are likely.
  int64_t Integer() {
    constexpr int64_t kEnds[] = {0,
                                 1,
                                 -1,
                                 INT32_MAX,
                                 INT32_MIN,
                                 UINT32_MAX,
                                 int64_t{1} << 32,
                                 int64_t{1} << 40,
                                 std::numeric_limits<int64_t>::max(),
                                 std::numeric_limits<int64_t>::min()};
    const uint32_t choice = Below(256);
    if (choice < std::size(kEnds)) return kEnds[choice];
    return choice < 200 ? static_cast<int64_t>(choice) - 100 : Take<int64_t>();
  }
  double Real() {
    constexpr double kEnds[] = {0.0,
                                -0.0,
                                1.0,
                                std::numeric_limits<double>::quiet_NaN(),
                                std::numeric_limits<double>::infinity(),
                                -std::numeric_limits<double>::infinity(),
                                std::numeric_limits<double>::max(),
                                std::numeric_limits<double>::denorm_min(),
                                std::numeric_limits<float>::max(),
                                1e-45};
    const uint32_t choice = Below(256);
    if (choice < std::size(kEnds)) return kEnds[choice];
    return choice < 200 ? (static_cast<double>(choice) - 100) / 64 : Take<double>();
  }

  // The first byte is the length of the string, which ends earlier if the input ends.
  std::string String() {
    const size_t bytes = std::min<size_t>(Take<uint8_t>(), left_);
    std::string text(reinterpret_cast<const char*>(data_), bytes);
    Skip(bytes);
    return text;
  }
  std::string Rest() {
    std::string text(reinterpret_cast<const char*>(data_), left_);
    Skip(left_);
    return text;
  }

  // Half of the keys are one of 24, so that equal keys occur. The others are arbitrary and often
  // extreme.
  int64_t IntKey() { return Flag() ? static_cast<int64_t>(Below(24)) : Integer(); }
  std::string StringKey() {
    switch (Below(6)) {
      case 0:
        return "";
      case 1:
        return std::string(Below(4), '\0');
      case 2:  // Long keys that differ only in their last byte.
        return std::string(Below(16) == 0 ? 70000 : 257 * Below(8), 'k') +
               static_cast<char>(Below(256));
      case 3:
        return String();
      default:
        return "key " + std::to_string(Below(24));
    }
  }

 private:
  void Skip(size_t bytes) {
    data_ += bytes;
    left_ -= bytes;
  }

  const uint8_t* data_;
  size_t left_;
};

}  // namespace tfra::fuzz

#define REQUIRE(condition)                                                            \
  do {                                                                                \
    if (!(condition)) ::tfra::fuzz::Fail(__FILE__, __LINE__, "expected " #condition); \
  } while (false)

#define REQUIRE_OK(expression)                                                             \
  do {                                                                                     \
    if (const ::tfra::Status status_ = (expression); !status_.ok())                        \
      ::tfra::fuzz::Fail(__FILE__, __LINE__, #expression " failed: " + status_.message()); \
  } while (false)
