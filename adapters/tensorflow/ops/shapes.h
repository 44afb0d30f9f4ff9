// Shape functions: the shapes of the outputs of ops, as far as they are known before an op runs.
// Inputs and outputs are counted from 0.
#pragma once

#include "runtime/tf_c_api.h"

namespace tfra::tf {

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

// Output 0: keys.shape + row.shape. Input 1 has the keys, input 2 the row.
void KeysAndRowShape(TF_ShapeInferenceContext* context, TF_Status* status);
// For TfraLookup. `values`: the shape of `defaults` if it is given, else keys.shape + row.shape.
// `exists`: keys.shape.
void LookupShape(TF_ShapeInferenceContext* context, TF_Status* status);
// Output 0: the shape of input 2.
void RowsShape(TF_ShapeInferenceContext* context, TF_Status* status);
// Output 0: [segments] + row.shape. Input 2 has the row splits, input 4 the row.
void SegmentsAndRowShape(TF_ShapeInferenceContext* context, TF_Status* status);
// Output 0: [?]. Output 1: [?, dim]; dim is the last dimension of the gradients, input kGradients.
template <int kGradients>
void UniqueKeysAndSumsShape(TF_ShapeInferenceContext* context, TF_Status* status);
// Outputs 0 to kOutputs - 1: keys.shape. Input 1 has the keys.
template <int kOutputs>
void KeysShapes(TF_ShapeInferenceContext* context, TF_Status* status);
// Output 0: the shape of input 4.
void PooledShape(TF_ShapeInferenceContext* context, TF_Status* status);

// Output 0: [].
void ScalarShape(TF_ShapeInferenceContext* context, TF_Status* status);
// Output 0: [1].
void LifetimeHandleShape(TF_ShapeInferenceContext* context, TF_Status* status);
// All outputs: unknown.
void UnknownShape(TF_ShapeInferenceContext* context, TF_Status* status);
// For ops without outputs.
void NoShape(TF_ShapeInferenceContext* context, TF_Status* status);

}  // namespace tfra::tf
