// Creating a table from the attributes of an op, and the tensor that keeps it alive.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>

#include "ops/kernels.h"
#include "runtime/attributes.h"
#include "runtime/registry.h"

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

// "", "min_count N", "bloom_filter N KEYS ERROR" or "probability P SEED"; numbers that are not
// whole as their bytes.
AdmissionSpec AdmissionOf(const std::string& text) {
  AdmissionSpec spec;
  std::istringstream words(text);
  std::string kind, number;
  words >> kind;
  if (kind.empty()) return spec;
  if (kind == "min_count") {
    spec.kind = AdmissionKind::kMinCount;
    words >> spec.min_count;
  } else if (kind == "bloom_filter") {
    spec.kind = AdmissionKind::kBloomFilter;
    words >> spec.min_count >> spec.filter_keys >> number;
    spec.filter_error = DoubleOf(number);
  } else if (kind == "probability") {
    spec.kind = AdmissionKind::kProbability;
    words >> number >> spec.seed;
    spec.probability = DoubleOf(number);
  } else {
    InvalidArgument("unknown admission: " + text);
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

struct CreateKernel {
  TF_DataType key_dtype;
  bool scalars;
  int64_t step_per_epoch;
  TableSpec spec;

  std::shared_ptr<NamedTable> Make() const;
  // Throws if a table that exists already is of other types, another dim or another bound.
  void RequireSame(const NamedTable& table) const;
};

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

void FreeToken(void* data, size_t, void* argument) {
  std::free(data);
  delete static_cast<Registry::Token*>(argument);
}

// A tensor that keeps the table alive.
Tensor TokenTensor(std::unique_ptr<Registry::Token> token) {
  constexpr size_t kAlignment = 64;
  void* data = std::aligned_alloc(kAlignment, kAlignment);
  if (data == nullptr) throw std::bad_alloc();
  std::memset(data, 0, kAlignment);
  const int64_t dims[] = {1};
  return Tensor(TF_NewTensor(TF_INT64, dims, 1, data, sizeof(int64_t), FreeToken, token.release()));
}

}  // namespace

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

void CreateTable(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [&](const OpContext& context) {
    const auto& wanted = *static_cast<const CreateKernel*>(kernel);
    const std::string key = context.Resource(0, "table");
    auto token = Registry::Get().FindOrMake(key, [&] { return wanted.Make(); });
    wanted.RequireSame(token->table());
    context.SetOutput(0, TokenTensor(std::move(token)));
  });
}

}  // namespace tfra::tf
