// The text of an optimizer's rule and of its hyper-parameters, which checkpoints hold. Whatever the
// text is: an error, or a rule whose own text is the same.
#include <exception>
#include <optional>
#include <vector>

#include "input.h"
#include "runtime/attributes.h"
#include "runtime/rule_text.h"

namespace tfra::fuzz {
namespace {

// What `parse` returns, or nothing if it throws an error that kernels report to TensorFlow.
template <typename Parse>
auto ResultOf(Parse&& parse) -> std::optional<decltype(parse())> {
  try {
    return parse();
  } catch (const std::bad_alloc&) {
    throw;  // A text of some KB needs no memory that there is not.
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void Rule(const std::string& text) {
  const auto rule = ResultOf([&] { return tf::RuleOf(text); });
  if (!rule) return;
  REQUIRE(rule->slots.size() <= text.size());
  REQUIRE(tf::TextOf(*rule) == text);
}

void Digits(const std::string& text) {
  const auto bytes = ResultOf([&] { return tf::BytesOf(text); });
  if (bytes) {
    REQUIRE(bytes->size() <= text.size());
    REQUIRE(tf::BytesOf(tf::DigitsOf(bytes->data(), bytes->size())) == *bytes);
  }
  const auto number = ResultOf([&] { return tf::DoubleOf(text); });
  if (!number) return;
  const double again = tf::DoubleOf(tf::DigitsOf(&*number, sizeof(*number)));
  REQUIRE(std::memcmp(&again, &*number, sizeof(again)) == 0);
}

// A rule that was not read from a text, with names and numbers of any bytes.
void Made(Input input) {
  RuleSpec rule;
  rule.kind = static_cast<RuleKind>(input.Below(static_cast<uint32_t>(RuleKind::kCustom) + 1));
  if (rule.kind == RuleKind::kCustom) {
    while (!input.empty()) {
      SlotSpec slot;
      slot.scalar = input.Flag();
      slot.initial = input.Real();
      slot.name = input.String();
      if (slot.name.empty()) slot.name = "slot";
      rule.slots.push_back(slot);
    }
  }
  REQUIRE(tf::RuleOf(tf::TextOf(rule)) == rule);
}

}  // namespace
}  // namespace tfra::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tfra::fuzz;
  Input input(data, size);
  switch (input.Below(4)) {
    case 0:
      Rule(input.Rest());
      break;
    case 1: {
      const std::string text = input.Rest();
      ResultOf([&] { return tfra::tf::ParamsOf(text); });
      break;
    }
    case 2:
      Digits(input.Rest());
      break;
    default:
      Made(input);
  }
  return 0;
}
