// What the ops do. Each function is a kernel's compute function; ops.cc says which op it serves.
#pragma once

#include "tf_c_api.h"

namespace tfra::tf {

// table -> token. Attributes: key_dtype, value_dtype, dim (0 for scalars), capacity, initializer.
void* NewCreateKernel(TF_OpKernelConstruction* construction);
void DeleteCreateKernel(void* kernel);
void CreateTable(void* kernel, TF_OpKernelContext* context);

// What a lookup gives for missing keys, by its third input: that row; the row of the key, or one
// for all; or, the input being of use for its shape only, the table's initial value.
enum class Missing { kOneRow, kRowPerKey, kInitial };

// table, keys, defaults -> values; with kExists also -> exists.
template <Missing kMissing, bool kExists>
void Lookup(void*, TF_OpKernelContext* context);

// table, keys, values
void Insert(void*, TF_OpKernelContext* context);
// table, keys, values, slots, metadata, parts, part, part_count: in place of what is in the table,
// the keys of one part; of all keys, if there is one part only.
void Restore(void*, TF_OpKernelContext* context);
// table, keys, deltas, exists
void Accumulate(void*, TF_OpKernelContext* context);
// table, keys
void Remove(void*, TF_OpKernelContext* context);
// table
void Clear(void*, TF_OpKernelContext* context);
// table -> size
void Size(void*, TF_OpKernelContext* context);
// tables -> keys, values
void Export(void*, TF_OpKernelContext* context);
// tables -> keys, values, slots, metadata
void Snapshot(void*, TF_OpKernelContext* context);
// -> the number of tables in this process
void CountTables(void*, TF_OpKernelContext* context);

}  // namespace tfra::tf
