// The optimizer update rules: what a row carries for them and how one row is updated. The formulas,
// slot names and initial values are those of the Keras 3 optimizer of the same name; row-wise
// Adagrad is Adagrad with one accumulator per row, fed with the mean of the squared gradient.
//
// Three deliberate differences from Keras, all where Keras gives NaN or infinity: a denominator of
// exactly zero makes a step of zero, the variance of centered RMSprop is never below zero, and Ftrl
// leaves a value alone whose accumulator and regularization are all zero.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/update_kernels.h"
#include "tfra/spec.h"
#include "tfra/status.h"
#include "tfra/types.h"

namespace tfra {

// A rule of a caller has at most so many slots, with names of at most so many bytes.
inline constexpr size_t kMaxRuleSlots = 64;
inline constexpr size_t kMaxSlotName = 256;

// kWrongType for a rule on values that are not floating, kInvalidArgument for switches the rule
// does not have, and for slots of a caller that are too many or have no name of their own.
Status ValidateRule(const RuleSpec& rule, ValueType value_type);

// Checks the hyper-parameters that the rule reads, and no others.
Status ValidateParams(const RuleSpec& rule, const UpdateParams& params);

// One call's worth of a rule, bound to a value type, dim and hyper-parameters. Immutable: any
// thread may call Apply, on different rows.
class RowUpdater {
 public:
  // REQUIRES: rule.kind is not kNone, and ValidateRule and ValidateParams accept the arguments.
  RowUpdater(const RuleSpec& rule, const UpdateParams& params, ValueType value_type, size_t dim,
             const KernelTable& kernels = *KernelsFor(BestIsa()));

  // Elements of ComputeType(value_type) that the scratch passed to Apply must hold.
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
