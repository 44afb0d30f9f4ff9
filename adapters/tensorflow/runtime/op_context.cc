#include "runtime/op_context.h"

namespace tfra::tf {
namespace {

struct TypePair {
  TF_DataType tensorflow;
  ValueType engine;
};

constexpr TypePair kTypes[] = {
    {TF_FLOAT, ValueType::kFloat32}, {TF_DOUBLE, ValueType::kFloat64},
    {TF_HALF, ValueType::kFloat16},  {TF_BFLOAT16, ValueType::kBfloat16},
    {TF_INT8, ValueType::kInt8},     {TF_INT32, ValueType::kInt32},
    {TF_INT64, ValueType::kInt64},   {TF_BOOL, ValueType::kBool},
    {TF_STRING, ValueType::kString},
};

// Reads a protocol buffer field by field.
class ProtoReader {
 public:
  ProtoReader(const void* data, size_t size)
      : next_(static_cast<const uint8_t*>(data)), end_(next_ + size) {}

  // Moves to the next field; returns false at the end. Throws if the bytes are not a protocol
  // buffer.
  bool Next() {
    if (next_ == end_) return false;
    const uint64_t tag = Varint();
    field = tag >> 3;
    text = {};
    switch (tag & 7) {
      case 0:
        Varint();
        return true;
      case 1:
        Skip(8);
        return true;
      case 2:
        text = Skip(Varint());
        return true;
      case 5:
        Skip(4);
        return true;
      default:
        Malformed();
    }
  }

  uint64_t field = 0;     // The number of the current field.
  std::string_view text;  // Its bytes, if it is a field of bytes or of a string.

 private:
  [[noreturn]] static void Malformed() { throw OpError(TF_INTERNAL, "malformed resource handle"); }

  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; next_ < end_ && shift < 64; shift += 7) {
      const uint8_t byte = *next_++;
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if ((byte & 128) == 0) return value;
    }
    Malformed();
  }

  std::string_view Skip(uint64_t bytes) {
    if (bytes > static_cast<uint64_t>(end_ - next_)) Malformed();
    const std::string_view skipped(reinterpret_cast<const char*>(next_), bytes);
    next_ += bytes;
    return skipped;
  }

  const uint8_t* next_;
  const uint8_t* end_;
};

}  // namespace

void Check(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return;
    case StatusCode::kOutOfMemory:
    case StatusCode::kStorageFull:
      throw OpError(TF_RESOURCE_EXHAUSTED, status.message());
    case StatusCode::kIoError:
      throw OpError(TF_INTERNAL, status.message());
    case StatusCode::kFailedPrecondition:
      throw OpError(TF_FAILED_PRECONDITION, status.message());
    case StatusCode::kInvalidArgument:
    case StatusCode::kWrongType:
      throw OpError(TF_INVALID_ARGUMENT, status.message());
  }
}

