// tfra._native: the engine's Table for Python, over raw bytes of NumPy arrays.
//
// This file only converts and delegates. Shapes and dtypes are the business of src/tfra/table.py.
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "arguments.h"
#include "bounded.h"
#include "parts.h"
#include "results.h"
#include "tfra/thread_pool.h"
#include "tfra/trained_table.h"
#include "tfra/version.h"

namespace tfra::python {
namespace {

TableSpec SpecOf(const std::string& json) {
  TableSpec spec;
  Raise(ParseTableSpec(json, &spec));
  return spec;
}

nb::dict DictOf(const TableStats& stats) {
  nb::dict dict;
  for (const StatsField& figure : kStatsFields) dict[figure.name] = stats.*figure.field;
  return dict;
}

class NativeTable {
 public:
  explicit NativeTable(const TableSpec& spec) : rule_(spec.rule) {
    Run([&] { return TrainedTable::Create(spec, &table_); });
  }
  // A table that exists already, of this framework or another one, trained by this rule.
  NativeTable(uint64_t handle, const RuleSpec& rule)
      : table_(TrainedTable::Find(handle)), rule_(rule) {
    if (table_ == nullptr) {
      throw nb::value_error(("expected the handle of a table of this process, received " +
                             std::to_string(handle) + ", whose table is gone")
                                .c_str());
    }
  }

  uint64_t Handle() const { return table_->handle(); }
  std::string Spec() const { return PrintTableSpec(use()->spec()); }
  bool HasMetadata() const { return use()->spec().metadata; }

  // A call under way. Waits without the GIL, which calls that are under way need to end.
  TrainedTable::Use use() const {
    if (auto entered = TrainedTable::Use::Try(table_)) return std::move(*entered);
    const WithoutGil without;
    return TrainedTable::Use(table_);
  }

  nb::object Lookup(const KeysArgument& keys_argument, int default_kind,
                    const std::optional<ValuesArgument>& default_rows,
                    const std::optional<OutBytes>& out, const std::optional<OutBytes>& exists) {
    const Keys keys(keys_argument);
    const size_t n = keys.size() * dim();
    if (exists) RequireBytes(exists->size(), keys.size(), "exists");
    bool* mask = exists ? reinterpret_cast<bool*>(exists->data()) : nullptr;
    Defaults defaults;
    defaults.kind = static_cast<Defaults::Kind>(default_kind);
    std::optional<Values> rows;
    if (default_rows) {
      rows.emplace(*default_rows, type(), defaults.kind == Defaults::kOneRow ? dim() : n,
                   "default");
      defaults.rows = rows->data();
    } else if (defaults.kind != Defaults::kInitial) {
      throw nb::value_error("expected default rows");
    }
    if (type() == ValueType::kString) {
      std::vector<std::string> texts(n);
      LookupInParts<std::string, std::string_view>(keys, defaults, texts.data(), dim(), mask);
      return BytesList(texts);
    }
    if (!out) throw nb::value_error("expected an array for the values");
    RequireBytes(out->size(), n * SizeOf(type()), "out");
    LookupInParts<uint8_t, uint8_t>(keys, defaults, out->data(), dim() * SizeOf(type()), mask);
    return nb::none();
  }

  // Values and slots together: each row is read as a whole. Returns (slots, rule of the slots).
  nb::tuple LookupRows(const KeysArgument& keys_argument, const OutBytes& values) {
    const auto table = use();
    const Keys keys(keys_argument);
    const size_t value_bytes = dim() * SizeOf(type());
    const size_t slot_bytes = table->slot_elements() * SizeOf(ComputeType(type()));
    RequireBytes(values.size(), keys.size() * value_bytes, "values");
    const size_t bytes = keys.size() * slot_bytes;
    auto slots = std::make_unique_for_overwrite<uint8_t[]>(bytes);
    RunInParts(*table, keys.size(), [&](size_t begin, size_t end) {
      return table->Lookup(keys.part(begin, end), {}, values.data() + begin * value_bytes, nullptr,
                           slot_bytes == 0 ? nullptr : slots.get() + begin * slot_bytes);
    });
    return nb::make_tuple(ArrayOf(std::move(slots), bytes), RuleOf(*table));
  }

