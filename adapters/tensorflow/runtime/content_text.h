// The description of a table in a content (the arrays of a checkpoint or a file).
#pragma once

#include <string>

#include "tfra/spec.h"

namespace tfra::tf {

// What new contents hold: the JSON form, without what belongs to one table of one machine: the
// directory of a tiered table, and the room that was made for keys.
std::string SpecTextOf(const TableSpec& spec);

// The rule of a content: of its JSON form, or, in contents of version 0.1, of a rule text. That is
// a rule's name and its switches: "adam amsgrad", "adagrad initial_accumulator=NUMBER". Slots of a
// custom rule follow as "custom NAME:row:NUMBER NAME:scalar:NUMBER", with names and numbers as
// their bytes in hexadecimal digits. Throws if the text is neither.
RuleSpec RuleOfContent(const std::string& text);

}  // namespace tfra::tf
