#include "tfra/table.h"

#include <new>
#include <string>

#include "memory/blob.h"
#include "table/table_of.h"

namespace tfra {
namespace {

Status CheckBound(const TableSpec& spec) {
  const Bound& bound = spec.bound;
  if (bound.max_capacity < 0 || bound.max_capacity > kMaxKeys) {
    return Status::InvalidArgument("expected a max_capacity between 0 (no bound) and " +
                                   std::to_string(kMaxKeys) + " keys, received " +
                                   std::to_string(bound.max_capacity));
  }
  if (bound.max_capacity > 0 && spec.initial_capacity > bound.max_capacity) {
    return Status::InvalidArgument("expected an initial_capacity of at most max_capacity, " +
                                   std::to_string(bound.max_capacity) + " keys, received " +
                                   std::to_string(spec.initial_capacity));
  }
  return Status::Ok();
}

Status CheckTiers(const TableSpec& spec) {
  if (spec.tiers.fast_bytes == 0 || spec.value_type != ValueType::kString) {
    return Status::Ok();
  }
  return Status::InvalidArgument(
      "expected values that are numbers in a table with fast_bytes, received string values, which "
      "are kept in memory only");
}

Status Validate(const TableSpec& spec) {
  if (spec.dim < 1 || spec.dim > kMaxDim) {
    return Status::InvalidArgument("expected dim between 1 and " + std::to_string(kMaxDim) +
                                   ", received " + std::to_string(spec.dim));
  }
  TFRA_RETURN_IF_ERROR(CheckCapacity(spec.initial_capacity));
  TFRA_RETURN_IF_ERROR(CheckBound(spec));
  TFRA_RETURN_IF_ERROR(CheckTiers(spec));
  TFRA_RETURN_IF_ERROR(ValidateAdmission(spec.admission));
  return ValidateRule(spec.rule, spec.value_type);
}

template <typename Keys>
Status Make(const TableSpec& spec, Initializer initializer, std::unique_ptr<Table>* out) {
  try {
    auto table = std::make_unique<TableOf<Keys>>(spec, std::move(initializer));
    TFRA_RETURN_IF_ERROR(table->state().Initialize());
    *out = std::move(table);
    return Status::Ok();
  } catch (const std::bad_alloc&) {
    return Status::OutOfMemory("could not allocate a table of dim " + std::to_string(spec.dim));
  }
}

}  // namespace

Status Table::Create(const TableSpec& spec, std::unique_ptr<Table>* table) {
  TFRA_RETURN_IF_ERROR(Validate(spec));
  Initializer initializer;
  TFRA_RETURN_IF_ERROR(
      Initializer::Create(spec.initializer, spec.value_type, spec.dim, &initializer));
  return spec.key_type == KeyType::kString ? Make<StringKeys>(spec, std::move(initializer), table)
                                           : Make<IntKeys>(spec, std::move(initializer), table);
}

Status EstimateMemory(const TableSpec& spec, int64_t keys, double string_key_bytes,
                      TableStats* estimate) {
  TFRA_RETURN_IF_ERROR(Validate(spec));
  TFRA_RETURN_IF_ERROR(CheckCapacity(keys));
  const bool bounded = spec.bound.max_capacity > 0;
  if (bounded) keys = std::min(keys, spec.bound.max_capacity);
  const uint64_t n = static_cast<uint64_t>(keys);
  *estimate = TableStats();
  estimate->size = n;
  const size_t stride = RowLayout(spec).stride;
  const IndexShape shape = IndexShape::For(stride);
  const uint64_t most = bounded ? KeysPerStripe(static_cast<uint64_t>(spec.bound.max_capacity)) : 0;
  for (uint32_t s = 0; s < kStripes; ++s) {
    estimate->index_bytes +=
        shape.BucketsFor(s, n / kStripes, most) * Stripe::BytesPerBucket({bounded, spec.metadata});
  }
  // Before it is full there is nothing to remember.
  if (bounded && keys == spec.bound.max_capacity) {
    estimate->index_bytes += Bounds::MemoryBytes(spec.bound);
  }
  estimate->row_bytes = n * stride;
  if (spec.tiers.fast_bytes > 0) {
    const uint64_t fast = RowTiers::ShareOf(spec.tiers, stride) * kStripes;
    estimate->row_bytes = std::min(n, fast) * stride;
    estimate->fast_bytes = estimate->row_bytes;
    estimate->slow_bytes = (n - std::min(n, fast)) * stride;
    if (spec.key_type == KeyType::kString) {
      estimate->index_bytes += (n - std::min(n, fast)) * sizeof(Blob*);
    }
  }
  if (spec.key_type == KeyType::kString) {
    const size_t length = static_cast<size_t>(string_key_bytes + 0.5);
    estimate->string_bytes = n * Blob::AllocatedBytes(length);
  }
  if (spec.admission.kind == AdmissionKind::kBloomFilter) {
    estimate->admission_bytes = FilterShape::For(spec.admission).StripeBytes() * kStripes;
  }
  return Status::Ok();
}

}  // namespace tfra
