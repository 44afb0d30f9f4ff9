// The ops: their signatures, shapes and kernels, registered when TensorFlow loads the library.
#include <cstdio>
#include <initializer_list>

#include "kernels.h"
#include "op_context.h"

namespace tfra::tf {
namespace {

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

class Shape {
 public:
  Shape() : handle_(TF_NewShapeHandle()) {}
  explicit Shape(TF_ShapeHandle* handle) : handle_(handle) {}
  ~Shape() { TF_DeleteShapeHandle(handle_); }
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;
  TF_ShapeHandle* get() const { return handle_; }

 private:
  TF_ShapeHandle* handle_;
};

// Output `output` has the shape of input `input`.
void SameShape(TF_ShapeInferenceContext* context, int input, int output, TF_Status* status) {
  const Shape shape;
  TF_ShapeInferenceContextGetInput(context, input, shape.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextSetOutput(context, output, shape.get(), status);
}

// keys.shape + default.shape
void KeysAndRowShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape keys, row, both;
  TF_ShapeInferenceContextGetInput(context, 1, keys.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextGetInput(context, 2, row.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextConcatenateShapes(context, keys.get(), row.get(), both.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextSetOutput(context, 0, both.get(), status);
}

void KeysAndRowShapeExists(TF_ShapeInferenceContext* context, TF_Status* status) {
  KeysAndRowShape(context, status);
  if (TF_GetCode(status) == TF_OK) SameShape(context, 1, 1, status);
}

void DefaultsShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  SameShape(context, 2, 0, status);
}

void DefaultsShapeExists(TF_ShapeInferenceContext* context, TF_Status* status) {
  DefaultsShape(context, status);
  if (TF_GetCode(status) == TF_OK) SameShape(context, 1, 1, status);
}

void ScalarShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape shape(TF_ShapeInferenceContextScalar(context));
  TF_ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

void TokenShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape shape(TF_ShapeInferenceContextVectorFromSize(context, 1));
  TF_ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

void UnknownShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void NoShape(TF_ShapeInferenceContext*, TF_Status*) {}

#define TFRA_KEY_TYPES "{int32, int64, string}"
#define TFRA_VALUE_TYPES "{float, double, half, bfloat16, int8, int32, int64, bool, string}"

struct Op {
  const char* name;
  std::initializer_list<const char*> attributes;
  std::initializer_list<const char*> inputs;
  std::initializer_list<const char*> outputs;
  ShapeFunction shape;
  void (*compute)(void*, TF_OpKernelContext*);
  void* (*create)(TF_OpKernelConstruction*) = nullptr;
  void (*destroy)(void*) = nullptr;
};

void Register(const Op& op) {
  TfStatus status;
  TF_OpDefinitionBuilder* definition = TF_NewOpDefinitionBuilder(op.name);
  for (const char* attribute : op.attributes) TF_OpDefinitionBuilderAddAttr(definition, attribute);
  for (const char* input : op.inputs) TF_OpDefinitionBuilderAddInput(definition, input);
  for (const char* output : op.outputs) TF_OpDefinitionBuilderAddOutput(definition, output);
  TF_OpDefinitionBuilderSetIsStateful(definition, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, op.shape);
  TF_RegisterOpDefinition(definition, status.get());
  if (TF_GetCode(status.get()) == TF_OK) {
    TF_KernelBuilder* kernel =
        TF_NewKernelBuilder(op.name, "CPU", op.create, op.compute, op.destroy);
    TF_RegisterKernelBuilder(op.name, kernel, status.get());
  }
  if (TF_GetCode(status.get()) != TF_OK) {
    std::fprintf(stderr, "tfra: op %s: %s\n", op.name, TF_Message(status.get()));
  }
}

bool RegisterAll() {
  constexpr const char* kTable = "table: resource";
  constexpr const char* kTk = "Tk: " TFRA_KEY_TYPES;
  constexpr const char* kTv = "Tv: " TFRA_VALUE_TYPES;
  const Op ops[] = {
      {"TfraTableCreate",
       {"key_dtype: " TFRA_KEY_TYPES, "value_dtype: " TFRA_VALUE_TYPES, "dim: int", "capacity: int",
        "initializer: string"},
       {kTable},
       {"token: int64"},
       TokenShape,
       CreateTable,
       NewCreateKernel,
       DeleteCreateKernel},
      {"TfraLookup",
       {kTk, kTv},
       {kTable, "keys: Tk", "default_value: Tv"},
       {"values: Tv"},
       KeysAndRowShape,
       Lookup<Missing::kOneRow, false>},
      {"TfraLookupExists",
       {kTk, kTv},
       {kTable, "keys: Tk", "default_value: Tv"},
       {"values: Tv", "exists: bool"},
       KeysAndRowShapeExists,
       Lookup<Missing::kOneRow, true>},
      {"TfraLookupWithDefaults",
       {kTk, kTv},
       {kTable, "keys: Tk", "default_values: Tv"},
       {"values: Tv"},
       DefaultsShape,
       Lookup<Missing::kRowPerKey, false>},
      {"TfraLookupWithDefaultsExists",
       {kTk, kTv},
       {kTable, "keys: Tk", "default_values: Tv"},
       {"values: Tv", "exists: bool"},
       DefaultsShapeExists,
       Lookup<Missing::kRowPerKey, true>},
      {"TfraLookupInitial",
       {kTk, kTv},
       {kTable, "keys: Tk", "like_row: Tv"},
       {"values: Tv"},
       KeysAndRowShape,
       Lookup<Missing::kInitial, false>},
      {"TfraLookupInitialExists",
       {kTk, kTv},
       {kTable, "keys: Tk", "like_row: Tv"},
       {"values: Tv", "exists: bool"},
       KeysAndRowShapeExists,
       Lookup<Missing::kInitial, true>},
      {"TfraInsert", {kTk, kTv}, {kTable, "keys: Tk", "values: Tv"}, {}, NoShape, Insert},
      {"TfraRestore",
       {kTk, kTv, "Ts: {float, double}"},
       {kTable, "keys: Tk", "values: Tv", "slots: Ts", "metadata: int32", "parts: int32",
        "part: int32", "part_count: int32"},
       {},
       NoShape,
       Restore},
      {"TfraAccumulate",
       {kTk, kTv},
       {kTable, "keys: Tk", "values_or_deltas: Tv", "exists: bool"},
       {},
       NoShape,
       Accumulate},
      {"TfraRemove", {kTk}, {kTable, "keys: Tk"}, {}, NoShape, Remove},
      {"TfraClear", {}, {kTable}, {}, NoShape, Clear},
      {"TfraSize", {}, {kTable}, {"size: int64"}, ScalarShape, Size},
      {"TfraExport",
       {kTk, kTv, "N: int >= 1"},
       {"tables: N * resource"},
       {"keys: Tk", "values: Tv"},
       UnknownShape,
       Export},
      {"TfraSnapshot",
       {kTk, kTv, "Ts: {float, double}", "N: int >= 1"},
       {"tables: N * resource"},
       {"keys: Tk", "values: Tv", "slots: Ts", "metadata: int32"},
       UnknownShape,
       Snapshot},
      {"TfraTableCount", {}, {}, {"count: int64"}, ScalarShape, CountTables},
  };
  for (const Op& op : ops) Register(op);
  return true;
}

[[maybe_unused]] const bool registered = RegisterAll();

}  // namespace
}  // namespace tfra::tf
