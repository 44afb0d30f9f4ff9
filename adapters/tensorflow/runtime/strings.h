// The strings in tensors: 24 bytes each. Their layout has not changed since TensorFlow 2.3. The two
// lowest bits of the first byte give the kind of the string.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

namespace tfra::tf {

struct TString {
  unsigned char bytes[24];

  std::string_view view() const {
    const char* text = reinterpret_cast<const char*>(bytes);
    switch (bytes[0] & 3) {
      case kSmall:
        return {text + 1, static_cast<size_t>(bytes[0] >> 2)};
      case kOffset:
        return {text + Load<uint32_t>(4), static_cast<size_t>(Load<uint32_t>(0) >> 2)};
      case kLarge:
        return {Load<const char*>(16), static_cast<size_t>(Load<uint64_t>(0) >> 2)};
      default:  // kView
        return {Load<const char*>(8), static_cast<size_t>(Load<uint64_t>(0) >> 2)};
    }
  }

  // REQUIRES: this string is empty, like the strings of a new output. Never makes a view: the
  // layout of views differs between versions of TensorFlow.
  void Set(std::string_view text) {
    if (text.size() <= kSmallSize) {
      bytes[0] = static_cast<unsigned char>(text.size() << 2 | kSmall);
      std::memcpy(bytes + 1, text.data(), text.size());
      bytes[1 + text.size()] = 0;
      return;
    }
    const uint64_t capacity = (text.size() + 16) / 16 * 16 - 1;
    auto* data = static_cast<char*>(std::malloc(capacity + 1));
    if (data == nullptr) throw std::bad_alloc();
    std::memcpy(data, text.data(), text.size());
    data[text.size()] = '\0';
    Store(0, static_cast<uint64_t>(text.size()) << 2 | kLarge);
    Store(8, capacity);
    Store(16, data);
  }

 private:
  enum Kind : unsigned char { kSmall = 0, kLarge = 1, kOffset = 2, kView = 3 };
  static constexpr size_t kSmallSize = 22;

  template <typename T>
  T Load(size_t offset) const {
    T value;
    std::memcpy(&value, bytes + offset, sizeof(value));
    return value;
  }
  template <typename T>
  void Store(size_t offset, T value) {
    std::memcpy(bytes + offset, &value, sizeof(value));
  }
};

static_assert(sizeof(TString) == 24);

}  // namespace tfra::tf
