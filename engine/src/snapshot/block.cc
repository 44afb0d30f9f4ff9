#include "snapshot/block.h"

#include "tfra/table.h"

namespace tfra {

Status RowFormat::Of(const TableSpec& spec, RowFormat* format) {
  size_t elements;
  TFRA_RETURN_IF_ERROR(CheckRule(spec.rule, spec.value_type, spec.dim, &elements));
  *format = {.key_type = spec.key_type,
             .value_type = spec.value_type,
             .dim = static_cast<size_t>(spec.dim),
             .slot_bytes = elements * SizeOf(ComputeType(spec.value_type)),
             .metadata = spec.metadata,
             .scores = spec.bound.max_capacity > 0};
  return Status::Ok();
}

}  // namespace tfra
