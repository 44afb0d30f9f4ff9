#include "bounded.h"

namespace tfra::python {
namespace {

size_t ElementsOf(const Table& table, size_t keys) {
  return keys * static_cast<size_t>(table.spec().dim);
}

ScorePredicate RangeOf(uint64_t at_least, std::optional<uint64_t> below) {
  return [=](uint64_t score) { return score >= at_least && (!below || score < *below); };
}

// Returns (keys, values, slots, scores).
nb::tuple RowsOf(const Table& table, ExportBatch* batch) {
  return nb::make_tuple(KeysOf(table, batch), ValuesOf(table, batch),
                        ArrayOf(std::move(batch->slots)), ArrayOf(std::move(batch->scores)));
}

// Returns the memory of a mask. Raises unless it has a byte for each key.
bool* MaskOf(const OutBytes& bytes, size_t keys, const char* what) {
  RequireBytes(bytes.size(), keys, what);
  return reinterpret_cast<bool*>(bytes.data());
}

}  // namespace

nb::tuple AssignAndEvict(Table& table, const KeysArgument& keys_argument,
                         const ValuesArgument& values_argument,
                         const ScoresArgument& scores_argument,
                         const std::optional<OutBytes>& rejected) {
  const Keys keys(keys_argument);
  const Values values(values_argument, table.spec().value_type, ElementsOf(table, keys.size()),
                      "values");
  const KeyScores scores(table, scores_argument, keys.size());
  bool* mask = rejected ? MaskOf(*rejected, keys.size(), "rejected") : nullptr;
  ExportBatch evicted;
  Run([&] {
    return table.scores().AssignAndEvict(keys.batch(), values.data(), nullptr, nullptr,
                                         scores.get(), &evicted, mask);
  });
  return RowsOf(table, &evicted);
}

void AssignExisting(Table& table, const KeysArgument& keys_argument,
                    const ValuesArgument& values_argument, const ScoresArgument& scores_argument) {
  const Keys keys(keys_argument);
  const Values values(values_argument, table.spec().value_type, ElementsOf(table, keys.size()),
                      "values");
  const KeyScores scores(table, scores_argument, keys.size());
  Run([&] {
    return table.training().AssignExisting(keys.batch(), values.data(), nullptr, nullptr,
                                           scores.get());
  });
}

nb::object FindOrInsert(Table& table, const KeysArgument& keys_argument, int default_kind,
                        const std::optional<ValuesArgument>& default_rows,
                        const std::optional<OutBytes>& out, const OutBytes& exists,
                        const ScoresArgument& scores_argument) {
  const Keys keys(keys_argument);
  const KeyScores scores(table, scores_argument, keys.size());
  bool* mask = MaskOf(exists, keys.size(), "exists");
  const ValueType type = table.spec().value_type;
  const size_t n = ElementsOf(table, keys.size());
  Defaults defaults;
  defaults.kind = static_cast<Defaults::Kind>(default_kind);
  std::optional<Values> rows;
  if (default_rows) {
    const bool one = defaults.kind == Defaults::kOneRow;
    rows.emplace(*default_rows, type, one ? ElementsOf(table, 1) : n, "default");
    defaults.rows = rows->data();
  } else if (defaults.kind != Defaults::kInitial) {
    throw nb::value_error("expected default rows");
  }
  if (type == ValueType::kString) {
    std::vector<std::string> texts(n);
    Run([&] {
      return table.training().FindOrInsert(keys.batch(), defaults, texts.data(), mask,
                                           scores.get());
    });
    return BytesList(texts);
  }
  if (!out) throw nb::value_error("expected an array for the values");
  RequireBytes(out->size(), n * SizeOf(type), "out");
  void* values = out->data();
  Run([&] {
    return table.training().FindOrInsert(keys.batch(), defaults, values, mask, scores.get());
  });
  return nb::none();
}

void AssignScores(Table& table, const KeysArgument& keys_argument, const ScoresArgument& scores) {
  const Keys keys(keys_argument);
  if (!scores) throw nb::value_error("expected scores");
  RequireBytes(scores->size() * sizeof(uint64_t), keys.size() * sizeof(uint64_t), "scores");
  const uint64_t* values = scores->data();
  Run([&] { return table.scores().Assign(keys.batch(), values); });
}

nb::object LookupScores(Table& table, const KeysArgument& keys_argument, const OutBytes& exists) {
  const Keys keys(keys_argument);
  bool* mask = MaskOf(exists, keys.size(), "exists");
  std::vector<uint64_t> scores(keys.size());
  RunInParts(table, keys.size(), [&](size_t begin, size_t end) {
    return table.scores().Lookup(keys.part(begin, end), scores.data() + begin, mask + begin);
  });
  return nb::cast(ArrayOf(std::move(scores)));
}

uint64_t CountIfScore(Table& table, uint64_t at_least, std::optional<uint64_t> below) {
  uint64_t count = 0;
  RunReading([&](const auto&) { return table.scores().CountIf(RangeOf(at_least, below), &count); });
  return count;
}

uint64_t RemoveIfScore(Table& table, uint64_t at_least, std::optional<uint64_t> below) {
  uint64_t count = 0;
  Run([&] { return table.scores().RemoveIf(RangeOf(at_least, below), &count); });
  return count;
}

nb::tuple ExportIfScore(Table& table, uint64_t at_least, std::optional<uint64_t> below) {
  ExportBatch batch;
  RunReading(
      [&](const auto&) { return table.scores().ExportIf(RangeOf(at_least, below), &batch); });
  return RowsOf(table, &batch);
}

}  // namespace tfra::python
