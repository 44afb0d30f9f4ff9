// Restores the waiting keys of a table from arbitrary bytes, as a damaged checkpoint would. The
// table accepts the state, or rejects it and does not change. Afterwards the table can be used and
// saved.
#include <algorithm>
#include <memory>
#include <string_view>
#include <tuple>
#include <vector>

#include "input.h"
#include "tfra/table.h"

namespace tfra::fuzz {
namespace {

AdmissionSpec SpecOf(Input* input) {
  AdmissionSpec spec;
  spec.kind = static_cast<AdmissionKind>(input->Below(4));
  constexpr uint32_t kCounts[] = {1, 2, 3, 15, 16, 255, 256, 65535};
  spec.min_count = kCounts[input->Below(std::size(kCounts))];
  spec.filter_keys = 1 + int64_t{input->Below(256)} * input->Below(8);
  spec.filter_error = (1 + input->Below(255)) / 256.0;
  spec.probability = input->Below(5) / 4.0;
  spec.seed = input->Below(4);
  return spec;
}

// Takes an optimizer step for some keys; the admission rule decides which of them the table
// inserts.
void Use(Table* table, Input* input) {
  const size_t n = input->Below(24);
  std::vector<int64_t> ints(n);
  std::vector<std::string> strings(n);
  const bool has_strings = table->spec().key_type == KeyType::kString;
  for (size_t i = 0; i < n; ++i) {
    if (has_strings) {
      strings[i] = input->StringKey();
    } else {
      ints[i] = input->IntKey();
    }
  }
  const std::vector<std::string_view> views(strings.begin(), strings.end());
  const KeyBatch keys = has_strings ? KeyBatch(views.data(), n) : KeyBatch(ints.data(), n);
  const std::vector<float> gradients(n, 1.0f);
  const uint64_t before = table->size();
  REQUIRE_OK(table->training().ApplyGradients(keys, gradients.data(), ValueType::kFloat32, {}));
  REQUIRE(table->size() >= before && table->size() <= before + n);
  std::vector<float> values(n);
  REQUIRE_OK(table->Lookup(keys, {}, values.data(), nullptr));
}

AdmissionState SavedOf(Table* table) {
  AdmissionState state;
  REQUIRE_OK(table->upkeep().ExportAdmission(&state));
  return state;
}

// Whether two states are equal, apart from the order of their keys.
bool Same(const AdmissionState& a, const AdmissionState& b) {
  using Key = std::tuple<int64_t, std::string, uint32_t, uint32_t>;
  const auto keys_of = [](const AdmissionState& state) {
    std::vector<Key> keys;
    for (size_t i = 0; i < state.seen.size(); ++i) {
      keys.emplace_back(state.int_keys.empty() ? 0 : state.int_keys[i],
                        state.string_keys.empty() ? "" : std::string(state.string_keys[i]),
                        state.seen[i].time, state.seen[i].count);
    }
    std::sort(keys.begin(), keys.end());
    return keys;
  };
  return a.filter == b.filter && keys_of(a) == keys_of(b);
}

// Returns the states of `tables` tables, one after the other, with some bytes changed.
AdmissionState ChangedState(const TableSpec& spec, Input* input, uint32_t tables) {
  AdmissionState state;
  for (uint32_t t = 0; t < tables; ++t) {
    std::unique_ptr<Table> table;
    REQUIRE_OK(Table::Create(spec, &table));
    Use(table.get(), input);
    state.Append(SavedOf(table.get()));
  }
  for (uint32_t changes = input->Below(4); changes > 0 && !state.filter.empty(); --changes) {
    // Half of the changes are in the header, which RestoreAdmission checks most.
    const size_t place = input->Flag() ? input->Below(16) : input->Take<uint16_t>();
    state.filter[place % state.filter.size()] = static_cast<std::byte>(input->Below(256));
  }
  if (input->Below(4) == 0) {
    state.filter.resize(state.filter.size() -
                        std::min<size_t>(state.filter.size(), input->Below(64)));
  }
  if (input->Below(4) == 0) state.seen.resize(input->Below(64));
  return state;
}

// Returns a state of arbitrary keys and bytes.
AdmissionState AnyState(Input* input) {
  AdmissionState state;
  const size_t keys = input->Below(32);
  for (size_t i = 0; i < keys; ++i) {
    if (input->Flag()) state.int_keys.push_back(input->IntKey());
    if (input->Flag()) state.string_keys.Append(input->StringKey());
    if (input->Flag()) state.seen.push_back({input->Take<uint32_t>(), input->Take<uint32_t>()});
  }
  if (input->Flag()) {  // Every int64 key has a count; often there are no string keys.
    state.seen.resize(state.int_keys.size());
    if (input->Flag()) state.string_keys.Clear();
  }
  for (char byte : input->String()) state.filter.push_back(static_cast<std::byte>(byte));
  return state;
}

void Run(Input* input) {
  TableSpec spec;
  spec.key_type = input->Flag() ? KeyType::kString : KeyType::kInt64;
  spec.rule.kind = RuleKind::kSgd;
  spec.metadata = input->Flag();
  spec.admission = SpecOf(input);
  std::unique_ptr<Table> table;
  REQUIRE_OK(Table::Create(spec, &table));
  Use(table.get(), input);
  const AdmissionState before = SavedOf(table.get());

  const uint32_t partitions = 1 + input->Below(3), partition = input->Below(4);
  if (input->Below(4) == 0) spec.admission = SpecOf(input);  // The state of another rule.
  const AdmissionState state =
      input->Flag() ? ChangedState(spec, input, partitions) : AnyState(input);
  const Status status = table->upkeep().RestoreAdmission(state, partition, partitions);
  const AdmissionState after = SavedOf(table.get());
  if (status.ok()) {
    REQUIRE(after.seen.size() <= state.seen.size());
    REQUIRE(table->stats().waiting == after.seen.size());
    REQUIRE_OK(table->upkeep().RestoreAdmission(after));
    REQUIRE(Same(SavedOf(table.get()), after));
  } else {
    REQUIRE(status.code() == StatusCode::kInvalidArgument);
    REQUIRE(Same(after, before));
  }
  while (!input->empty()) Use(table.get(), input);
  REQUIRE_OK(table->upkeep().RestoreAdmission(SavedOf(table.get())));
  REQUIRE_OK(table->Clear());
  REQUIRE(table->stats().waiting == 0);
}

}  // namespace
}  // namespace tfra::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tfra::fuzz::Input input(data, size);
  tfra::fuzz::Run(&input);
  return 0;
}