  void Contains(const KeysArgument& keys_argument, const OutBytes& exists) {
    const auto table = use();
    const Keys keys(keys_argument);
    RequireBytes(exists.size(), keys.size(), "exists");
    bool* mask = reinterpret_cast<bool*>(exists.data());
    RunInParts(*table, keys.size(), [&](size_t begin, size_t end) {
      return table->Contains(keys.part(begin, end), mask + begin);
    });
  }

  // With slots, `rule` is the one that they belong to.
  void Assign(const KeysArgument& keys_argument, const ValuesArgument& values_argument,
              const std::optional<InBytes>& slots, const std::optional<std::string>& rule,
              const std::optional<InBytes>& metadata, const ScoresArgument& scores_argument) {
    const auto table = use();
    const Keys keys(keys_argument);
    const KeyScores scores(*table, scores_argument, keys.size());
    const Values values(values_argument, type(), keys.size() * dim(), "values");
    if (slots) {
      if (rule != RuleOf(*table)) {
        throw nb::value_error(("`slots`: expected those of the rule that the table has now, " +
                               RuleOf(*table) + ", received those of " + rule.value_or("no rule"))
                                  .c_str());
      }
      RequireBytes(slots->size(),
                   keys.size() * table->slot_elements() * SizeOf(ComputeType(type())), "slots");
    }
    const void* slot_data = slots ? slots->data() : nullptr;
    const RowMetadata* rows = nullptr;
    if (metadata) {
      RequireBytes(metadata->size(), keys.size() * sizeof(RowMetadata), "metadata");
      rows = reinterpret_cast<const RowMetadata*>(metadata->data());
    }
    Run([&] { return table->Assign(keys.batch(), values.data(), slot_data, rows, scores.get()); });
  }

  void Accumulate(const KeysArgument& keys_argument, const ValuesArgument& deltas_argument,
                  const InBytes& exists, const ScoresArgument& scores_argument) {
    const auto table = use();
    const Keys keys(keys_argument);
    const Values deltas(deltas_argument, type(), keys.size() * dim(), "deltas");
    RequireBytes(exists.size(), keys.size(), "exists");
    const bool* mask = reinterpret_cast<const bool*>(exists.data());
    const KeyScores scores(*table, scores_argument, keys.size());
    Run([&] {
      return table->training().Accumulate(keys.batch(), deltas.data(), mask, scores.get());
    });
  }

  void ApplyGradients(const KeysArgument& keys_argument, const InBytes& gradients,
                      const std::string& gradient_type, const UpdateParams& params,
                      std::optional<int64_t> step, const ScoresArgument& scores_argument) {
    auto table = use();
    const Keys keys(keys_argument);
    const ValueType given = ValueTypeOf(gradient_type);
    RequireBytes(gradients.size(), keys.size() * dim() * SizeOf(given), "gradients");
    UpdateParams update = params;
    if (step) update.step = *step;
    const void* data = gradients.data();
    const KeyScores scores(*table, scores_argument, keys.size());
    Run([&] {
      const Status bound = table.BindRule(rule_, step.value_or(0));
      if (!bound.ok()) return bound;
      return table.ApplyGradients(keys.batch(), data, given, rule_, update, step.has_value(),
                                  scores.get());
    });
  }

  // The number of the last optimizer step.
  int64_t Step() const { return table_->step(); }
  void SetStep(int64_t step) { table_->set_step(step); }

  size_t Remove(const KeysArgument& keys_argument) {
    const auto table = use();
    const Keys keys(keys_argument);
    size_t removed = 0;
    Run([&] { return table->Remove(keys.batch(), &removed); });
    return removed;
  }

  void Clear() {
    const auto table = use();
    Run([&] { return table->Clear(); });
  }
  void Reserve(int64_t keys) {
    const auto table = use();
    Run([&] { return table->Reserve(keys); });
  }
  void Shrink() {
    const auto table = use();
    Run([&] { return table->Shrink(); });
  }
  uint64_t Size() const { return use()->size(); }
  uint32_t Clock() const { return use()->upkeep().clock(); }
  void SetClock(uint32_t now) { use()->upkeep().SetClock(now); }
  nb::dict Stats() const { return DictOf(use()->stats()); }

  // The rule whose slots rows have now, as JSON. Another object may change it between two calls.
  std::string Rule() const { return RuleOf(*use()); }

  // (rows, position, seed, done), with rows as ExportAll returns them.
  nb::tuple Export(size_t max_rows, uint64_t position, uint64_t seed) {
    const auto table = use();
    ExportCursor cursor{position, seed, false};
    ExportBatch batch;
    Run([&] { return table->Export(max_rows, &cursor, &batch); });
    return nb::make_tuple(RowsOf(*table, &batch), cursor.position, cursor.seed, cursor.done);
  }

