// Rows of the engine as outputs of an op.
#pragma once

#include "runtime/arguments.h"

namespace tfra::tf {

// Sets an output to keys (n) of the table's key dtype. Only one of the two columns is filled.
void SetKeys(const OpContext& context, int output, const TrainedTable& table,
             const std::vector<int64_t>& ints, const StringColumn& strings);

// Sets an output to the values (n, dim) of a batch.
void SetValues(const OpContext& context, int output, const TrainedTable& table,
               const ExportBatch& batch);

}  // namespace tfra::tf
