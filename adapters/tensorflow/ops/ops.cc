// The ops: their signatures and kernels, registered when TensorFlow loads the library.
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "ops/kernels.h"
#include "ops/shapes.h"
#include "runtime/op_context.h"
#include "tfra/version.h"

// Returns the version of the engine that this library was built with.
extern "C" __attribute__((visibility("default"))) const char* TfraBuiltWith() {
  return TFRA_VERSION;
}

namespace tfra::tf {
namespace {

#define TFRA_KEY_TYPES "{int32, int64, string}"
#define TFRA_NEW_KEYS "{'insert', 'admit', 'drop'}"
#define TFRA_VALUE_TYPES "{float, double, half, bfloat16, int8, int32, int64, bool, string}"

// Whether an op has side effects.
enum class Kind {
  kOfTable,  // It uses a table: TensorFlow must not drop, merge or fold its calls.
  kPure,     // Its outputs depend only on its inputs.
};

// One op: its signature, its shape function and its kernel (kernels.h).
struct Op {
  const char* name;
  std::initializer_list<const char*> attributes;
  std::initializer_list<const char*> inputs;
  std::initializer_list<const char*> outputs;
  ShapeFunction shape;
  void (*compute)(void*, TF_OpKernelContext*);
  void* (*create)(TF_OpKernelConstruction*) = nullptr;
  void (*destroy)(void*) = nullptr;
  Kind kind = Kind::kOfTable;
};

void Register(const Op& op) {
  TfStatus status;
  TF_OpDefinitionBuilder* definition = TF_NewOpDefinitionBuilder(op.name);
  for (const char* attribute : op.attributes) TF_OpDefinitionBuilderAddAttr(definition, attribute);
  for (const char* input : op.inputs) TF_OpDefinitionBuilderAddInput(definition, input);
  for (const char* output : op.outputs) TF_OpDefinitionBuilderAddOutput(definition, output);
  // Called only for stateful ops: the function ignores its argument and makes every op stateful.
  if (op.kind == Kind::kOfTable) TF_OpDefinitionBuilderSetIsStateful(definition, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, op.shape);
  TF_RegisterOpDefinition(definition, status.get());
  if (TF_GetCode(status.get()) == TF_OK) {
    TF_KernelBuilder* kernel =
        TF_NewKernelBuilder(op.name, "CPU", op.create, op.compute, op.destroy);
    TF_RegisterKernelBuilder(op.name, kernel, status.get());
  }
  if (TF_GetCode(status.get()) != TF_OK) {
    std::fprintf(stderr, "tfra: op %s: %s\n", op.name, TF_Message(status.get()));
  }
}

// Registers all ops, unless the engine that was loaded has another version.
bool RegisterAll() {
  // Python compares the versions too (TfraBuiltWith) and reports the error.
  if (std::strcmp(Version(), TfraBuiltWith()) != 0) return false;
  constexpr const char* kTable = "table: resource";
  constexpr const char* kTk = "Tk: " TFRA_KEY_TYPES;
  constexpr const char* kTv = "Tv: " TFRA_VALUE_TYPES;
  constexpr const char* kTs = "Ts: {float, double}";
  constexpr const char* kRule = "rule: string";
  // Optional inputs are lists of at most one tensor.
  constexpr const char* kWithScores = "with_scores: int >= 0 = 0";
  constexpr const char* kScores = "scores: with_scores * int64";
  constexpr const char* kWithBelow = "with_below: int >= 0 = 0";
  constexpr const char* kBelow = "below: with_below * int64";
  constexpr const char* kNewKeys = "new_keys: " TFRA_NEW_KEYS " = 'admit'";
  constexpr const char* kCombiner = "combiner: {'sum', 'mean', 'sqrtn'}";
  const Op ops[] = {
      {"TfraTableCreate",
       {"spec: string"},
       {kTable},
       {"lifetime_handle: int64"},
       LifetimeHandleShape,
       CreateTable,
       NewCreateKernel,
       DeleteCreateKernel},
      {"TfraLookup",
       {kTk, kTv, "initial: bool", "with_defaults: int >= 0 = 0", "with_exists: int >= 0 = 0"},
       {kTable, "keys: Tk", "row: Tv", "defaults: with_defaults * Tv"},
       {"values: Tv", "exists: with_exists * bool"},
       LookupShape,
       Lookup,
       NewLookupKernel,
       DeleteLookupKernel},
      {"TfraLookupPooled",
       {kTk, kTv, kTs, kCombiner, "initial: bool", "max_norm: float = 0.0"},
       {kTable, "keys: Tk", "row_splits: int64", "weights: float", "row: Tv"},
       {"values: Ts"},
       SegmentsAndRowShape,
       LookupPooled,
       NewLookupPooledKernel,
       DeletePoolingKernel},
      {"TfraPoolRows",
       {"Tv: {half, bfloat16, float, double}", kTs, kCombiner},
       {"rows: Tv", "row_splits: int64", "weights: float"},
       {"values: Ts"},
       UnknownShape,
       PoolRows,
       NewPoolRowsKernel,
       DeletePoolingKernel,
       Kind::kPure},
      {"TfraSumGradients",
       {kTk, "Tg: {half, bfloat16, float, double}", kTs},
       {"keys: Tk", "gradients: Tg"},
       {"unique_keys: Tk", "sums: Ts"},
       UniqueKeysAndSumsShape<1>,
       SumGradients,
       NewSumGradientsKernel,
       DeletePoolingKernel,
       Kind::kPure},
      {"TfraPooledGradient",
       {kTk, kTs, kCombiner},
       {"keys: Tk", "row_splits: int64", "weights: float", "gradients: Ts"},
       {"unique_keys: Tk", "sums: Ts"},
       UniqueKeysAndSumsShape<3>,
       PooledGradient,
       NewPooledGradientKernel,
       DeletePoolingKernel,
       Kind::kPure},
      {"TfraInsert",
       {kTk, kTv, kWithScores},
       {kTable, "keys: Tk", "values: Tv", kScores},
       {},
       NoShape,
       Insert},
      {"TfraRestore",
       {kTk, kTv, kTs, "N: int >= 1", "first_partition: int >= 0 = 0",
        "partition_count: int >= 1 = 1", "in_place: bool = true"},
       {"tables: N * resource", "keys: Tk", "values: Tv", "slots: Ts", "metadata: int32",
        "scores: int64", "rule: string", "epoch: int64", "waiting_keys: Tk", "waiting_seen: int32",
        "waiting_filter: int8", "sum_keys: Tk", "sums: Ts", "partitions: int32",
        "waiting_partitions: int32"},
       {},
       NoShape,
       Restore,
       NewRestoreKernel,
       DeleteRestoreKernel},
      {"TfraCommitRestore",
       {"drop: bool = false"},
       {"handles: int64"},
       {},
       NoShape,
       CommitRestore,
       NewCommitRestoreKernel,
       DeleteCommitRestoreKernel},
      {"TfraKeepMetadata", {}, {kTable}, {}, NoShape, KeepMetadata},
      {"TfraAccumulate",
       {kTk, kTv, kWithScores, "new_keys: " TFRA_NEW_KEYS " = 'insert'"},
       {kTable, "keys: Tk", "values_or_deltas: Tv", "exists: bool", kScores},
       {},
       NoShape,
       Accumulate,
       NewNewKeysKernel,
       DeleteNewKeysKernel},
      {"TfraRemove", {kTk}, {kTable, "keys: Tk"}, {}, NoShape, Remove},
      {"TfraEvict", {kTk}, {kTable, "keys: Tk"}, {"evicted: int64"}, ScalarShape, Evict},
      {"TfraClear", {}, {kTable}, {}, NoShape, Clear},
      {"TfraShrink", {}, {kTable}, {}, NoShape, Shrink},
      {"TfraSize", {}, {kTable}, {"size: int64"}, ScalarShape, Size},
      {"TfraExport",
       {kTk, kTv, "N: int >= 1"},
       {"tables: N * resource"},
       {"keys: Tk", "values: Tv"},
       UnknownShape,
       Export},
      {"TfraContent",
       {kTk, kTv, kTs, "N: int >= 1"},
       {"tables: N * resource"},
       {"keys: Tk", "values: Tv", "slots: Ts", "metadata: int32", "scores: int64", "rule: string",
        "epoch: int64", "waiting_keys: Tk", "waiting_seen: int32", "waiting_filter: int8"},
       UnknownShape,
       ExportContent},
      {"TfraTrainableRows",
       {kTk, "Tv: {float, double, half, bfloat16}"},
       {"shadow: resource", "keys: Tk", "rows: Tv"},
       {"trainable: Tv"},
       RowsShape,
       TrainableRows},
      {"TfraTrainablePooled",
       {kTk, kTs, kCombiner, "value_dtype: {float, double, half, bfloat16}"},
       {"shadow: resource", "keys: Tk", "row_splits: int64", "weights: float", "values: Ts"},
       {"trainable: Ts"},
       PooledShape,
       TrainablePooled},
      {"TfraBind",
       {"optimizer: string", "optimizer_name: string", "worker: string", "table_name: string",
        "keeps: {'nothing', 'slots', 'rows'}"},
       {kTable, "step: int64"},
       {},
       NoShape,
       Bind,
       NewBindKernel,
       DeleteBindKernel},
      {"TfraApplyGradients",
       {kTk, "Tg: {float, double, half, bfloat16}", kRule, "params: string", kWithScores, kNewKeys},
       {kTable, "keys: Tk", "gradients: Tg", "learning_rate: double", "step: int64", kScores},
       {},
       NoShape,
       ApplyGradients,
       NewApplyKernel,
       DeleteRuleKernel},
      {"TfraLookupRows",
       {kTk, kTv, kTs, kRule},
       {kTable, "keys: Tk", "like_row: Tv"},
       {"values: Tv", "slots: Ts"},
       KeysAndRowShape,
       LookupRows<false>,
       NewLookupRowsKernel,
       DeleteRuleKernel},
      {"TfraPeekRows",
       {kTk, kTv, kTs, kRule, "optimizer: string"},
       {kTable, "keys: Tk", "like_row: Tv"},
       {"values: Tv", "slots: Ts"},
       KeysAndRowShape,
       LookupRows<true>,
       NewPeekRowsKernel,
       DeleteRuleKernel},
      {"TfraAssignRows",
       {kTk, kTv, kTs, kRule, kWithScores, kNewKeys},
       {kTable, "keys: Tk", "values: Tv", "slots: Ts", kScores},
       {},
       NoShape,
       WriteRows<false>,
       NewWriteRowsKernel,
       DeleteRuleKernel},
      {"TfraAddToRows",
       {kTk, kTv, kTs, kRule, kWithScores, kNewKeys},
       {kTable, "keys: Tk", "values: Tv", "slots: Ts", kScores},
       {},
       NoShape,
       WriteRows<true>,
       NewWriteRowsKernel,
       DeleteRuleKernel},
      {"TfraTouch",
       {kTk, kNewKeys},
       {kTable, "keys: Tk"},
       {},
       NoShape,
       Touch,
       NewNewKeysKernel,
       DeleteNewKeysKernel},
      {"TfraLookupMetadata",
       {kTk},
       {kTable, "keys: Tk"},
       {"time: int64", "count: int64", "exists: bool"},
       KeysShapes<3>,
       LookupMetadata},
      {"TfraRestrict",
       {"ranking: {'newest', 'most_frequent'}"},
       {kTable, "keep: int64"},
       {"evicted: int64"},
       ScalarShape,
       Restrict,
       NewRestrictKernel,
       DeleteRestrictKernel},
      {"TfraExpire",
       {},
       {kTable, "ttl: int64", "min_norm: double", "norm_writes: int64"},
       {"expired: int64"},
       ScalarShape,
       Expire},
      {"TfraStats", {}, {kTable}, {"counters: int64"}, UnknownShape, Stats},
      {"TfraHistograms",
       {},
       {kTable},
       {"age: int64", "writes: int64", "norm: int64"},
       UnknownShape,
       Histograms},
      {"TfraSetClock", {}, {kTable, "now: int64"}, {}, NoShape, SetClock},
      {"TfraExportBatch",
       {kTk, kTv},
       {kTable, "cursor: int64", "max_rows: int64"},
       {"keys: Tk", "values: Tv", "metadata: int64", "next_cursor: int64"},
       UnknownShape,
       ExportBatchOfRows},
      {"TfraExportScores",
       {kTk, kTv, "N: int >= 1"},
       {"tables: N * resource"},
       {"keys: Tk", "values: Tv", "scores: int64"},
       UnknownShape,
       ExportScores},
      {"TfraExportKeysAndScores",
       {kTk, "N: int >= 1"},
       {"tables: N * resource", "split_size: int64"},
       {"keys: Tk", "scores: int64"},
       UnknownShape,
       ExportKeysAndScores},
      {"TfraInsertAndEvict",
       {kTk, kTv, kWithScores},
       {kTable, "keys: Tk", "values: Tv", kScores},
       {"evicted_keys: Tk", "evicted_values: Tv", "evicted_scores: int64", "rejected: bool"},
       UnknownShape,
       InsertAndEvict},
      {"TfraFindOrInsert",
       {kTk, kTv, kWithScores},
       {kTable, "keys: Tk", "defaults: Tv", "initial: bool", kScores},
       {"values: Tv", "exists: bool"},
       UnknownShape,
       FindOrInsert},
      {"TfraAssignExisting",
       {kTk, kTv, kWithScores},
       {kTable, "keys: Tk", "values: Tv", kScores},
       {},
       NoShape,
       AssignExisting},
      {"TfraAssignScores", {kTk}, {kTable, "keys: Tk", "scores: int64"}, {}, NoShape, AssignScores},
      {"TfraLookupScores",
       {kTk},
       {kTable, "keys: Tk"},
       {"scores: int64", "exists: bool"},
       KeysShapes<2>,
       LookupScores},
      {"TfraContains", {kTk}, {kTable, "keys: Tk"}, {"exists: bool"}, KeysShapes<1>, Contains},
      {"TfraSizeIf",
       {kWithBelow},
       {kTable, "at_least: int64", kBelow},
       {"count: int64"},
       ScalarShape,
       SizeIf},
      {"TfraEraseIf",
       {kWithBelow},
       {kTable, "at_least: int64", kBelow},
       {"count: int64"},
       ScalarShape,
       EraseIf},
      {"TfraExportIf",
       {kTk, kTv, kWithBelow},
       {kTable, "at_least: int64", kBelow},
       {"keys: Tk", "values: Tv", "scores: int64"},
       UnknownShape,
       ExportIf},
      {"TfraReserve", {}, {kTable, "keys: int64"}, {}, NoShape, Reserve},
      {"TfraSetEpoch", {}, {kTable, "epoch: int64"}, {}, NoShape, SetEpoch},
      {"TfraEpoch", {}, {kTable}, {"epoch: int64"}, ScalarShape, Epoch},
      {"TfraTableHandle", {}, {kTable}, {"handle: int64"}, ScalarShape, TableHandle},
      {"TfraTableCount", {}, {}, {"count: int64"}, ScalarShape, CountTables},
  };
  for (const Op& op : ops) Register(op);
  return true;
}

[[maybe_unused]] const bool registered = RegisterAll();

}  // namespace
}  // namespace tfra::tf
