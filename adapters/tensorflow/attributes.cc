#include "attributes.h"

#include <cstring>

namespace tfra::tf {
namespace {

// For attributes of one value: get(construction, name, &value, status).
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
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return bytes;
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
  if (bytes.size() != sizeof(number)) InvalidArgument("not the bytes of a double: " + digits);
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number;
}

}  // namespace tfra::tf
