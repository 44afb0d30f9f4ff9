// Creates a table from an arbitrary TableSpec. Create returns an error, or makes a table that
// works.
//
// Some sizes are valid but too large for the machine. For these the engine returns kOutOfMemory,
// but a sanitizer ends the program. So the target reduces such sizes before it creates the table.
#include <algorithm>
#include <memory>
#include <vector>

#include "input.h"
#include "tfra/table.h"

namespace tfra::fuzz {
namespace {

constexpr uint64_t kMostBytes = uint64_t{16} << 20;

InitializerSpec InitializerOf(Input* input, size_t row_bytes, int64_t dim) {
  InitializerSpec spec;
  spec.kind = static_cast<InitializerKind>(input->Below(6));
  spec.seed = input->Take<uint64_t>();
  spec.low = input->Real();
  spec.high = input->Real();
  spec.mean = input->Real();
  spec.stddev = input->Real();
  if (input->Flag()) {
    spec.row.resize(row_bytes);
    spec.string_row.resize(static_cast<size_t>(dim));
  }
  for (char byte : input->String()) {
    if (spec.row.size() < row_bytes) spec.row.push_back(static_cast<std::byte>(byte));
  }
  for (size_t i = 0; i < spec.row.size() && i < 16; ++i) {
    spec.row[i] = static_cast<std::byte>(input->Below(256));
  }
  if (!spec.string_row.empty()) spec.string_row[0] = input->String();
  return spec;
}

RuleSpec RuleOf(Input* input) {
  RuleSpec rule;
  rule.kind = static_cast<RuleKind>(input->Below(static_cast<uint32_t>(RuleKind::kCustom) + 1));
  const uint32_t switches = input->Flag() ? input->Below(16) : 0;
  rule.momentum = switches & 1;
  rule.nesterov = switches & 2;
  rule.amsgrad = switches & 4;
  rule.centered = switches & 8;
  if (input->Flag()) rule.initial_accumulator = input->Real();
  for (uint32_t slots = input->Flag() ? input->Below(8) : 0; slots > 0; --slots) {
    rule.slots.push_back({input->String(), input->Flag(), input->Real()});
  }
  return rule;
}

TableSpec SpecOf(Input* input) {
  TableSpec spec;
  spec.key_type = input->Flag() ? KeyType::kString : KeyType::kInt64;
  spec.value_type = static_cast<ValueType>(input->Below(9));
  spec.dim = input->Flag() ? input->Integer() : 1 + input->Below(16);
  const int64_t row = std::clamp<int64_t>(spec.dim, 0, 256);
  spec.initializer = InitializerOf(input, static_cast<size_t>(row) * SizeOf(spec.value_type), row);
  spec.rule = RuleOf(input);
  spec.metadata = input->Flag();
  spec.admission.kind = static_cast<AdmissionKind>(input->Below(4));
  spec.admission.min_count = static_cast<uint32_t>(input->Integer());
  spec.admission.filter_keys = input->Integer();
  spec.admission.filter_error = input->Real();
  spec.admission.probability = input->Real();
  spec.initial_capacity = input->Flag() ? input->Integer() : 0;
  spec.bound.max_capacity = input->Flag() ? input->Integer() : 0;
  spec.bound.strategy = static_cast<EvictStrategy>(input->Below(5));
  spec.bound.remember_counts = input->Flag();
  if (input->Below(8) == 0) spec.tiers.fast_bytes = static_cast<uint64_t>(input->Integer());
  if (input->Below(8) == 0) spec.tiers.directory = "/no/such/" + input->String();
  return spec;
}

// Estimates the memory of a table with the few keys that Use inserts.
unsigned __int128 BytesOf(const TableSpec& spec) {
  const uint64_t slots = spec.rule.slots.size() + 3;
  unsigned __int128 bytes = static_cast<unsigned __int128>(spec.dim) * 8 * (slots + 1) * 64;
  TableSpec narrow = spec;  // EstimateMemory allocates an initial row, so it gets a small dim.
  narrow.dim = 1;
  TableStats stats;
  const int64_t keys = std::max(spec.initial_capacity, spec.bound.max_capacity);
  if (!EstimateMemory(narrow, keys, 0, &stats).ok()) return 0;
  return bytes + stats.index_bytes + stats.admission_bytes;
}

template <typename Element>
void Fill(Input* input, std::vector<Element>* elements) {
  for (Element& element : *elements) element = static_cast<Element>(input->Below(2));
}

void Use(Table* table, Input* input) {
  const TableSpec& spec = table->spec();
  const size_t n = 12, dim = static_cast<size_t>(spec.dim);
  std::vector<int64_t> ints(n);
  std::vector<std::string> strings(n);
  for (size_t i = 0; i < n; ++i) {
    ints[i] = input->IntKey();
    strings[i] = input->StringKey();
  }
  const std::vector<std::string_view> views(strings.begin(), strings.end());
  const bool has_strings = spec.key_type == KeyType::kString;
  const KeyBatch keys = has_strings ? KeyBatch(views.data(), n) : KeyBatch(ints.data(), n);

  const bool string_values = spec.value_type == ValueType::kString;
  std::vector<std::byte> rows(n * dim * SizeOf(spec.value_type));
  std::vector<std::string> string_rows(string_values ? n * dim : 0);
  const std::vector<std::string_view> string_views(n * dim, "value");
  void* const out = string_values ? static_cast<void*>(string_rows.data()) : rows.data();
  const void* const in =
      string_values ? static_cast<const void*>(string_views.data()) : rows.data();

  bool exists[n];
  REQUIRE_OK(table->Lookup(keys, {}, out, exists));
  REQUIRE(std::none_of(exists, exists + n, [](bool there) { return there; }));
  REQUIRE_OK(table->Assign(keys, in));
  REQUIRE(table->size() >= 1 && table->size() <= n);
  REQUIRE_OK(table->Lookup(keys, {}, out, exists));
  const RuleKind kind = spec.rule.kind;
  if (kind != RuleKind::kNone && kind != RuleKind::kCustom) {
    std::vector<double> gradients(n * dim);  // Large enough for gradients of every type.
    REQUIRE_OK(
        table->training().ApplyGradients(keys, gradients.data(), ComputeType(spec.value_type), {}));
  }
  if (!string_values && kind != RuleKind::kNone) {
    std::vector<double> slots(n * std::max<size_t>(table->slot_elements(), 1));
    REQUIRE_OK(table->Lookup(keys, {}, out, nullptr, slots.data()));
    REQUIRE_OK(table->Assign(keys, in, slots.data()));
  }
  ExportBatch batch;
  REQUIRE_OK(table->ExportAll(&batch));
  REQUIRE(batch.size == table->size());
  REQUIRE_OK(table->Reserve(input->Below(256)));
  REQUIRE_OK(table->Shrink());
  std::unique_ptr<Table> copy;
  REQUIRE_OK(table->CopyWithRule(spec.rule, input->Flag(), &copy));
  REQUIRE(copy->size() == table->size());
  size_t removed = 0;
  REQUIRE_OK(table->Remove(keys, &removed));
  REQUIRE(removed == batch.size && table->size() == 0);
}

void Run(Input* input) {
  TableSpec spec = SpecOf(input);
  if (BytesOf(spec) > kMostBytes) {
    spec.dim = std::min<int64_t>(spec.dim, 64);
    spec.initial_capacity = std::min<int64_t>(spec.initial_capacity, 5000);
    spec.bound.max_capacity = std::min<int64_t>(spec.bound.max_capacity, 5000);
    spec.admission.filter_keys = std::min<int64_t>(spec.admission.filter_keys, 5000);
  }
  std::unique_ptr<Table> table;
  const Status status = Table::Create(spec, &table);
  REQUIRE(status.ok() == (table != nullptr));
  if (!status.ok()) {
    REQUIRE(!status.message().empty());
    return;
  }
  TableStats estimate;
  REQUIRE_OK(EstimateMemory(spec, spec.initial_capacity, 0, &estimate));
  Use(table.get(), input);
}

}  // namespace
}  // namespace tfra::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tfra::fuzz::Input input(data, size);
  tfra::fuzz::Run(&input);
  return 0;
}
