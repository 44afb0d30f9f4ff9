#include "create.h"

#include <sstream>

#include "attributes.h"
#include "kernels.h"

namespace tfra::tf {
namespace {

// "zeros", "constant ROW", "uniform SEED LOW HIGH", "normal SEED MEAN STDDEV" or
// "truncated_normal SEED MEAN STDDEV". Rows and numbers are given as their bytes.
InitializerSpec InitializerOf(const std::string& text) {
  std::istringstream words(text);
  std::string kind, first, second;
  InitializerSpec spec;
  words >> kind;
  if (kind == "zeros") return spec;
  if (kind == "constant") {
    spec.kind = InitializerKind::kConstant;
    words >> first;
    spec.row = BytesOf(first);
    return spec;
  }
  words >> spec.seed >> first >> second;
  const double a = DoubleOf(first), b = DoubleOf(second);
  if (kind == "uniform") {
    spec.kind = InitializerKind::kUniform;
    spec.low = a;
    spec.high = b;
  } else if (kind == "normal" || kind == "truncated_normal") {
    spec.kind = kind == "normal" ? InitializerKind::kNormal : InitializerKind::kTruncatedNormal;
    spec.mean = a;
    spec.stddev = b;
  } else {
    InvalidArgument("unknown initializer: " + text);
  }
  return spec;
}

EvictStrategy StrategyOf(const std::string& name) {
  if (name == "lru") return EvictStrategy::kLru;
  if (name == "lfu") return EvictStrategy::kLfu;
  if (name == "epochlru") return EvictStrategy::kEpochLru;
  if (name == "epochlfu") return EvictStrategy::kEpochLfu;
  return EvictStrategy::kCustomized;  // The op takes no other name.
}

std::string Describe(TF_DataType key_dtype, const TableSpec& spec) {
  std::string text = std::string(NameOf(key_dtype)) + " keys, " + NameOf(spec.value_type) +
                     " values and dim " + std::to_string(spec.dim);
  if (spec.bound.max_capacity == 0) return text;
  return text + ", of at most " + std::to_string(spec.bound.max_capacity) + " keys";
}

}  // namespace

std::shared_ptr<NamedTable> CreateKernel::Make() const {
  auto table = std::make_shared<NamedTable>();
  table->key_dtype = key_dtype;
  table->scalars = scalars;
  table->step_per_epoch = step_per_epoch;
  const Status status = Table::Create(spec, &table->table);
  if (status.code() == StatusCode::kIoError) {
    throw OpError(TF_INTERNAL, "`tier_directory`: " + status.message() +
                                   ". Expected a directory that exists, can be written to and has "
                                   "room for the rows beyond `max_hbm_for_values`.");
  }
  Check(status);
  return table;
}

void CreateKernel::RequireSame(const NamedTable& table) const {
  const std::shared_lock lock(table.mutex);
  const TableSpec& there = table.table->spec();
  if (table.key_dtype == key_dtype && there.value_type == spec.value_type &&
      there.dim == spec.dim && table.scalars == scalars &&
      there.bound.max_capacity == spec.bound.max_capacity &&
      there.bound.strategy == spec.bound.strategy) {
    return;
  }
  InvalidArgument("expected a table with " + Describe(key_dtype, spec) +
                  ", but the one of that name has " + Describe(table.key_dtype, there));
}

void* NewCreateKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<CreateKernel>(construction, [&](CreateKernel& kernel) {
    kernel.key_dtype = TypeAttribute(construction, "key_dtype");
    TableSpec& spec = kernel.spec;
    spec.key_type = kernel.key_dtype == TF_STRING ? KeyType::kString : KeyType::kInt64;
    spec.value_type = ValueTypeOf(TypeAttribute(construction, "value_dtype"));
    const int64_t dim = IntAttribute(construction, "dim");
    kernel.scalars = dim == 0;
    spec.dim = kernel.scalars ? 1 : dim;
    spec.initial_capacity = IntAttribute(construction, "capacity");
    spec.initializer = InitializerOf(StringAttribute(construction, "initializer"));
    spec.metadata = BoolAttribute(construction, "metadata");
    spec.admission = AdmissionOf(StringAttribute(construction, "admission"));
    spec.bound.max_capacity = IntAttribute(construction, "max_capacity");
    spec.bound.strategy = StrategyOf(StringAttribute(construction, "evict_strategy"));
    spec.tiers.fast_bytes = static_cast<uint64_t>(IntAttribute(construction, "fast_bytes"));
    spec.tiers.directory = StringAttribute(construction, "tier_directory");
    kernel.step_per_epoch = IntAttribute(construction, "step_per_epoch");
  });
}

void DeleteCreateKernel(void* kernel) { delete static_cast<CreateKernel*>(kernel); }

}  // namespace tfra::tf
