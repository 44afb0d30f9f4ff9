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

std::string Describe(TF_DataType key_dtype, const TableOptions& options) {
  std::string text = std::string(NameOf(key_dtype)) + " keys, " + NameOf(options.value_type) +
                     " values and dim " + std::to_string(options.dim);
  if (options.bound.max_capacity == 0) return text;
  return text + ", of at most " + std::to_string(options.bound.max_capacity) + " keys";
}

}  // namespace

std::shared_ptr<NamedTable> CreateKernel::Make() const {
  auto table = std::make_shared<NamedTable>();
  table->key_dtype = key_dtype;
  table->scalars = scalars;
  table->step_per_epoch = step_per_epoch;
  const Status status = Table::Create(options, &table->table);
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
  const TableOptions& there = table.table->options();
  if (table.key_dtype == key_dtype && there.value_type == options.value_type &&
      there.dim == options.dim && table.scalars == scalars &&
      there.bound.max_capacity == options.bound.max_capacity &&
      there.bound.strategy == options.bound.strategy) {
    return;
  }
  InvalidArgument("expected a table with " + Describe(key_dtype, options) +
                  ", but the one of that name has " + Describe(table.key_dtype, there));
}

void* NewCreateKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<CreateKernel>(construction, [&](CreateKernel& kernel) {
    kernel.key_dtype = TypeAttribute(construction, "key_dtype");
    TableOptions& options = kernel.options;
    options.key_type = kernel.key_dtype == TF_STRING ? KeyType::kString : KeyType::kInt64;
    options.value_type = ValueTypeOf(TypeAttribute(construction, "value_dtype"));
    const int64_t dim = IntAttribute(construction, "dim");
    kernel.scalars = dim == 0;
    options.dim = kernel.scalars ? 1 : dim;
    options.initial_capacity = IntAttribute(construction, "capacity");
    options.initializer = InitializerOf(StringAttribute(construction, "initializer"));
    options.metadata = BoolAttribute(construction, "metadata");
    options.admission = AdmissionOf(StringAttribute(construction, "admission"));
    options.bound.max_capacity = IntAttribute(construction, "max_capacity");
    options.bound.strategy = StrategyOf(StringAttribute(construction, "evict_strategy"));
    options.tiers.fast_bytes = static_cast<uint64_t>(IntAttribute(construction, "fast_bytes"));
    options.tiers.directory = StringAttribute(construction, "tier_directory");
    kernel.step_per_epoch = IntAttribute(construction, "step_per_epoch");
  });
}

void DeleteCreateKernel(void* kernel) { delete static_cast<CreateKernel*>(kernel); }

}  // namespace tfra::tf
