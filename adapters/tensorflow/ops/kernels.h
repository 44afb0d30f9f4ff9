// The kernels of the ops. ops.cc says which op has which kernel.
//
// A kernel is a compute function. A kernel that reads attributes also has a function New...Kernel,
// which reads them, and a function Delete...Kernel. The comment of each kernel says:
//   inputs -> outputs. Attributes: those that the kernel reads.
// `keys` and `exists` may have any shape; `values` are keys.shape + [dim]. `[scores]` is an
// optional last input: the scores of the keys, for a bounded table.
#pragma once

#include "runtime/tf_c_api.h"

namespace tfra::tf {

// ---- create.cc: the table of a resource handle.

// table -> lifetime_handle. Attributes: spec, the JSON form of a TableSpec.
void CreateTable(void* kernel, TF_OpKernelContext* context);
void* NewCreateKernel(TF_OpKernelConstruction* construction);
void DeleteCreateKernel(void* kernel);

// ---- tables.cc: reading and writing rows.

// table, keys, row, [defaults] -> values, [exists]. Attributes: initial, with_exists.
// A missing key gets its row of `defaults`, if `defaults` is given; else its initial row, if
// `initial` is true; else `row`. `row` also gives the shape of one row.
void Lookup(void* kernel, TF_OpKernelContext* context);
void* NewLookupKernel(TF_OpKernelConstruction* construction);
void DeleteLookupKernel(void* kernel);

// table, keys, values, [scores] -> nothing.
void Insert(void*, TF_OpKernelContext* context);

// table, keys, values_or_deltas, exists, [scores] -> nothing. Attributes: new_keys.
void Accumulate(void* kernel, TF_OpKernelContext* context);
// For Accumulate and Touch.
void* NewNewKeysKernel(TF_OpKernelConstruction* construction);
void DeleteNewKeysKernel(void* kernel);

// table, keys -> nothing.
void Remove(void*, TF_OpKernelContext* context);

// table -> nothing.
void Clear(void*, TF_OpKernelContext* context);

// table -> size.
void Size(void*, TF_OpKernelContext* context);

// table -> handle, the number by which other frameworks of the process find the table.
void TableHandle(void*, TF_OpKernelContext* context);

// nothing -> the number of tables that TensorFlow has in this process.
void CountTables(void*, TF_OpKernelContext* context);

// ---- pooling.cc: segments of rows, combined into one row each. Empty `weights` mean that all
// weights are 1. Every pooling kernel is deleted by DeletePoolingKernel.

void DeletePoolingKernel(void* kernel);

// table, keys, row_splits, weights, row -> values. Attributes: combiner, max_norm, initial, Ts.
// A missing key gets its initial row, if `initial` is true, else `row`.
void LookupPooled(void* kernel, TF_OpKernelContext* context);
void* NewLookupPooledKernel(TF_OpKernelConstruction* construction);

// rows, row_splits, weights -> values. Attributes: combiner, Ts.
void PoolRows(void* kernel, TF_OpKernelContext* context);
void* NewPoolRowsKernel(TF_OpKernelConstruction* construction);

// keys, gradients -> unique_keys, sums. Attributes: Ts.
void SumGradients(void* kernel, TF_OpKernelContext* context);
void* NewSumGradientsKernel(TF_OpKernelConstruction* construction);

// keys, row_splits, weights, gradients -> unique_keys, sums. Attributes: combiner.
// `gradients` are those of the values that LookupPooled returned.
void PooledGradient(void* kernel, TF_OpKernelContext* context);
void* NewPooledGradientKernel(TF_OpKernelConstruction* construction);

// shadow, keys, row_splits, weights, values -> values. Returns `values` unchanged. Python defines
// the gradient of this op, which goes to the shadow.
void TrainablePooled(void*, TF_OpKernelContext* context);

// ---- training.cc: optimizer steps. A kernel with the attribute `rule` that changes rows first
// gives the table the slots of that rule (TrainedTable::Use::BeginStep). Such a kernel is deleted
// by DeleteRuleKernel.

void DeleteRuleKernel(void* kernel);

// shadow, keys, rows -> rows. Returns `rows` unchanged. Python defines the gradient of this op,
// which goes to the shadow.
void TrainableRows(void*, TF_OpKernelContext* context);

// table, step -> nothing. Attributes: optimizer, optimizer_name, worker, table_name, keeps.
// Binds an optimizer before it takes a step (TrainedTable::Use::Bind); fails if another optimizer
// has taken its place. `step` counts from 1, or is 0 if the optimizer does not count its steps.
// `optimizer` is a name that no other optimizer has. Optimizers of different workers share the
// slots if they have the same `optimizer_name`. `keeps` is what the optimizer keeps in the table:
// 'nothing', 'slots', or all 'rows'. With 'rows', the first step of a new optimizer clears the
// table.
void Bind(void* kernel, TF_OpKernelContext* context);
void* NewBindKernel(TF_OpKernelConstruction* construction);
void DeleteBindKernel(void* kernel);

// table, keys, gradients, learning_rate, step, [scores] -> nothing.
// Attributes: rule, params, new_keys.
void ApplyGradients(void* kernel, TF_OpKernelContext* context);
void* NewApplyKernel(TF_OpKernelConstruction* construction);

// table, keys, like_row -> values, slots. Attributes: rule; and optimizer, if kPeek.
// `like_row` gives the shape of one row. With kPeek the table does not change: the kernel fails
// unless `optimizer` is bound and the rows have the slots of `rule`.
template <bool kPeek>
void LookupRows(void* kernel, TF_OpKernelContext* context);
void* NewLookupRowsKernel(TF_OpKernelConstruction* construction);
void* NewPeekRowsKernel(TF_OpKernelConstruction* construction);

// table, keys, values, slots, [scores] -> nothing. Attributes: rule, new_keys.
// Overwrites rows; with kAdd, adds to them.
template <bool kAdd>
void WriteRows(void* kernel, TF_OpKernelContext* context);
void* NewWriteRowsKernel(TF_OpKernelConstruction* construction);

// ---- upkeep.cc: metadata, restriction, expiry and counters.

// table -> nothing. Gives the rows metadata, unless they have some.
void KeepMetadata(void*, TF_OpKernelContext* context);

// table, keys -> nothing. Attributes: new_keys. Notes a write of each key in its metadata.
void Touch(void* kernel, TF_OpKernelContext* context);

// table, keys -> time, count, exists.
void LookupMetadata(void*, TF_OpKernelContext* context);

// table, keep -> evicted, a number of keys. Attributes: ranking.
void Restrict(void* kernel, TF_OpKernelContext* context);
void* NewRestrictKernel(TF_OpKernelConstruction* construction);
void DeleteRestrictKernel(void* kernel);

// table, keys -> evicted, a number of keys.
void Evict(void*, TF_OpKernelContext* context);

// table -> nothing. Gives unused memory back.
void Shrink(void*, TF_OpKernelContext* context);

// table, ttl, min_norm, norm_writes -> expired, a number of keys. A negative `ttl` means no limit.
void Expire(void*, TF_OpKernelContext* context);

// table -> counters, in the order of kStatsFields.
void Stats(void*, TF_OpKernelContext* context);

// table -> age, writes, norm.
void Histograms(void*, TF_OpKernelContext* context);

// table, now -> nothing.
void SetClock(void*, TF_OpKernelContext* context);

// ---- scores.cc: scores, and calls for bounded tables. `at_least` and `below` select the keys with
// at_least <= score < below.

// table, keys, values, [scores] -> evicted_keys, evicted_values, evicted_scores, rejected.
void InsertAndEvict(void*, TF_OpKernelContext* context);

// table, keys, defaults, initial, [scores] -> values, exists.
// Inserts missing keys with their initial rows, if `initial` is true and `defaults` is one row;
// else with `defaults`, which is one row or a row per key.
void FindOrInsert(void*, TF_OpKernelContext* context);

// table, keys, values, [scores] -> nothing.
void AssignExisting(void*, TF_OpKernelContext* context);

// table, keys, scores -> nothing.
void AssignScores(void*, TF_OpKernelContext* context);

// table, keys -> scores, exists.
void LookupScores(void*, TF_OpKernelContext* context);

// table, keys -> exists.
void Contains(void*, TF_OpKernelContext* context);

// table, at_least, [below] -> count.
void SizeIf(void*, TF_OpKernelContext* context);

// table, at_least, [below] -> count. Removes the selected keys.
void EraseIf(void*, TF_OpKernelContext* context);

// table, at_least, [below] -> keys, values, scores.
void ExportIf(void*, TF_OpKernelContext* context);

// table, keys -> nothing. Makes room for a number of keys.
void Reserve(void*, TF_OpKernelContext* context);

// table, epoch -> nothing.
void SetEpoch(void*, TF_OpKernelContext* context);

// table -> epoch.
void Epoch(void*, TF_OpKernelContext* context);

// ---- export.cc: all rows of tables.

// tables -> keys, values.
void Export(void*, TF_OpKernelContext* context);

// tables -> keys, values, scores. Bounded tables.
void ExportScores(void*, TF_OpKernelContext* context);

// tables, split_size -> keys, scores. Bounded tables.
void ExportKeysAndScores(void*, TF_OpKernelContext* context);

// table, cursor, max_rows -> keys, values, metadata (time and count), next_cursor. The third number
// of `next_cursor` is 1 after the last batch.
void ExportBatchOfRows(void*, TF_OpKernelContext* context);

// tables -> keys, values, slots, metadata, scores, rule, epoch, waiting_keys, waiting_seen,
// waiting_filter. `rule` is the JSON form of the TableSpec; `epoch` has the epoch and the number of
// steps in all (TrainedTable::epoch_steps); the last three are the fields of AdmissionState.
void ExportContent(void*, TF_OpKernelContext* context);

// ---- restore.cc: the content of a checkpoint into tables.

// tables, the fields of Content, partitions, waiting_partitions -> nothing.
// Attributes: first_partition, partition_count, in_place.
// Fills a new table for each table with the rows of its partition; TfraCommitRestore puts them in
// the places of these. With `in_place`, the rows of the tables are replaced at once. Nothing
// changes unless all inputs are valid. The tables are the partitions from `first_partition` on; if
// `partition_count` is 1, the table gets all rows.
void Restore(void* kernel, TF_OpKernelContext* context);
void* NewRestoreKernel(TF_OpKernelConstruction* construction);
void DeleteRestoreKernel(void* kernel);

// handles (n) -> nothing.
// Attribute: drop. Puts what TfraRestore has filled in the places of the tables with these handles
// (TfraTableHandle): of all, or of none. With `drop`, forgets it. Not resources, which one op would
// only take of one device.
void CommitRestore(void* kernel, TF_OpKernelContext* context);
void* NewCommitRestoreKernel(TF_OpKernelConstruction* construction);
void DeleteCommitRestoreKernel(void* kernel);

}  // namespace tfra::tf
