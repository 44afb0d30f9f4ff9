// Reads the attributes of an op, and bytes that are written as hexadecimal digits.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/op_context.h"
#include "tfra/table.h"

namespace tfra::tf {

// Each returns the attribute `name`. Throws if TensorFlow reports an error.
std::string StringAttribute(TF_OpKernelConstruction* construction, const char* name);
int64_t IntAttribute(TF_OpKernelConstruction* construction, const char* name);
float FloatAttribute(TF_OpKernelConstruction* construction, const char* name);
bool BoolAttribute(TF_OpKernelConstruction* construction, const char* name);
TF_DataType TypeAttribute(TF_OpKernelConstruction* construction, const char* name);

// Returns the attribute `new_keys`, which is 'insert', 'admit' or 'drop'.
NewKeys NewKeysAttribute(TF_OpKernelConstruction* construction);

// Returns text for an error message: its first 80 bytes in quotes. Bytes that are not printable
// ASCII are shown as hexadecimal digits.
std::string Quoted(std::string_view text);

// Convert between bytes and text with two hexadecimal digits per byte. The text keeps every bit and
// does not depend on the locale. BytesOf throws if the text is not of this form.
std::vector<std::byte> BytesOf(const std::string& digits);
std::string DigitsOf(const void* bytes, size_t count);
// Returns the double whose bytes the digits are. Throws unless they are 8 bytes.
double DoubleOf(const std::string& digits);

// Makes a kernel; body(kernel) fills it from the attributes. Reports exceptions of body to
// TensorFlow.
template <typename Kernel, typename Body>
void* MakeKernel(TF_OpKernelConstruction* construction, Body&& body) {
  auto* kernel = new Kernel;
  try {
    body(*kernel);
  } catch (const std::exception& error) {
    TfStatus status;
    TF_SetStatus(status.get(), TF_INVALID_ARGUMENT, error.what());
    TF_OpKernelConstruction_Failure(construction, status.get());
  }
  return kernel;
}

}  // namespace tfra::tf
