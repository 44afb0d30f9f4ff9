// Creates a table from the attributes of an op, and the tensor that keeps the table alive.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "ops/kernels.h"
#include "runtime/aligned.h"
#include "runtime/attributes.h"
#include "runtime/registry.h"

namespace tfra::tf {
namespace {

// Returns a description of a table for an error message.
std::string Describe(const TableSpec& spec) {
  std::string text = std::string(NameOf(spec.key_type)) + " keys, " + NameOf(spec.value_type) +
                     " values and dim " + std::to_string(spec.dim);
  if (spec.bound.max_capacity == 0) return text;
  return text + ", of at most " + std::to_string(spec.bound.max_capacity) + " keys";
}

struct CreateKernel {
  TableSpec spec;

  std::shared_ptr<TrainedTable> Make() const;
  // Throws if an existing table has other types, another dim or another bound than `spec`.
  void RequireSame(const std::shared_ptr<TrainedTable>& table) const;
};

std::shared_ptr<TrainedTable> CreateKernel::Make() const {
  std::shared_ptr<TrainedTable> table;
  const Status status = TrainedTable::Create(spec, &table);
  if (status.code() == StatusCode::kIoError) {
    throw OpError(TF_INTERNAL, "`tier_directory`: " + status.message() +
                                   ". Expected a directory that exists, can be written to and has "
                                   "room for the rows beyond `max_hbm_for_values`.");
  }
  Check(status);
  return table;
}

void CreateKernel::RequireSame(const std::shared_ptr<TrainedTable>& table) const {
  const TableUse use(table);
  const TableSpec& there = use->spec();
  if (there.key_type == spec.key_type && there.value_type == spec.value_type &&
      there.dim == spec.dim && there.scalar == spec.scalar &&
      there.bound.max_capacity == spec.bound.max_capacity &&
      there.bound.strategy == spec.bound.strategy) {
    return;
  }
  InvalidArgument("expected a table with " + Describe(spec) + ", but the one of that name has " +
                  Describe(there));
}

// TensorFlow calls this function when it frees a lifetime tensor.
void FreeLifetimeHandle(void* data, size_t, void* argument) {
  std::free(data);
  delete static_cast<Registry::LifetimeHandle*>(argument);
}

// Returns a tensor that owns a lifetime handle.
Tensor LifetimeTensor(std::unique_ptr<Registry::LifetimeHandle> lifetime) {
  void* data = AlignedAllocate(kTensorAlignment);
  std::memset(data, 0, kTensorAlignment);
  const int64_t dims[] = {1};
  return Tensor(TF_NewTensor(TF_INT64, dims, 1, data, sizeof(int64_t), FreeLifetimeHandle,
                             lifetime.release()));
}

}  // namespace

void* NewCreateKernel(TF_OpKernelConstruction* construction) {
  return MakeKernel<CreateKernel>(construction, [&](CreateKernel& kernel) {
    Check(ParseTableSpec(StringAttribute(construction, "spec"), &kernel.spec));
  });
}

void DeleteCreateKernel(void* kernel) { delete static_cast<CreateKernel*>(kernel); }

void CreateTable(void* kernel, TF_OpKernelContext* op) {
  RunKernel(op, [&](const OpContext& context) {
    const auto& wanted = *static_cast<const CreateKernel*>(kernel);
    const std::string key = context.Resource(0, "table");
    auto lifetime = Registry::Get().FindOrMake(key, [&] { return wanted.Make(); });
    wanted.RequireSame(lifetime->table());
    context.SetOutput(0, LifetimeTensor(std::move(lifetime)));
  });
}

}  // namespace tfra::tf
