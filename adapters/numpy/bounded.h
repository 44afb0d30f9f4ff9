// The Python methods that only bounded tables have.
#pragma once

#include "results.h"

namespace tfra::python {

// Returns the evicted rows: (keys, values, slots, scores). Writes to `rejected`, a mask, which keys
// were rejected.
nb::tuple AssignAndEvict(Table& table, const KeysArgument& keys, const ValuesArgument& values,
                         const ScoresArgument& scores, const std::optional<OutBytes>& rejected);
void AssignExisting(Table& table, const KeysArgument& keys, const ValuesArgument& values,
                    const ScoresArgument& scores);
// Returns string values as a list. Writes other values to `out` and returns None. Writes to
// `exists`, a mask, which keys were found.
nb::object FindOrInsert(Table& table, const KeysArgument& keys, int default_kind,
                        const std::optional<ValuesArgument>& default_rows,
                        const std::optional<OutBytes>& out, const OutBytes& exists,
                        const ScoresArgument& scores);
void AssignScores(Table& table, const KeysArgument& keys, const ScoresArgument& scores);
// Returns the scores as an array. Writes to `exists`, a mask, which keys were found.
nb::object LookupScores(Table& table, const KeysArgument& keys, const OutBytes& exists);
// Each of these three selects the keys with at_least <= score < below. CountIfScore and
// RemoveIfScore return the number of keys, ExportIfScore (keys, values, slots, scores).
uint64_t CountIfScore(Table& table, uint64_t at_least, std::optional<uint64_t> below);
uint64_t RemoveIfScore(Table& table, uint64_t at_least, std::optional<uint64_t> below);
nb::tuple ExportIfScore(Table& table, uint64_t at_least, std::optional<uint64_t> below);

// Adds the methods to the Python class NativeTable. Its use() returns a pointer to the engine's
// table.
template <typename NativeTable>
void DefineBounded(nb::class_<NativeTable>& c) {
  using namespace nb::literals;
  c.def(
       "assign_and_evict",
       [](NativeTable& self, const KeysArgument& keys, const ValuesArgument& values,
          const ScoresArgument& scores, const std::optional<OutBytes>& rejected) {
         return AssignAndEvict(*self.use(), keys, values, scores, rejected);
       },
       "keys"_a, "values"_a, "scores"_a.none(), "rejected"_a.none())
      .def(
          "assign_existing",
          [](NativeTable& self, const KeysArgument& keys, const ValuesArgument& values,
             const ScoresArgument& scores) { AssignExisting(*self.use(), keys, values, scores); },
          "keys"_a, "values"_a, "scores"_a.none())
      .def(
          "find_or_insert",
          [](NativeTable& self, const KeysArgument& keys, int default_kind,
             const std::optional<ValuesArgument>& default_rows, const std::optional<OutBytes>& out,
             const OutBytes& exists, const ScoresArgument& scores) {
            return FindOrInsert(*self.use(), keys, default_kind, default_rows, out, exists, scores);
          },
          "keys"_a, "default_kind"_a, "default_rows"_a.none(), "out"_a.none(), "exists"_a,
          "scores"_a.none())
      .def(
          "assign_scores",
          [](NativeTable& self, const KeysArgument& keys, const ScoresArgument& scores) {
            AssignScores(*self.use(), keys, scores);
          },
          "keys"_a, "scores"_a)
      .def(
          "lookup_scores",
          [](NativeTable& self, const KeysArgument& keys, const OutBytes& exists) {
            return LookupScores(*self.use(), keys, exists);
          },
          "keys"_a, "exists"_a)
      .def(
          "count_if_score",
          [](NativeTable& self, uint64_t at_least, std::optional<uint64_t> below) {
            return CountIfScore(*self.use(), at_least, below);
          },
          "at_least"_a, "below"_a.none())
      .def(
          "remove_if_score",
          [](NativeTable& self, uint64_t at_least, std::optional<uint64_t> below) {
            return RemoveIfScore(*self.use(), at_least, below);
          },
          "at_least"_a, "below"_a.none())
      .def(
          "export_if_score",
          [](NativeTable& self, uint64_t at_least, std::optional<uint64_t> below) {
            return ExportIfScore(*self.use(), at_least, below);
          },
          "at_least"_a, "below"_a.none())
      .def("epoch", [](NativeTable& self) { return self.use()->scores().epoch(); })
      .def(
          "set_epoch",
          [](NativeTable& self, uint32_t epoch) { self.use()->scores().SetEpoch(epoch); },
          "epoch"_a);
}

}  // namespace tfra::python
