// What the ops do. Each function is a kernel's compute function; ops.cc says which op it serves.
#pragma once

#include "runtime/tf_c_api.h"

namespace tfra::tf {

// Ops that write to keys take also the scores of these, or nothing, as their last input.

// table -> lifetime_handle. Attributes: spec, the JSON of a TableSpec.
void* NewCreateKernel(TF_OpKernelConstruction* construction);
void DeleteCreateKernel(void* kernel);
void CreateTable(void* kernel, TF_OpKernelContext* context);

// table, keys, row, at most one `defaults` -> values, at most one `exists`. A missing key gets its
// row of `defaults` if that is given; with `initial`, the initial value of the table; else `row`,
// which also says the shape of a row. Attributes: initial, with_defaults and with_exists (0 or 1
// each).
void* NewLookupKernel(TF_OpKernelConstruction* construction);
void DeleteLookupKernel(void* kernel);
void Lookup(void* kernel, TF_OpKernelContext* context);

// table, keys, row_splits, weights, row -> values. Attributes: combiner, max_norm, initial, Ts.
// Weights may be empty: all are 1.
void* NewLookupPooledKernel(TF_OpKernelConstruction* construction);
void LookupPooled(void* kernel, TF_OpKernelContext* context);
// keys, gradients -> unique keys, sums. Attributes: Ts.
void* NewSumGradientsKernel(TF_OpKernelConstruction* construction);
void SumGradients(void* kernel, TF_OpKernelContext* context);
// keys, row_splits, weights, gradients of LookupPooled -> unique keys, sums. Attributes: combiner.
void* NewPooledGradientKernel(TF_OpKernelConstruction* construction);
void PooledGradient(void* kernel, TF_OpKernelContext* context);
// Of all of these, and of PoolRows.
void DeletePoolingKernel(void* kernel);

// table, keys, values
void Insert(void*, TF_OpKernelContext* context);
// tables, the fields of Content, partitions, waiting_partitions: in place of what is in the tables,
// the keys of their partitions; all keys, if there is one table only. Everything is checked before
// the first table changes. Attributes: first_partition, the number of the first table;
// partition_count.
void* NewRestoreKernel(TF_OpKernelConstruction* construction);
void DeleteRestoreKernel(void* kernel);
void Restore(void* kernel, TF_OpKernelContext* context);
// Of Accumulate and Touch. Attributes: new_keys.
void* NewNewKeysKernel(TF_OpKernelConstruction* construction);
void DeleteNewKeysKernel(void* kernel);
// table, keys, deltas, exists
void Accumulate(void* kernel, TF_OpKernelContext* context);
// table, keys
void Remove(void*, TF_OpKernelContext* context);
void Evict(void*, TF_OpKernelContext* context);
// table
void Clear(void*, TF_OpKernelContext* context);
void Shrink(void*, TF_OpKernelContext* context);
// table -> size
void Size(void*, TF_OpKernelContext* context);
// tables -> keys, values
void Export(void*, TF_OpKernelContext* context);
// tables -> keys, values, slots, metadata, scores, rule, epoch and steps, and of the keys that wait
// to enter: keys, seen, filter
void ExportContent(void*, TF_OpKernelContext* context);
// rows, row_splits, weights -> values. Attributes: combiner, Ts.
void* NewPoolRowsKernel(TF_OpKernelConstruction* construction);
void PoolRows(void* kernel, TF_OpKernelContext* context);
// table, step: of the optimizer, from 1; 0 if it does not count them. Says that an optimizer is
// about to take a step: one that is new to the table takes the place of the one before it, and
// starts what that left anew, in its first step. Fails if another took its own place. Attributes:
// optimizer (a name that no other has); optimizer_name and worker: those of one name share slots if
// they are of different workers; table_name; keeps, what it has in the table: 'nothing',
// 'slots' or all 'rows'.
void* NewBindKernel(TF_OpKernelConstruction* construction);
void DeleteBindKernel(void* kernel);
void Bind(void* kernel, TF_OpKernelContext* context);
// What the next ones do to a table that has another rule: see TableUse. Attributes: rule;
// new_keys, but not for LookupRows; and, for ApplyGradients, params.
void* NewLookupRowsKernel(TF_OpKernelConstruction* construction);
void* NewPeekRowsKernel(TF_OpKernelConstruction* construction);
void* NewWriteRowsKernel(TF_OpKernelConstruction* construction);
void* NewApplyKernel(TF_OpKernelConstruction* construction);
void DeleteRuleKernel(void* kernel);
// shadow, keys, rows -> rows: the same. Its gradient, which is Python's, goes to the variable
// that stands for the table in training.
void TrainableRows(void*, TF_OpKernelContext* context);
// shadow, keys, row_splits, weights, values -> values: the same, for LookupPooled.
void TrainablePooled(void*, TF_OpKernelContext* context);
// table, keys, gradients, learning_rate, step
void ApplyGradients(void* kernel, TF_OpKernelContext* context);
// table, keys, like_row -> values, slots. With kPeek, and the attribute optimizer, of a table that
// this one trains: nothing changes.
template <bool kPeek>
void LookupRows(void* kernel, TF_OpKernelContext* context);
// table, keys, values, slots: assigns or, kAdd, adds to what is there.
template <bool kAdd>
void WriteRows(void* kernel, TF_OpKernelContext* context);
// table, keys
void Touch(void* kernel, TF_OpKernelContext* context);
// table, keys -> time, count, exists
void LookupMetadata(void*, TF_OpKernelContext* context);
// table, keep -> evicted. Attributes: ranking.
void* NewRestrictKernel(TF_OpKernelConstruction* construction);
void DeleteRestrictKernel(void* kernel);
void Restrict(void* kernel, TF_OpKernelContext* context);
// table, ttl (negative: none), min_norm, norm_writes -> expired
void Expire(void*, TF_OpKernelContext* context);
// table -> counters
void Stats(void*, TF_OpKernelContext* context);
// table -> age, writes, norm
void Histograms(void*, TF_OpKernelContext* context);
// table, now
void SetClock(void*, TF_OpKernelContext* context);
// table, cursor, max_rows -> keys, values, time and count, the next cursor (its third number is 1
// at the end)
void ExportBatchOfRows(void*, TF_OpKernelContext* context);
// What only bounded tables do.
// tables -> keys, values, scores
void ExportScores(void*, TF_OpKernelContext* context);
// tables, split_size -> keys, scores
void ExportKeysAndScores(void*, TF_OpKernelContext* context);
// table, keys, values -> evicted keys, values, scores, rejected
void InsertAndEvict(void*, TF_OpKernelContext* context);
// table, keys, defaults, initial (whether the table's initial value is meant) -> values, exists
void FindOrInsert(void*, TF_OpKernelContext* context);
// table, keys, values
void AssignExisting(void*, TF_OpKernelContext* context);
// table, keys, scores
void AssignScores(void*, TF_OpKernelContext* context);
// table, keys -> scores, exists
void LookupScores(void*, TF_OpKernelContext* context);
// table, keys -> exists
void Contains(void*, TF_OpKernelContext* context);
// table, at_least and, maybe, below -> count; -> count; -> keys, values, scores
void SizeIf(void*, TF_OpKernelContext* context);
void EraseIf(void*, TF_OpKernelContext* context);
void ExportIf(void*, TF_OpKernelContext* context);
// table, keys
void Reserve(void*, TF_OpKernelContext* context);
// table, epoch
void SetEpoch(void*, TF_OpKernelContext* context);
// table -> epoch
void Epoch(void*, TF_OpKernelContext* context);
// -> the number of tables in this process
void CountTables(void*, TF_OpKernelContext* context);
// table -> handle: the number by which other frameworks of the process find the table.
void TableHandle(void*, TF_OpKernelContext* context);

}  // namespace tfra::tf
