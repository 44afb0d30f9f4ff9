// Update rules and their hyper-parameters as the texts that attributes of ops and checkpoints hold.
#pragma once

#include <string>

#include "tfra/spec.h"

namespace tfra::tf {

inline constexpr char kNoRule[] = "none";

// A rule's name and its switches: "adam amsgrad", "adagrad initial_accumulator=NUMBER". Slots of a
// custom rule follow as "custom NAME:row:NUMBER NAME:scalar:NUMBER", the names and numbers as their
// bytes. RuleOf throws unless TextOf(RuleOf(text)) == text, so that a rule has one text only.
RuleSpec RuleOf(const std::string& text);
std::string TextOf(const RuleSpec& rule);

// "beta_1=NUMBER momentum=NUMBER ...": the fields of UpdateParams that are not given keep their
// defaults.
UpdateParams ParamsOf(const std::string& text);

}  // namespace tfra::tf