  // (keys, values, slots, metadata, rule of the slots): arrays of bytes, or lists of bytes objects.
  nb::tuple ExportAll() {
    const auto table = use();
    ExportBatch batch;
    RunReading([&](const auto& stop) {
      // Of tiered tables the file is read in tasks, in the order of the whole file.
      const TableSpec& spec = table->spec();
      const bool strings = spec.key_type == KeyType::kString || type() == ValueType::kString;
      return strings && spec.tiers.fast_bytes == 0 ? ExportInParts(&*table, stop, &batch)
                                                   : table->ExportAll(&batch);
    });
    return RowsOf(*table, &batch);
  }

  void Touch(const KeysArgument& keys_argument) {
    const auto table = use();
    const Keys keys(keys_argument);
    Run([&] { return table->upkeep().Touch(keys.batch()); });
  }

  nb::object LookupMetadata(const KeysArgument& keys_argument) {
    const auto table = use();
    const Keys keys(keys_argument);
    std::vector<RowMetadata> metadata(keys.size());
    RunInParts(*table, keys.size(), [&](size_t begin, size_t end) {
      return table->upkeep().LookupMetadata(keys.part(begin, end), metadata.data() + begin,
                                            nullptr);
    });
    return nb::cast(NumbersOf(metadata));
  }

  uint64_t Restrict(uint64_t keep, bool newest) {
    const auto table = use();
    uint64_t evicted = 0;
    const Ranking ranking = newest ? Ranking::kNewest : Ranking::kMostFrequent;
    Run([&] { return table->upkeep().Restrict(keep, ranking, &evicted); });
    return evicted;
  }

  uint64_t Expire(uint32_t written_before, double norm_below, uint32_t norm_writes) {
    const auto table = use();
    uint64_t expired = 0;
    Run([&] {
      return table->upkeep().Expire({written_before, norm_below, norm_writes}, &expired);
    });
    return expired;
  }

  nb::tuple Histograms() {
    const auto table = use();
    RowHistograms found;
    RunReading([&](const auto&) { return table->upkeep().Histograms(&found); });
    const auto array = [](const auto& numbers) {
      return ArrayOf(std::vector<uint64_t>(numbers.begin(), numbers.end()));
    };
    return nb::make_tuple(array(found.age), array(found.writes), array(found.norm));
  }

  // (keys, time and count of each, filter)
  nb::tuple AdmissionStateOf() {
    const auto table = use();
    AdmissionState state;
    Run([&] { return table->upkeep().ExportAdmission(&state); });
    nb::object keys = table->spec().key_type == KeyType::kString
                          ? nb::object(BytesList(state.string_keys))
                          : nb::cast(ArrayOf(std::move(state.int_keys)));
    return nb::make_tuple(keys, NumbersOf(state.seen), ArrayOf(std::move(state.filter)));
  }

  void RestoreAdmission(const KeysArgument& keys_argument, const InBytes& seen,
                        const InBytes& filter) {
    const auto table = use();
    const Keys keys(keys_argument);
    RequireBytes(seen.size(), keys.size() * sizeof(RowMetadata), "seen");
    AdmissionState state;
    const KeyBatch& batch = keys.batch();
    if (batch.type == KeyType::kString) {
      for (size_t i = 0; i < batch.size; ++i) state.string_keys.Append(batch.strings[i]);
    } else {
      state.int_keys.assign(batch.ints, batch.ints + batch.size);
    }
    const auto* rows = reinterpret_cast<const RowMetadata*>(seen.data());
    state.seen.assign(rows, rows + keys.size());
    const auto* bytes = reinterpret_cast<const std::byte*>(filter.data());
    state.filter.assign(bytes, bytes + filter.size());
    Run([&] { return table->upkeep().RestoreAdmission(state); });
  }

  uint64_t CountIf(std::optional<int64_t> written_before, std::optional<int64_t> count_below) {
    const auto table = use();
    uint64_t count = 0;
    RunReading([&](const auto&) {
      return table->upkeep().CountIf(Predicate(written_before, count_below), &count);
    });
    return count;
  }

