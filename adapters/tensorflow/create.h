// What the attributes of the op that creates a table say.
#pragma once

#include <memory>
#include <string>

#include "registry.h"
#include "tfra/table.h"

namespace tfra::tf {

// "", "min_count N", "bloom_filter N KEYS ERROR" or "probability P SEED"; numbers that are not
// whole as their bytes.
AdmissionSpec AdmissionOf(const std::string& text);

struct CreateKernel {
  TF_DataType key_dtype;
  bool scalars;
  int64_t step_per_epoch;
  TableSpec spec;

  std::shared_ptr<NamedTable> Make() const;
  // Throws if a table that exists already is of other types, another dim or another bound.
  void RequireSame(const NamedTable& table) const;
};

}  // namespace tfra::tf
