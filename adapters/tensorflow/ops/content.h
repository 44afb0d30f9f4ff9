// What is saved of tables, as tensors: checked as a whole before any of it is used.
#pragma once

#include <optional>

#include "runtime/arguments.h"

namespace tfra::tf {

// The content of one table, or of several tables of one kind one after the other: n keys that are
// there, w keys that wait to enter, and s keys whose gradients wait for a step. content.cc has the
// list of the fields and their shapes.
class Content {
 public:
  // The inputs of an op from number `first` on. `table`: one of those that the content is for; all
  // of them are alike. Throws, naming the field, unless tables like this one could have written
  // this content: types, shapes, ranges, the rule's text, and no key twice. What the state of an
  // admission rule holds is left to TableUpkeep::RestoreAdmission. A key may both wait and be
  // there: rows and waiting keys are saved one after the other while others write.
  Content(const OpContext& context, int first, const TableUse& table);

  static constexpr int kInputs = 12;

  size_t size() const { return keys_.size(); }
  const Keys& keys() const { return keys_; }
  const void* values() const { return values_.data(); }
  // The rule whose slots the rows have. None: they were never trained.
  const std::optional<RuleSpec>& rule() const { return rule_; }
  // (n, slot elements of the rule), or null if there are none.
  const void* slots() const { return slot_elements_ > 0 ? slots_.data<void>() : nullptr; }
  // (n), or null if the tables had none.
  const RowMetadata* metadata() const;
  const uint64_t* scores() const;
  // The epoch and the steps so far, or null.
  const int64_t* epoch() const;
  const Keys& waiting_keys() const { return waiting_keys_; }
  const RowMetadata* waiting_seen() const { return waiting_seen_.data<const RowMetadata>(); }
  const Tensor& waiting_filter() const { return waiting_filter_; }

 private:
  void ReadRule(const TableUse& table);
  void CheckShapes(const TableUse& table) const;
  void CheckRanges() const;
  void CheckKeys() const;

  Keys keys_;
  Values values_;
  Tensor slots_, metadata_, scores_, rules_, epoch_;
  Keys waiting_keys_;
  Tensor waiting_seen_, waiting_filter_;
  Keys sum_keys_;
  Tensor sums_;
  std::optional<RuleSpec> rule_;
  size_t slot_elements_ = 0;
};

}  // namespace tfra::tf
