// The update rules of optimizers: their slots, and how one row is updated. The formulas, slot names
// and initial values are those of the Keras 3 optimizer of the same name. Row-wise Adagrad is
// Adagrad with one accumulator per row, to which the mean of the squared gradient is added.
//
// There are three deliberate differences from Keras, all where Keras gives NaN or infinity: a
// denominator of zero makes a step of zero; the variance of centered RMSprop is never negative; and
// Ftrl keeps a value if its accumulator and all regularization are zero.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/update_kernels.h"
#include "tfra/spec.h"
#include "tfra/status.h"
#include "tfra/types.h"

namespace tfra {

// A custom rule has at most kMaxRuleSlots slots, with names of at most kMaxSlotName bytes.
inline constexpr size_t kMaxRuleSlots = 64;
inline constexpr size_t kMaxSlotName = 256;

// Returns kWrongType for a rule on values that are not floating, and kInvalidArgument for switches
// that the rule does not have, and for custom slots that are too many or share a name.
Status ValidateRule(const RuleSpec& rule, ValueType value_type);

// Checks the hyper-parameters that the rule reads, and no others.
Status ValidateParams(const RuleSpec& rule, const UpdateParams& params);

// Applies a rule with the value type, dim and hyper-parameters of one call. Immutable: any thread
// may call Apply, on different rows.
class RowUpdater {
 public:
  // REQUIRES: rule.kind is not kNone, and ValidateRule and ValidateParams accept the arguments.
  RowUpdater(const RuleSpec& rule, const UpdateParams& params, ValueType value_type, size_t dim,
             const KernelTable& kernels = *KernelsFor(BestIsa()));

  // The number of elements of ComputeType(value_type) that Apply needs as scratch memory.
  size_t scratch_elements() const { return clip_ == nullptr ? 0 : dim_; }

  // value: (dim) of value_type. slots: in SlotLayout order, contiguous, of ComputeType(value_type).
  // gradient: (dim) of ComputeType(value_type), not modified. scratch: private to the calling
  // thread, may be null if scratch_elements() is 0. All aligned to their elements, none overlap.
  void Apply(std::byte* value, std::byte* slots, const std::byte* gradient,
             std::byte* scratch) const {
    if (clip_ != nullptr) {
      clip_(constants_, gradient, scratch, dim_);
      gradient = scratch;
    }
    update_(constants_, value, slots, gradient, dim_);
  }

 private:
  size_t dim_;
  UpdateKernel update_;
  ClipKernel clip_ = nullptr;
  RuleConstants constants_;
};

}  // namespace tfra
