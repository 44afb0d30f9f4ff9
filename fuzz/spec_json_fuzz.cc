// Parses arbitrary text as the JSON form of a TableSpec, of an update rule, and of the parameters
// of a step. The result is an error, or a description that stays the same when it is printed and
// parsed again.
#include <string>

#include "input.h"
#include "tfra/spec.h"

namespace tfra::fuzz {
namespace {

template <typename Spec, typename Parse, typename Print>
void RoundTrip(const std::string& text, Parse&& parse, Print&& print) {
  Spec spec;
  const Status status = parse(text, &spec);
  if (!status.ok()) {
    REQUIRE(!status.message().empty());
    return;
  }
  const std::string printed = print(spec);
  Spec again;
  REQUIRE_OK(parse(printed, &again));
  REQUIRE(print(again) == printed);
}

}  // namespace
}  // namespace tfra::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  tfra::fuzz::RoundTrip<tfra::TableSpec>(text, tfra::ParseTableSpec, tfra::PrintTableSpec);
  tfra::fuzz::RoundTrip<tfra::RuleSpec>(text, tfra::ParseRuleSpec, tfra::PrintRuleSpec);
  tfra::UpdateParams params;
  (void)tfra::ParseUpdateParams(text, &params).ok();
  return 0;
}
