#include "runtime/attributes.h"

#include <cstring>

namespace tfra::tf {
namespace {

// Returns an attribute that is one number; `get` is the function of the C API that reads it.
template <typename Value, typename Get>
Value Attribute(TF_OpKernelConstruction* construction, const char* name, Get&& get) {
  TfStatus status;
  Value value = 0;
  get(construction, name, &value, status.get());
  status.Check();
  return value;
}

}  // namespace

std::string StringAttribute(TF_OpKernelConstruction* construction, const char* name) {
  TfStatus status;
  int32_t list_size = 0, bytes = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, name, &list_size, &bytes, status.get());
  status.Check();
  std::string value(static_cast<size_t>(bytes), '\0');
  TF_OpKernelConstruction_GetAttrString(construction, name, value.data(), value.size(),
                                        status.get());
  status.Check();
  return value;
}

int64_t IntAttribute(TF_OpKernelConstruction* construction, const char* name) {
  return Attribute<int64_t>(construction, name, TF_OpKernelConstruction_GetAttrInt64);
}

float FloatAttribute(TF_OpKernelConstruction* construction, const char* name) {
  return Attribute<float>(construction, name, TF_OpKernelConstruction_GetAttrFloat);
}

bool BoolAttribute(TF_OpKernelConstruction* construction, const char* name) {
  return Attribute<unsigned char>(construction, name, TF_OpKernelConstruction_GetAttrBool) != 0;
}

TF_DataType TypeAttribute(TF_OpKernelConstruction* construction, const char* name) {
  return Attribute<TF_DataType>(construction, name, TF_OpKernelConstruction_GetAttrType);
}

NewKeys NewKeysAttribute(TF_OpKernelConstruction* construction) {
  const std::string text = StringAttribute(construction, "new_keys");
  if (text == "insert") return NewKeys::kInsert;
  return text == "admit" ? NewKeys::kAdmit : NewKeys::kDrop;
}

std::vector<std::byte> BytesOf(const std::string& digits) {
  const auto value_of = [&](char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    InvalidArgument("expected bytes as two digits of 0-9a-f each, received " + Quoted(digits));
  };
  if (digits.size() % 2 != 0) {
    InvalidArgument("expected bytes as two digits each, received " + Quoted(digits));
  }
  std::vector<std::byte> bytes;
  bytes.reserve(digits.size() / 2);
  for (size_t i = 0; i < digits.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(value_of(digits[i]) << 4 | value_of(digits[i + 1])));
  }
  return bytes;
}

std::string Quoted(std::string_view text) {
  constexpr size_t kMost = 80;
  std::string quoted = "\"";
  for (const char c : text.substr(0, kMost)) {
    if (c >= ' ' && c <= '~' && c != '"' && c != '\\') {
      quoted += c;
    } else {
      quoted += "\\x" + DigitsOf(&c, 1);
    }
  }
  if (text.size() <= kMost) return quoted + "\"";
  return quoted + "...\" (" + std::to_string(text.size()) + " bytes)";
}

std::string DigitsOf(const void* bytes, size_t count) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string digits;
  for (size_t i = 0; i < count; ++i) {
    const auto byte = static_cast<const unsigned char*>(bytes)[i];
    digits += kDigits[byte >> 4];
    digits += kDigits[byte & 15];
  }
  return digits;
}

double DoubleOf(const std::string& digits) {
  const std::vector<std::byte> bytes = BytesOf(digits);
  double number;
  if (bytes.size() != sizeof(number))
    InvalidArgument("expected the 8 bytes of a double, received " + Quoted(digits));
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number;
}

}  // namespace tfra::tf