  uint64_t RemoveIf(std::optional<int64_t> written_before, std::optional<int64_t> count_below) {
    const auto table = use();
    uint64_t count = 0;
    Run([&] { return table->upkeep().RemoveIf(Predicate(written_before, count_below), &count); });
    return count;
  }

  nb::object SelectIf(std::optional<int64_t> written_before, std::optional<int64_t> count_below) {
    const auto table = use();
    ExportBatch batch;
    RunReading([&](const auto&) {
      return table->upkeep().SelectIf(Predicate(written_before, count_below), &batch);
    });
    return KeysOf(*table, &batch);
  }

 private:
  // A row of values is `row` elements Out, and one of defaults as many elements In.
  template <typename Out, typename In>
  void LookupInParts(const Keys& keys, const Defaults& defaults, Out* values, size_t row,
                     bool* exists) {
    const auto table = use();
    RunInParts(*table, keys.size(), [&](size_t begin, size_t end) {
      Defaults of_part = defaults;
      if (defaults.kind == Defaults::kRowPerKey) {
        of_part.rows = static_cast<const In*>(defaults.rows) + begin * row;
      }
      return table->Lookup(keys.part(begin, end), of_part, values + begin * row,
                           exists == nullptr ? nullptr : exists + begin);
    });
  }

  // As ExportAll, for tables with strings, which it has no tasks for.
  static Status ExportInParts(Table* table, const std::function<bool()>& stop, ExportBatch* all) {
    constexpr size_t kRows = size_t{1} << 16;
    ExportBatch batch;
    for (ExportCursor cursor; !cursor.done && !stop();) {
      TFRA_RETURN_IF_ERROR(table->Export(kRows, &cursor, &batch));
      all->Append(std::move(batch));
    }
    return Status::Ok();
  }

  static MetadataPredicate Predicate(std::optional<int64_t> written_before,
                                     std::optional<int64_t> count_below) {
    return [=](const RowMetadata& metadata) {
      return (!written_before || metadata.time < *written_before) &&
             (!count_below || metadata.count < *count_below);
    };
  }

  static nb::tuple RowsOf(const Table& table, ExportBatch* batch) {
    return nb::make_tuple(KeysOf(table, batch), ValuesOf(table, batch),
                          ArrayOf(std::move(batch->slots)), NumbersOf(batch->metadata),
                          RuleOf(table));
  }

  static std::string RuleOf(const Table& table) { return PrintRuleSpec(table.spec().rule); }

  // Time and count of each row, one after the other.
  static nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>> NumbersOf(
      const std::vector<RowMetadata>& metadata) {
    std::vector<uint32_t> numbers;
    numbers.reserve(2 * metadata.size());
    for (const RowMetadata& each : metadata) {
      numbers.push_back(each.time);
      numbers.push_back(each.count);
    }
    return ArrayOf(std::move(numbers));
  }

  ValueType type() const { return table_->value_type(); }
  size_t dim() const { return static_cast<size_t>(table_->dim()); }

