// The shapes of ops' outputs, as far as they are known before the op runs.
#pragma once

#include "runtime/tf_c_api.h"

namespace tfra::tf {

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

// keys.shape + row.shape, of the second and third inputs.
void KeysAndRowShape(TF_ShapeInferenceContext* context, TF_Status* status);
// Of TfraLookup: the shape of `defaults` if that is given, else keys.shape + row.shape; for
// `exists` keys.shape.
void LookupShape(TF_ShapeInferenceContext* context, TF_Status* status);
// The shape of the third input.
void RowsShape(TF_ShapeInferenceContext* context, TF_Status* status);
// [segments] + row.shape, from row splits, the third input, and a row, the fifth.
void SegmentsAndRowShape(TF_ShapeInferenceContext* context, TF_Status* status);
// [?] and [?, dim], dim being the last dimension of the gradients.
template <int kGradients>  // Which input they are.
void UniqueKeysAndSumsShape(TF_ShapeInferenceContext* context, TF_Status* status);
// keys.shape, of the second input, for each of some outputs.
template <int kOutputs>
void KeysShapes(TF_ShapeInferenceContext* context, TF_Status* status);
// Input 4's.
void PooledShape(TF_ShapeInferenceContext* context, TF_Status* status);

void ScalarShape(TF_ShapeInferenceContext* context, TF_Status* status);
void LifetimeHandleShape(TF_ShapeInferenceContext* context, TF_Status* status);
void UnknownShape(TF_ShapeInferenceContext* context, TF_Status* status);
// For ops without outputs.
void NoShape(TF_ShapeInferenceContext* context, TF_Status* status);

}  // namespace tfra::tf
