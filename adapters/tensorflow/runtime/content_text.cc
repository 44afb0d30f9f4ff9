#include "runtime/content_text.h"

#include <sstream>
#include <utility>

#include "runtime/attributes.h"
#include "runtime/op_context.h"

namespace tfra::tf {
namespace {

constexpr std::pair<const char*, RuleKind> kKinds[] = {
    {"none", RuleKind::kNone},       {"sgd", RuleKind::kSgd},
    {"adagrad", RuleKind::kAdagrad}, {"rowwise_adagrad", RuleKind::kRowwiseAdagrad},
    {"adam", RuleKind::kAdam},       {"adamw", RuleKind::kAdamW},
    {"adamax", RuleKind::kAdamax},   {"nadam", RuleKind::kNadam},
    {"rmsprop", RuleKind::kRmsprop}, {"adadelta", RuleKind::kAdadelta},
    {"ftrl", RuleKind::kFtrl},       {"lion", RuleKind::kLion},
    {"custom", RuleKind::kCustom},
};

constexpr std::pair<const char*, bool RuleSpec::*> kSwitches[] = {
    {"momentum", &RuleSpec::momentum},
    {"nesterov", &RuleSpec::nesterov},
    {"amsgrad", &RuleSpec::amsgrad},
    {"centered", &RuleSpec::centered},
};

constexpr char kInitialAccumulator[] = "initial_accumulator";

// The value of `name` in a table of pairs, or null.
template <typename Table>
auto* Find(Table& table, const std::string& name) {
  for (auto& entry : table) {
    if (name == entry.first) return &entry.second;
  }
  return static_cast<decltype(&table[0].second)>(nullptr);
}

// Splits at the first `mark`; the second part is empty if there is none.
std::pair<std::string, std::string> Split(const std::string& text, char mark) {
  const size_t place = text.find(mark);
  if (place == std::string::npos) return {text, ""};
  return {text.substr(0, place), text.substr(place + 1)};
}

std::string DigitsOf(double number) { return tf::DigitsOf(&number, sizeof(number)); }

SlotSpec SlotOf(const std::string& word) {
  const auto [name, rest] = Split(word, ':');
  const auto [kind, initial] = Split(rest, ':');
  SlotSpec slot;
  for (std::byte byte : BytesOf(name)) slot.name += static_cast<char>(byte);
  slot.scalar = kind == "scalar";
  slot.initial = DoubleOf(initial);
  return slot;
}

void SetSwitch(const std::string& word, const std::string& text, RuleSpec* rule) {
  const auto [name, number] = Split(word, '=');
  if (name == kInitialAccumulator) {
    rule->initial_accumulator = DoubleOf(number);
    return;
  }
  const auto* field = Find(kSwitches, name);
  if (field == nullptr)
    InvalidArgument("expected switches of an update rule, received " + Quoted(text));
  rule->*(*field) = true;
}

std::string TextOf(const RuleSpec& rule) {
  std::string text;
  for (const auto& [name, kind] : kKinds) {
    if (kind == rule.kind) text = name;
  }
  for (const auto& [name, field] : kSwitches) {
    if (rule.*field) text += std::string(" ") + name;
  }
  if (rule.initial_accumulator != RuleSpec().initial_accumulator) {
    text += std::string(" ") + kInitialAccumulator + "=" + DigitsOf(rule.initial_accumulator);
  }
  for (const SlotSpec& slot : rule.slots) {
    text += " " + tf::DigitsOf(slot.name.data(), slot.name.size()) +
            (slot.scalar ? ":scalar:" : ":row:") + DigitsOf(slot.initial);
  }
  return text;
}

RuleSpec RuleOfText(const std::string& text) {
  std::istringstream words(text);
  std::string word;
  words >> word;
  const RuleKind* kind = Find(kKinds, word);
  if (kind == nullptr)
    InvalidArgument("expected the text of an update rule, received " + Quoted(text));
  RuleSpec rule;
  rule.kind = *kind;
  while (words >> word) {
    if (rule.kind == RuleKind::kCustom) {
      rule.slots.push_back(SlotOf(word));
    } else {
      SetSwitch(word, text, &rule);
    }
  }
  // Anything that was not understood, or said twice, is missing from the rule's own text.
  if (TextOf(rule) != text) {
    InvalidArgument("expected the text of an update rule, such as " + Quoted(TextOf(rule)) +
                    ", received " + Quoted(text));
  }
  return rule;
}

}  // namespace

std::string SpecTextOf(const TableSpec& spec) {
  TableSpec portable = spec;
  portable.tiers.directory.clear();
  portable.initial_capacity = 0;
  return PrintTableSpec(portable);
}

RuleSpec RuleOfContent(const std::string& text) {
  if (text.empty() || text[0] != '{') return RuleOfText(text);
  TableSpec spec;
  const Status status = ParseTableSpec(text, &spec);
  if (!status.ok()) InvalidArgument("`rule`: " + status.message());
  return spec.rule;
}

}  // namespace tfra::tf
