#include "ops/shapes.h"

#include <cstddef>
#include <cstdint>

namespace tfra::tf {
namespace {

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

// Gives output `output` the shape of input `input`.
void SameShape(TF_ShapeInferenceContext* context, int input, int output, TF_Status* status) {
  const Shape shape;
  TF_ShapeInferenceContextGetInput(context, input, shape.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextSetOutput(context, output, shape.get(), status);
}

// TensorFlow's number for an unknown size.
constexpr size_t kUnknownSize = static_cast<size_t>(-1);

// Gives output `output` the shape [size] + row.
void SetRows(TF_ShapeInferenceContext* context, int output, size_t size, const Shape& row,
             TF_Status* status) {
  const Shape rows(TF_ShapeInferenceContextVectorFromSize(context, size)), both;
  TF_ShapeInferenceContextConcatenateShapes(context, rows.get(), row.get(), both.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextSetOutput(context, output, both.get(), status);
}

// Returns the number of segments, or kUnknownSize. Input `input` has the row splits.
size_t SegmentsIn(TF_ShapeInferenceContext* context, int input, TF_Status* status) {
  const Shape given, splits;
  TF_ShapeInferenceContextGetInput(context, input, given.get(), status);
  if (TF_GetCode(status) != TF_OK) return kUnknownSize;
  TF_ShapeInferenceContextWithRank(context, given.get(), 1, splits.get(), status);
  if (TF_GetCode(status) != TF_OK) return kUnknownSize;
  TF_DimensionHandle* size = TF_NewDimensionHandle();
  TF_ShapeInferenceContextDim(context, splits.get(), 0, size);
  const int64_t value = TF_DimensionHandleValue(size);  // -1 if unknown.
  TF_DeleteDimensionHandle(size);
  return value < 1 ? kUnknownSize : static_cast<size_t>(value - 1);
}

}  // namespace

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

void LookupShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  if (TF_ShapeInferenceContextNumInputs(context) > 3) {
    SameShape(context, 3, 0, status);
  } else {
    KeysAndRowShape(context, status);
  }
  if (TF_GetCode(status) != TF_OK) return;
  // The C API does not give the number of outputs. Without `exists` there is no output 1, and
  // setting its shape fails without an effect.
  SameShape(context, 1, 1, status);
  TF_SetStatus(status, TF_OK, "");
}

void RowsShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  SameShape(context, 2, 0, status);
}

template <int kOutputs>
void KeysShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  for (int i = 0; i < kOutputs && TF_GetCode(status) == TF_OK; ++i) {
    SameShape(context, 1, i, status);
  }
}

template void KeysShapes<3>(TF_ShapeInferenceContext*, TF_Status*);
template void KeysShapes<1>(TF_ShapeInferenceContext*, TF_Status*);
template void KeysShapes<2>(TF_ShapeInferenceContext*, TF_Status*);

void PooledShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  SameShape(context, 4, 0, status);
}

void ScalarShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape shape(TF_ShapeInferenceContextScalar(context));
  TF_ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

void LifetimeHandleShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape shape(TF_ShapeInferenceContextVectorFromSize(context, 1));
  TF_ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

void UnknownShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void SegmentsAndRowShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  const size_t segments = SegmentsIn(context, 2, status);
  if (TF_GetCode(status) != TF_OK) return;
  const Shape row;
  TF_ShapeInferenceContextGetInput(context, 4, row.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  SetRows(context, 0, segments, row, status);
}

template <int kGradients>
void UniqueKeysAndSumsShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape keys(TF_ShapeInferenceContextVectorFromSize(context, kUnknownSize));
  TF_ShapeInferenceContextSetOutput(context, 0, keys.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  const Shape gradients, row;
  TF_ShapeInferenceContextGetInput(context, kGradients, gradients.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  // Scalars have no last dimension. The kernel rejects them.
  TF_ShapeInferenceContextSubshape(context, gradients.get(), -1, INT64_MAX, row.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  SetRows(context, 1, kUnknownSize, row, status);
}

template void UniqueKeysAndSumsShape<1>(TF_ShapeInferenceContext*, TF_Status*);
template void UniqueKeysAndSumsShape<3>(TF_ShapeInferenceContext*, TF_Status*);

void NoShape(TF_ShapeInferenceContext*, TF_Status*) {}

}  // namespace tfra::tf
