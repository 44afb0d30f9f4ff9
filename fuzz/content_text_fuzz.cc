// Parses arbitrary text as the description of a table in a checkpoint: the JSON form, or the rule
// text of version 0.1. The result is an error, or a rule with no more slots than the text has
// bytes.
#include <exception>
#include <optional>
#include <vector>

#include "input.h"
#include "runtime/attributes.h"
#include "runtime/content_text.h"
#include "tfra/table.h"

namespace tfra::fuzz {
namespace {

// Returns what `parse` returns, or nothing if it throws an error that kernels report to TensorFlow.
template <typename Parse>
auto ResultOf(Parse&& parse) -> std::optional<decltype(parse())> {
  try {
    return parse();
  } catch (const std::bad_alloc&) {
    throw;  // A defect: a text of a few KB needs little memory.
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void Rule(const std::string& text) {
  const auto rule = ResultOf([&] { return tf::RuleOfContent(text); });
  if (!rule) return;
  REQUIRE(rule->slots.size() <= text.size());
  size_t elements;
  if (!CheckRule(*rule, ValueType::kFloat32, 1, &elements).ok()) return;
  TableSpec spec;
  spec.rule = *rule;
  REQUIRE(tf::RuleOfContent(tf::SpecTextOf(spec)).slots.size() == rule->slots.size());
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

}  // namespace
}  // namespace tfra::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tfra::fuzz;
  Input input(data, size);
  // The first byte chooses what is parsed. The files of the corpus rely on these numbers.
  if (input.Below(4) == 2) {
    Digits(input.Rest());
  } else {
    Rule(input.Rest());
  }
  return 0;
}
