#include "ops/outputs.h"

#include <algorithm>
#include <cstring>

#include "runtime/attributes.h"

namespace tfra::tf {

void SetKeys(const OpContext& context, int output, const TrainedTable& table,
             const std::vector<int64_t>& ints, const StringColumn& strings) {
  const TF_DataType type = KeyDtypeOf(table);
  const size_t n = type == TF_STRING ? strings.size() : ints.size();
  const Tensor keys = context.Output(output, type, {static_cast<int64_t>(n)});
  if (type == TF_STRING) {
    StoreStrings(strings, keys);
  } else if (type == TF_INT32) {
    std::transform(ints.begin(), ints.end(), keys.data<int32_t>(),
                   [](int64_t key) { return static_cast<int32_t>(key); });
  } else {
    std::copy(ints.begin(), ints.end(), keys.data<int64_t>());
  }
}

void SetValues(const OpContext& context, int output, const TrainedTable& table,
               const ExportBatch& batch) {
  const Dims dims = {static_cast<int64_t>(batch.size), table.dim()};
  const Tensor values = context.Output(output, DataTypeOf(table.value_type()), dims);
  if (table.value_type() == ValueType::kString) {
    StoreStrings(batch.string_values, values);
  } else if (batch.size > 0) {
    std::memcpy(values.data<void>(), batch.values.data(), batch.values.size());
  }
}

}  // namespace tfra::tf