  std::shared_ptr<TrainedTable> table_;
  RuleSpec rule_;  // Whose slots this framework's steps need.
};

}  // namespace

NB_MODULE(_native, m) {
  using namespace nb::literals;
  if (std::strcmp(Version(), TFRA_VERSION) != 0) {
    throw nb::import_error(("tfra._native was built with another version of the engine: expected "
                            "libtfra_engine " TFRA_VERSION ", received " +
                            std::string(Version()) + ". Install tfra again.")
                               .c_str());
  }
  m.doc() = "The engine of tfra, over raw bytes. Use tfra.Table instead.";
  // Daemon threads that are inside of calls when the interpreter ends keep their tables, which is
  // nothing to warn of.
  nb::set_leak_warnings(false);

  nb::class_<UpdateParams>(m, "UpdateParams")
      .def(
          "__init__",
          [](UpdateParams* self, const std::string& json) {
            UpdateParams params;
            Raise(ParseUpdateParams(json, &params));
            new (self) UpdateParams(params);
          },
          "json"_a);

  nb::class_<NativeTable> table(m, "NativeTable");
  table
      .def(
          "__init__",
          [](NativeTable* self, const std::string& spec) { new (self) NativeTable(SpecOf(spec)); },
          "spec"_a)
      .def_static(
          "from_handle",
          [](uint64_t handle, const std::string& rule_json) {
            RuleSpec rule;
            Raise(ParseRuleSpec(rule_json, &rule));
            return NativeTable(handle, rule);
          },
          "handle"_a, "rule"_a)
      .def("handle", &NativeTable::Handle)
      .def("spec", &NativeTable::Spec)
      .def("has_metadata", &NativeTable::HasMetadata)
      .def("lookup", &NativeTable::Lookup, "keys"_a, "default_kind"_a, "default_rows"_a.none(),
           "out"_a.none(), "exists"_a.none())
      .def("lookup_rows", &NativeTable::LookupRows, "keys"_a, "values"_a)
      .def("contains", &NativeTable::Contains, "keys"_a, "exists"_a)
      .def("assign", &NativeTable::Assign, "keys"_a, "values"_a, "slots"_a.none(), "rule"_a.none(),
           "metadata"_a.none(), "scores"_a.none())
      .def("accumulate", &NativeTable::Accumulate, "keys"_a, "deltas"_a, "exists"_a,
           "scores"_a.none())
      .def("apply_gradients", &NativeTable::ApplyGradients, "keys"_a, "gradients"_a,
           "gradient_type"_a, "params"_a, "step"_a.none(), "scores"_a.none())
      .def("step", &NativeTable::Step)
      .def("set_step", &NativeTable::SetStep, "step"_a)
      .def("remove", &NativeTable::Remove, "keys"_a)
      .def("clear", &NativeTable::Clear)
      .def("reserve", &NativeTable::Reserve, "keys"_a)
      .def("shrink", &NativeTable::Shrink)
      .def("size", &NativeTable::Size)
      .def("clock", &NativeTable::Clock)
      .def("set_clock", &NativeTable::SetClock, "now"_a)
      .def("stats", &NativeTable::Stats)
      .def("rule", &NativeTable::Rule)
      .def("export", &NativeTable::Export, "max_rows"_a, "position"_a, "seed"_a)
      .def("export_all", &NativeTable::ExportAll)
      .def("touch", &NativeTable::Touch, "keys"_a)
      .def("lookup_metadata", &NativeTable::LookupMetadata, "keys"_a)
      .def("restrict", &NativeTable::Restrict, "keep"_a, "newest"_a)
      .def("expire", &NativeTable::Expire, "written_before"_a, "norm_below"_a, "norm_writes"_a)
      .def("histograms", &NativeTable::Histograms)
      .def("admission_state", &NativeTable::AdmissionStateOf)
      .def("restore_admission", &NativeTable::RestoreAdmission, "keys"_a, "seen"_a, "filter"_a)
      .def("count_if", &NativeTable::CountIf, "written_before"_a.none(), "count_below"_a.none())
      .def("remove_if", &NativeTable::RemoveIf, "written_before"_a.none(), "count_below"_a.none())
      .def("select_if", &NativeTable::SelectIf, "written_before"_a.none(), "count_below"_a.none());
  DefineBounded(table);
  DefineParts(m);

  m.def(
      "parse_spec", [](const std::string& json) { return PrintTableSpec(SpecOf(json)); }, "json"_a);
  m.def(
      "estimate_memory",
      [](const std::string& spec, int64_t keys, double key_bytes) {
        TableStats estimate;
        Raise(EstimateMemory(SpecOf(spec), keys, key_bytes, &estimate));
        return DictOf(estimate);
      },
      "spec"_a, "keys"_a, "key_bytes"_a);
  m.def(
      "rule_slots",
      [](const std::string& rule_json, int64_t dim) {
        RuleSpec rule;
        Raise(ParseRuleSpec(rule_json, &rule));
        nb::list slots;
        for (const SlotSpec& slot : SlotLayout(rule)) {
          slots.append(nb::make_tuple(StrOf(slot.name), slot.scalar ? 1 : dim));
        }
        return slots;
      },
      "rule"_a, "dim"_a);
  nb::list figures;
  for (const StatsField& figure : kStatsFields) figures.append(figure.name);
  m.attr("STATS") = nb::tuple(figures);
  m.attr("MAX_DIM") = kMaxDim;
  m.attr("MAX_KEYS") = kMaxKeys;
  m.attr("MAX_FILTER_KEYS") = kMaxFilterKeys;
  m.attr("MAX_FILTER_COUNT") = kMaxFilterCount;
  m.attr("MAX_THREADS") = kMaxThreads;
  m.def("engine_version", &Version);
  m.def("num_threads", &NumThreads);
  m.def("set_num_threads", &SetNumThreads, "threads"_a);
}

}  // namespace tfra::python
