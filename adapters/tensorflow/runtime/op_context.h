// What a kernel is called with, as C++: tensors that free themselves, and errors as exceptions,
// which never leave the adapter.
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

// Throws if the engine reports an error.
void Check(const Status& status);

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

std::string ToString(const Dims& dims);
int64_t ElementsIn(const Dims& dims);

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
  // Gives it up to the caller.
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

// Each throws an error that names the input unless it is as expected. `name` is its name in ops.cc.
void RequireShape(const Dims& received, const Dims& expected, const char* name);
inline void RequireShape(const Tensor& tensor, const Dims& expected, const char* name) {
  RequireShape(tensor.dims(), expected, name);
}
void RequireType(TF_DataType received, TF_DataType expected, const char* name);
void RequireRank(const Dims& received, size_t rank, const char* name);
void RequireRange(int64_t number, int64_t least, int64_t most, const char* name);

// Names a resource of TensorFlow. The first part identifies the resource manager, of which every
// Session, eager context and server has its own.
std::string ResourceKey(TF_OpKernelContext* context, int input);

class OpContext {
 public:
  explicit OpContext(TF_OpKernelContext* context) : context_(context) {}

  int inputs() const { return TF_NumInputs(context_); }
  Tensor Input(int index) const;
  // The value of an input that must be a scalar. TensorFlow has checked that its type is T.
  template <typename T>
  T InputScalar(int index, const char* name) const {
    const Tensor tensor = Input(index);
    RequireShape(tensor, {}, name);
    return *tensor.data<const T>();
  }
  // An int64 scalar between `least` and `most`.
  int64_t InputInteger(int index, const char* name, int64_t least, int64_t most = INT64_MAX) const;
  // A single string: a scalar, or a vector of one element.
  std::string InputString(int index, const char* name) const;
  // The key of the resource that a scalar handle names.
  std::string Resource(int input, const char* name) const;

  // Both throw if the op, by its attributes, has an output of another type.
  Tensor Output(int index, TF_DataType type, const Dims& dims) const;
  void SetOutput(int index, const Tensor& tensor) const;

 private:
  void RequireOutputType(int index, TF_DataType type) const;

  TF_OpKernelContext* context_;
};

// Runs body(OpContext), and reports what it throws to TensorFlow.
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

// The two type systems. Throws for types that tables do not have.
ValueType ValueTypeOf(TF_DataType type);
TF_DataType DataTypeOf(ValueType type);
const char* NameOf(TF_DataType type);
size_t SizeOfElement(TF_DataType type);

}  // namespace tfra::tf
