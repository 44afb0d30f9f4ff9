// Declares the part of TensorFlow's C API that the ops use, so that building needs no TensorFlow.
// libtensorflow_framework.so.2 exports these functions, and TensorFlow keeps them stable, so that
// one library works with every version from 2.16 on.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_DimensionHandle;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;

struct TF_Buffer {
  const void* data;
  size_t length;
  void (*data_deallocator)(void* data, size_t length);
};

struct TF_StringView {
  const char* data;
  size_t len;
};

// TensorFlow declares these two as enumerations; they have the size of an int.
typedef int TF_Code;
typedef int TF_DataType;

enum : TF_Code {
  TF_OK = 0,
  TF_INVALID_ARGUMENT = 3,
  TF_RESOURCE_EXHAUSTED = 8,
  TF_FAILED_PRECONDITION = 9,
  TF_INTERNAL = 13,
};

enum : TF_DataType {
  TF_FLOAT = 1,
  TF_DOUBLE = 2,
  TF_INT32 = 3,
  TF_INT8 = 6,
  TF_STRING = 7,
  TF_INT64 = 9,
  TF_BOOL = 10,
  TF_BFLOAT16 = 14,
  TF_HALF = 19,
};

TF_Status* TF_NewStatus();
void TF_DeleteStatus(TF_Status*);
void TF_SetStatus(TF_Status*, TF_Code code, const char* message);
TF_Code TF_GetCode(const TF_Status*);
const char* TF_Message(const TF_Status*);

TF_Buffer* TF_NewBuffer();
void TF_DeleteBuffer(TF_Buffer*);

TF_Tensor* TF_NewTensor(TF_DataType, const int64_t* dims, int rank, void* data, size_t bytes,
                        void (*deallocator)(void* data, size_t bytes, void* argument),
                        void* argument);
TF_Tensor* TF_AllocateTensor(TF_DataType, const int64_t* dims, int rank, size_t bytes);
void TF_DeleteTensor(TF_Tensor*);
TF_DataType TF_TensorType(const TF_Tensor*);
int TF_NumDims(const TF_Tensor*);
int64_t TF_Dim(const TF_Tensor*, int);
void* TF_TensorData(const TF_Tensor*);

TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* name);
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder*, TF_Status*);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder*, const char*);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder*, const char*);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder*, const char*);
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder*, bool);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder*,
                                                     void (*)(TF_ShapeInferenceContext*,
                                                              TF_Status*));

TF_ShapeHandle* TF_NewShapeHandle();
void TF_DeleteShapeHandle(TF_ShapeHandle*);
int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext*);
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*);
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*);
TF_ShapeHandle* TF_ShapeInferenceContextScalar(TF_ShapeInferenceContext*);
TF_ShapeHandle* TF_ShapeInferenceContextVectorFromSize(TF_ShapeInferenceContext*, size_t);
void TF_ShapeInferenceContextConcatenateShapes(TF_ShapeInferenceContext*, TF_ShapeHandle* first,
                                               TF_ShapeHandle* second, TF_ShapeHandle* result,
                                               TF_Status*);
void TF_ShapeInferenceContextWithRank(TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t rank,
                                      TF_ShapeHandle* result, TF_Status*);
void TF_ShapeInferenceContextSubshape(TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t start,
                                      int64_t end, TF_ShapeHandle* result, TF_Status*);
TF_DimensionHandle* TF_NewDimensionHandle();
void TF_DeleteDimensionHandle(TF_DimensionHandle*);
void TF_ShapeInferenceContextDim(TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t index,
                                 TF_DimensionHandle* result);
int64_t TF_DimensionHandleValue(TF_DimensionHandle*);
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext*, TF_Status*);

TF_KernelBuilder* TF_NewKernelBuilder(const char* op, const char* device,
                                      void* (*create)(TF_OpKernelConstruction*),
                                      void (*compute)(void*, TF_OpKernelContext*),
                                      void (*destroy)(void*));
void TF_RegisterKernelBuilder(const char* name, TF_KernelBuilder*, TF_Status*);
void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction*, TF_Status*);
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction*, const char* name,
                                         int32_t* list_size, int32_t* total_size, TF_Status*);
void TF_OpKernelConstruction_GetAttrType(TF_OpKernelConstruction*, const char* name, TF_DataType*,
                                         TF_Status*);
void TF_OpKernelConstruction_GetAttrInt64(TF_OpKernelConstruction*, const char* name, int64_t*,
                                          TF_Status*);
void TF_OpKernelConstruction_GetAttrFloat(TF_OpKernelConstruction*, const char* name, float*,
                                          TF_Status*);
void TF_OpKernelConstruction_GetAttrBool(TF_OpKernelConstruction*, const char* name, unsigned char*,
                                         TF_Status*);
void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction*, const char* name, char* value,
                                           size_t max_length, TF_Status*);

int TF_NumInputs(TF_OpKernelContext*);
TF_DataType TF_ExpectedOutputDataType(TF_OpKernelContext*, int);
void TF_GetInput(TF_OpKernelContext*, int, TF_Tensor**, TF_Status*);
void TF_SetOutput(TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*);
TF_Tensor* TF_AllocateOutput(TF_OpKernelContext*, int, TF_DataType, const int64_t* dims, int rank,
                             size_t bytes, TF_Status*);
void TF_OpKernelContext_Failure(TF_OpKernelContext*, TF_Status*);
TF_StringView TF_GetResourceMgrDefaultContainerName(TF_OpKernelContext*);
void TF_GetSerializedResourceHandleProto(TF_OpKernelContext*, int, TF_Buffer*, TF_Status*);

}  // extern "C"
