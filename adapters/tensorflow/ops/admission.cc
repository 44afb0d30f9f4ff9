// What tables know of keys that have not entered, as tensors: for checkpoints.
#include <cstring>

#include "ops/kernels.h"
#include "runtime/arguments.h"

namespace tfra::tf {
namespace {

template <typename T>
void Append(std::vector<T>* to, const std::vector<T>& from) {
  to->insert(to->end(), from.begin(), from.end());
}

void CopyTo(const Tensor& tensor, const void* data, size_t bytes) {
  if (bytes > 0) std::memcpy(tensor.data<void>(), data, bytes);
}

}  // namespace

void ContentAdmission(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    AdmissionState all;
    TF_DataType key_dtype = TF_INT64;
    for (int i = 0; i < context.inputs(); ++i) {
      const TableUse table = UseTable(context, i, "tables");
      if (i > 0 && KeyDtypeOf(table.trained()) != key_dtype) {
        InvalidArgument(std::string("expected `tables` with keys of one type, received ") +
                        NameOf(key_dtype) + " and " + NameOf(KeyDtypeOf(table.trained())));
      }
      key_dtype = KeyDtypeOf(table.trained());
      AdmissionState state;
      Check(table->upkeep().ExportAdmission(&state));
      Append(&all.int_keys, state.int_keys);
      Append(&all.string_keys, state.string_keys);
      Append(&all.seen, state.seen);
      Append(&all.filter, state.filter);
    }
    const auto n = static_cast<int64_t>(all.seen.size());
    const Tensor keys = context.Output(0, key_dtype, {n});
    if (key_dtype == TF_STRING) {
      StoreStrings(all.string_keys, keys);
    } else if (key_dtype == TF_INT32) {
      std::copy(all.int_keys.begin(), all.int_keys.end(), keys.data<int32_t>());
    } else {
      CopyTo(keys, all.int_keys.data(), all.int_keys.size() * sizeof(int64_t));
    }
    CopyTo(context.Output(1, TF_INT32, {n, 2}), all.seen.data(),
           all.seen.size() * sizeof(RowMetadata));
    CopyTo(context.Output(2, TF_INT8, {static_cast<int64_t>(all.filter.size())}), all.filter.data(),
           all.filter.size());
  });
}

}  // namespace tfra::tf
