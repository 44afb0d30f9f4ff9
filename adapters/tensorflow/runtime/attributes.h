// The attributes of an op, as C++, and numbers in their texts.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/op_context.h"
#include "tfra/table.h"

namespace tfra::tf {

// Each throws if TensorFlow reports an error.
std::string StringAttribute(TF_OpKernelConstruction* construction, const char* name);
int64_t IntAttribute(TF_OpKernelConstruction* construction, const char* name);
float FloatAttribute(TF_OpKernelConstruction* construction, const char* name);
bool BoolAttribute(TF_OpKernelConstruction* construction, const char* name);
TF_DataType TypeAttribute(TF_OpKernelConstruction* construction, const char* name);

// The attribute `new_keys`: 'insert', 'admit' or 'drop'.
NewKeys NewKeysAttribute(TF_OpKernelConstruction* construction);

// Text of any bytes for a message: the first of them, and those that are not ASCII as digits.
std::string Quoted(std::string_view text);

// Bytes as two hexadecimal digits each, so that no bit is lost and no locale asked. BytesOf throws
// if the text is anything else.
std::vector<std::byte> BytesOf(const std::string& digits);
std::string DigitsOf(const void* bytes, size_t count);
// A double by its bytes. Throws if they are not those of one.
double DoubleOf(const std::string& digits);

// Makes a kernel: body() fills it from attributes. What that throws is reported to TensorFlow.
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
