#include "ops/content.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "runtime/attributes.h"
#include "runtime/content_text.h"
#include "tfra/unique_keys.h"

namespace tfra::tf {
namespace {

[[noreturn]] void Mismatch(const std::string& field, const std::string& expected,
                           const std::string& received) {
  InvalidArgument("`" + field + "`: expected " + expected + ", received " + received);
}

void RequireType(const char* field, const Tensor& tensor, TF_DataType expected) {
  if (tensor.type() != expected) Mismatch(field, NameOf(expected), NameOf(tensor.type()));
}

// Checks every `step`-th number, from number `first` on.
template <typename T, typename Good>
void RequireAll(const char* field, const T* numbers, int64_t count, int64_t step,
                const char* expected, Good&& good, int64_t first = 0) {
  for (int64_t i = first; i < count; i += step) {
    if (good(numbers[i])) continue;
    Mismatch(field, expected, std::to_string(numbers[i]) + " at " + std::to_string(i / step));
  }
}

void RequireDistinct(const char* field, const Keys& keys) {
  size_t duplicate;
  Check(FindDuplicate(keys.batch(), &duplicate));
  if (duplicate == keys.size()) return;
  const KeyBatch& batch = keys.batch();
  const std::string key = batch.type == KeyType::kString ? Quoted(batch.strings[duplicate])
                                                         : std::to_string(batch.ints[duplicate]);
  Mismatch(field, "each key once", key + " again at " + std::to_string(duplicate));
}

}  // namespace

Content::Content(const OpContext& context, int first, const TableUse& table)
    : keys_(table.trained(), context.Input(first)),
      values_(table.trained(), context.Input(first + 1), "values"),
      slots_(context.Input(first + 2)),
      metadata_(context.Input(first + 3)),
      scores_(context.Input(first + 4)),
      rules_(context.Input(first + 5)),
      epoch_(context.Input(first + 6)),
      waiting_keys_(table.trained(), context.Input(first + 7)),
      waiting_seen_(context.Input(first + 8)),
      waiting_filter_(context.Input(first + 9)),
      sum_keys_(table.trained(), context.Input(first + 10)),
      sums_(context.Input(first + 11)) {
  ReadRule(table);
  CheckShapes(table);
  CheckRanges();
  CheckKeys();
}

const RowMetadata* Content::metadata() const {
  return metadata_.elements() > 0 ? metadata_.data<const RowMetadata>() : nullptr;
}

const uint64_t* Content::scores() const {
  return scores_.elements() > 0 ? scores_.data<const uint64_t>() : nullptr;
}

const int64_t* Content::epoch() const {
  return epoch_.elements() > 0 ? epoch_.data<const int64_t>() : nullptr;
}

// Tables on several devices write a rule each.
void Content::ReadRule(const TableUse& table) {
  const TableSpec& spec = table->spec();
  const auto* texts = rules_.data<const TString>();
  for (int64_t i = 0; i < rules_.elements(); ++i) {
    const std::string text(texts[i].view());
    const RuleSpec rule = RuleOfContent(text);
    size_t elements;
    const Status status = CheckRule(rule, spec.value_type, spec.dim, &elements);
    if (!status.ok()) InvalidArgument("`rule`: " + status.message());
    if (i > 0 && elements != slot_elements_) {
      Mismatch("rule", "rules with " + std::to_string(slot_elements_) + " numbers in the slots",
               std::to_string(elements) + " in " + Quoted(text));
    }
    slot_elements_ = elements;
    if (i == 0 && rule.kind != RuleKind::kNone) rule_ = rule;
  }
}

void Content::CheckShapes(const TableUse& table) const {
  const auto n = static_cast<int64_t>(keys_.size());
  const auto w = static_cast<int64_t>(waiting_keys_.size());
  const auto s = static_cast<int64_t>(sum_keys_.size());
  const int64_t dim = table->spec().dim;
  const int64_t devices = std::max<int64_t>(rules_.elements(), 1);
  const TF_DataType slot_type = DataTypeOf(ComputeType(table->spec().value_type));
  // The shape of each field, and the one that it has if the tables were without it.
  struct Field {
    const char* name;
    Dims received, expected;
    std::optional<Dims> without = std::nullopt;
  };
  const Field fields[] = {
      {"keys", keys_.dims(), {n}},
      {"values", values_.dims(), {n, dim}},
      {"slots", slots_.dims(), {n, static_cast<int64_t>(slot_elements_)}},
      {"metadata", metadata_.dims(), {n, 2}, Dims{n, 0}},
      {"scores", scores_.dims(), {n}, Dims{0}},
      {"rule", rules_.dims(), {devices}},
      {"epoch", epoch_.dims(), {2 * devices}, Dims{0}},
      {"waiting_keys", waiting_keys_.dims(), {w}},
      {"waiting_seen", waiting_seen_.dims(), {w, 2}},
      {"waiting_filter", waiting_filter_.dims(), {waiting_filter_.elements()}},
      {"sum_keys", sum_keys_.dims(), {s}},
      {"sums", sums_.dims(), {s, dim}},
  };
  static_assert(std::size(fields) == kInputs);
  for (const Field& field : fields) {
    if (field.received == field.expected || field.received == field.without) continue;
    std::string expected = "shape " + ToString(field.expected);
    if (field.without) expected += " or " + ToString(*field.without);
    Mismatch(field.name, expected, "shape " + ToString(field.received));
  }
  RequireType("slots", slots_, slot_type);
  RequireType("sums", sums_, slot_type);
}

void Content::CheckRanges() const {
  const auto not_negative = [](int64_t x) { return x >= 0; };
  RequireAll("scores", scores_.data<const int64_t>(), scores_.elements(), 1,
             "numbers that are 0 or more", not_negative);
  const auto* epoch = epoch_.data<const int64_t>();
  RequireAll("epoch", epoch, epoch_.elements(), 2, "an epoch between 0 and 2**31 - 1",
             [](int64_t x) { return x >= 0 && x <= kMaxEpoch; });
  RequireAll("epoch", epoch, epoch_.elements(), 2, "0 steps or more", not_negative, 1);
  // When, and how often.
  const auto* seen = waiting_seen_.data<const uint32_t>();
  RequireAll(
      "waiting_seen", seen, waiting_seen_.elements(), 2, "keys that were seen once or more",
      [](uint32_t count) { return count > 0; }, 1);
}

void Content::CheckKeys() const {
  RequireDistinct("keys", keys_);
  RequireDistinct("waiting_keys", waiting_keys_);
  RequireDistinct("sum_keys", sum_keys_);
}

}  // namespace tfra::tf
