// C++ classes over TensorFlow's C API: tensors that free themselves, the inputs and outputs of a
// kernel, and errors as exceptions. RunKernel catches all exceptions, so none reaches TensorFlow.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/strings.h"
#include "runtime/tf_c_api.h"
#include "tfra/status.h"
#include "tfra/types.h"

namespace tfra::tf {

// An error that RunKernel reports to TensorFlow with its code.
class OpError : public std::runtime_error {
 public:
  OpError(TF_Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  TF_Code code() const { return code_; }

 private:
  TF_Code code_;
};

[[noreturn]] inline void InvalidArgument(const std::string& message) {
  throw OpError(TF_INVALID_ARGUMENT, message);
}

// Throws an OpError if the engine reports an error.
void Check(const Status& status);

// Owns a status that functions of the C API write to.
class TfStatus {
 public:
  TfStatus() : status_(TF_NewStatus()) {}
  ~TfStatus() { TF_DeleteStatus(status_); }
  TfStatus(const TfStatus&) = delete;
  TfStatus& operator=(const TfStatus&) = delete;

  TF_Status* get() { return status_; }
  // Throws if TensorFlow reported an error.
  void Check() const {
    if (TF_GetCode(status_) != TF_OK) throw OpError(TF_GetCode(status_), TF_Message(status_));
  }

 private:
  TF_Status* status_;
};

using Dims = std::vector<int64_t>;

// Returns text like "[2, 3]".
std::string ToString(const Dims& dims);
// Returns the product of the dims.
int64_t ElementsIn(const Dims& dims);

// Owns a tensor, or is null.
class Tensor {
 public:
  explicit Tensor(TF_Tensor* tensor) : tensor_(tensor) {}
  ~Tensor() {
    if (tensor_ != nullptr) TF_DeleteTensor(tensor_);
  }
  Tensor(Tensor&& other) noexcept : tensor_(std::exchange(other.tensor_, nullptr)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(tensor_, other.tensor_);
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  TF_Tensor* get() const { return tensor_; }
  // Returns the tensor, which the caller must delete; *this becomes null.
  TF_Tensor* Release() { return std::exchange(tensor_, nullptr); }
  TF_DataType type() const { return TF_TensorType(tensor_); }
  Dims dims() const;
  int64_t elements() const { return ElementsIn(dims()); }
  template <typename T>
  T* data() const {
    return static_cast<T*>(TF_TensorData(tensor_));
  }

 private:
  TF_Tensor* tensor_;
};

// Each throws an error if the input `name` is not as expected. `name` is its name in ops.cc.
void RequireShape(const Dims& received, const Dims& expected, const char* name);
inline void RequireShape(const Tensor& tensor, const Dims& expected, const char* name) {
  RequireShape(tensor.dims(), expected, name);
}
void RequireType(TF_DataType received, TF_DataType expected, const char* name);
void RequireRank(const Dims& received, size_t rank, const char* name);
void RequireRange(int64_t number, int64_t least, int64_t most, const char* name);

// Returns a key that identifies the resource of an input in this process: the resource manager, the
// container and the name. Every Session, eager context and server has its own resource manager.
std::string ResourceKey(TF_OpKernelContext* context, int input);

// The inputs and outputs of one call of a kernel.
class OpContext {
 public:
  explicit OpContext(TF_OpKernelContext* context) : context_(context) {}

  int inputs() const { return TF_NumInputs(context_); }
  Tensor Input(int index) const;
  // Returns the value of an input. Throws unless it is a scalar. TensorFlow has checked that its
  // type is T.
  template <typename T>
  T InputScalar(int index, const char* name) const {
    const Tensor tensor = Input(index);
    RequireShape(tensor, {}, name);
    return *tensor.data<const T>();
  }
  // Returns the value of an int64 scalar. Throws unless it is between `least` and `most`.
  int64_t InputInteger(int index, const char* name, int64_t least, int64_t most = INT64_MAX) const;
  // Returns a string. Throws unless the input is a scalar or a vector of one element.
  std::string InputString(int index, const char* name) const;
  // Returns the ResourceKey of an input. Throws unless the input is a scalar.
  std::string Resource(int input, const char* name) const;

  // Both throw if the attributes of the op give the output another type.
  Tensor Output(int index, TF_DataType type, const Dims& dims) const;
  void SetOutput(int index, const Tensor& tensor) const;

 private:
  void RequireOutputType(int index, TF_DataType type) const;

  TF_OpKernelContext* context_;
};

// Makes an output that is an int64 scalar.
inline void SetScalar(const OpContext& context, int output, uint64_t number) {
  *context.Output(output, TF_INT64, {}).data<int64_t>() = static_cast<int64_t>(number);
}

// Runs body(OpContext) and reports exceptions to TensorFlow.
template <typename Body>
void RunKernel(TF_OpKernelContext* context, Body&& body) {
  const auto fail = [context](TF_Code code, const char* message) {
    TfStatus status;
    TF_SetStatus(status.get(), code, message);
    TF_OpKernelContext_Failure(context, status.get());
  };
  try {
    body(OpContext(context));
  } catch (const OpError& error) {
    fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    fail(TF_RESOURCE_EXHAUSTED, "out of memory for the needs of one call");
  } catch (const std::exception& error) {
    fail(TF_INTERNAL, error.what());
  }
}

// Convert between the types of TensorFlow and of the engine. Throw for types that tables cannot
// have.
ValueType ValueTypeOf(TF_DataType type);
TF_DataType DataTypeOf(ValueType type);
const char* NameOf(TF_DataType type);
size_t SizeOfElement(TF_DataType type);

}  // namespace tfra::tf
