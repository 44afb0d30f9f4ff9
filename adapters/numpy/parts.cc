#include "parts.h"

#include <memory>
#include <optional>
#include <string>

#include "results.h"
#include "tfra/snapshot.h"
#include "tfra/trained_table.h"

namespace tfra::python {
namespace {

std::shared_ptr<TrainedTable> TableOf(uint64_t handle) {
  std::shared_ptr<TrainedTable> table = TrainedTable::Find(handle);
  if (table == nullptr) throw nb::value_error("expected the handle of a table of this process");
  return table;
}

// A number that is not there is None.
template <typename Number>
nb::object ObjectOf(const std::optional<Number>& number) {
  return number ? nb::cast(*number) : nb::object(nb::none());
}

nb::tuple TupleOf(const PartFigures& figures) {
  return nb::make_tuple(figures.bytes, figures.blocks, figures.rows, figures.removed);
}

// The spec as JSON, figures of the file, and the numbers of the state.
nb::tuple WritePartOf(uint64_t handle, const nb::bytes& path, uint64_t snapshot, uint32_t part) {
  const std::shared_ptr<TrainedTable> table = TableOf(handle);
  const PartName name{std::string(path.c_str(), path.size()), snapshot, part};
  std::string spec;
  ContentState numbers;
  PartFigures figures;
  Run([&] {
    const TrainedTable::Use use(table);
    spec = PrintTableSpec(use->spec());
    const std::unique_ptr<ContentReader> reader = use.NewReader();
    return WritePart(name, reader.get(), &numbers, &figures);
  });
  return nb::make_tuple(spec, TupleOf(figures),
                        nb::make_tuple(ObjectOf(numbers.epoch), ObjectOf(numbers.epoch_steps),
                                       ObjectOf(numbers.step)));
}

// The figures of the file.
nb::tuple ReplaceByPart(uint64_t handle, const nb::bytes& path, uint64_t snapshot, uint32_t part,
                        const std::string& spec_json, const std::optional<uint32_t>& epoch,
                        const std::optional<int64_t>& epoch_steps,
                        const std::optional<int64_t>& step) {
  const std::shared_ptr<TrainedTable> table = TableOf(handle);
  const PartName name{std::string(path.c_str(), path.size()), snapshot, part};
  TableSpec spec;
  Raise(ParseTableSpec(spec_json, &spec));
  ContentState numbers;
  numbers.epoch = epoch;
  numbers.epoch_steps = epoch_steps;
  numbers.step = step;
  PartFigures figures;
  Run([&] {
    std::unique_ptr<ContentWriter> writer;
    TFRA_RETURN_IF_ERROR(table->NewReplacement({.rule = spec.rule}, &writer));
    TFRA_RETURN_IF_ERROR(ReadPart(name, spec, &numbers, writer.get(), &figures));
    return writer->Finish();
  });
  return TupleOf(figures);
}

}  // namespace

void DefineParts(nb::module_& m) {
  using namespace nb::literals;
  m.def(
      "crc32c",
      [](const nb::bytes& bytes, uint32_t before) {
        return Crc32c(bytes.c_str(), bytes.size(), before);
      },
      "bytes"_a, "before"_a = 0);
  m.def("write_part", &WritePartOf, "handle"_a, "path"_a, "snapshot"_a, "part"_a);
  m.def("replace_by_part", &ReplaceByPart, "handle"_a, "path"_a, "snapshot"_a, "part"_a, "spec"_a,
        "epoch"_a.none(), "epoch_steps"_a.none(), "step"_a.none());
}

}  // namespace tfra::python