std::string ToString(const Dims& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

int64_t ElementsIn(const Dims& dims) {
  int64_t elements = 1;
  for (const int64_t dim : dims) elements *= dim;
  return elements;
}

Dims Tensor::dims() const {
  Dims dims(static_cast<size_t>(TF_NumDims(tensor_)));
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = TF_Dim(tensor_, static_cast<int>(i));
  return dims;
}

std::string ResourceKey(TF_OpKernelContext* context, int input) {
  struct Buffer {
    TF_Buffer* get = TF_NewBuffer();
    ~Buffer() { TF_DeleteBuffer(get); }
  } buffer;
  TfStatus status;
  TF_GetSerializedResourceHandleProto(context, input, buffer.get, status.get());
  status.Check();
  // The resource manager owns the name of the default container, so that the address of that name
  // identifies the manager.
  const void* manager = TF_GetResourceMgrDefaultContainerName(context).data;
  std::string key(reinterpret_cast<const char*>(&manager), sizeof(manager));
  constexpr uint64_t kContainer = 2, kName = 3;
  for (ProtoReader reader(buffer.get->data, buffer.get->length); reader.Next();) {
    if (reader.field == kContainer || reader.field == kName) {
      key += std::to_string(reader.field) + ':' + std::to_string(reader.text.size()) + ':';
      key += reader.text;
    }
  }
  return key;
}

Tensor OpContext::Input(int index) const {
  TF_Tensor* tensor = nullptr;
  TfStatus status;
  TF_GetInput(context_, index, &tensor, status.get());
  Tensor owned(tensor);
  status.Check();
  return owned;
}

Tensor OpContext::Output(int index, TF_DataType type, const Dims& dims) const {
  RequireOutputType(index, type);  // TensorFlow allocates for the type that the op declares.
  TfStatus status;
  const size_t bytes = static_cast<size_t>(ElementsIn(dims)) * SizeOfElement(type);
  Tensor tensor(TF_AllocateOutput(context_, index, type, dims.data(), static_cast<int>(dims.size()),
                                  bytes, status.get()));
  status.Check();
  return tensor;
}

void RequireShape(const Dims& received, const Dims& expected, const char* name) {
  if (received == expected) return;
  InvalidArgument(std::string("expected `") + name + "` of shape " + ToString(expected) +
                  ", received shape " + ToString(received));
}

void RequireType(TF_DataType received, TF_DataType expected, const char* name) {
  if (received == expected) return;
  InvalidArgument(std::string("expected `") + name + "` of type " + NameOf(expected) +
                  ", received " + NameOf(received));
}

void RequireRank(const Dims& received, size_t rank, const char* name) {
  if (received.size() == rank) return;
  InvalidArgument(std::string("expected `") + name + "` of rank " + std::to_string(rank) +
                  ", received shape " + ToString(received));
}

void RequireRange(int64_t number, int64_t least, int64_t most, const char* name) {
  if (number >= least && number <= most) return;
  const std::string range =
      most == INT64_MAX ? std::to_string(least) + " or more"
                        : "between " + std::to_string(least) + " and " + std::to_string(most);
  InvalidArgument(std::string("expected `") + name + "` to be " + range + ", received " +
                  std::to_string(number));
}

int64_t OpContext::InputInteger(int index, const char* name, int64_t least, int64_t most) const {
  const auto number = InputScalar<int64_t>(index, name);
  RequireRange(number, least, most, name);
  return number;
}

std::string OpContext::InputString(int index, const char* name) const {
  const Tensor tensor = Input(index);
  if (tensor.dims() != Dims{1}) RequireShape(tensor, {}, name);
  return std::string(tensor.data<const TString>()->view());
}

std::string OpContext::Resource(int input, const char* name) const {
  RequireShape(Input(input), {}, name);  // TensorFlow would read past an empty tensor.
  return ResourceKey(context_, input);
}

void OpContext::RequireOutputType(int index, TF_DataType type) const {
  const TF_DataType expected = TF_ExpectedOutputDataType(context_, index);
  if (expected == type) return;
  InvalidArgument("expected the type " + std::string(NameOf(type)) + " for output " +
                  std::to_string(index) + " of the op, as the table has it, received " +
                  NameOf(expected));
}

void OpContext::SetOutput(int index, const Tensor& tensor) const {
  RequireOutputType(index, tensor.type());
  TfStatus status;
  TF_SetOutput(context_, index, tensor.get(), status.get());
  status.Check();
}

ValueType ValueTypeOf(TF_DataType type) {
  for (const TypePair& pair : kTypes) {
    if (pair.tensorflow == type) return pair.engine;
  }
  InvalidArgument("tables have no values of TensorFlow's data type " + std::to_string(type));
}

TF_DataType DataTypeOf(ValueType type) {
  for (const TypePair& pair : kTypes) {
    if (pair.engine == type) return pair.tensorflow;
  }
  throw OpError(TF_INTERNAL, "unknown value type");
}

const char* NameOf(TF_DataType type) { return NameOf(ValueTypeOf(type)); }

size_t SizeOfElement(TF_DataType type) {
  return type == TF_STRING ? sizeof(TString) : SizeOf(ValueTypeOf(type));
}

}  // namespace tfra::tf
