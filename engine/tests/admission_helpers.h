// Tables with an admission rule, and keys that are seen by them.
#pragma once

#include <algorithm>

#include "table_helpers.h"

namespace tfra::test {

inline AdmissionSpec MinCount(uint32_t min_count) {
  AdmissionSpec spec;
  spec.kind = AdmissionKind::kMinCount;
  spec.min_count = min_count;
  return spec;
}

inline AdmissionSpec Bloom(uint32_t min_count, int64_t keys, double error) {
  AdmissionSpec spec = MinCount(min_count);
  spec.kind = AdmissionKind::kBloomFilter;
  spec.filter_keys = keys;
  spec.filter_error = error;
  return spec;
}

inline AdmissionSpec Probability(double probability, uint64_t seed) {
  AdmissionSpec spec;
  spec.kind = AdmissionKind::kProbability;
  spec.probability = probability;
  spec.seed = seed;
  return spec;
}

inline TableSpec AdmittingSpec(KeyType key_type, const AdmissionSpec& admission) {
  TableSpec spec = SpecOf(key_type, ValueType::kFloat32, 2);
  spec.rule.kind = RuleKind::kSgd;
  spec.metadata = true;
  spec.admission = admission;
  return spec;
}

inline std::unique_ptr<Table> AdmittingTable(KeyType key_type, const AdmissionSpec& admission) {
  return MakeTable(AdmittingSpec(key_type, admission));
}

// One training step with all the keys.
inline void See(Table& table, const TestKeys& keys, NewKeys new_keys = NewKeys::kAdmit) {
  const std::vector<float> gradients(2 * keys.size(), 1.0f);
  CHECK_OK(table.training().ApplyGradients(keys.batch(), gradients.data(), ValueType::kFloat32, {},
                                           {}, new_keys));
}

// Which of the keys are in the table.
inline Flags There(Table& table, const TestKeys& keys) {
  Flags exists(keys.size());
  CHECK_OK(table.Contains(keys.batch(), exists.data()));
  return exists;
}

// Whether two states say the same, whatever the order of the keys.
inline bool Same(const AdmissionState& a, const AdmissionState& b) {
  const auto waiting = [](const AdmissionState& state) {
    std::map<std::string, std::pair<uint32_t, uint32_t>> keys;
    for (size_t i = 0; i < state.seen.size(); ++i) {
      const std::string name = state.string_keys.empty() ? std::to_string(state.int_keys.at(i))
                                                         : std::string(state.string_keys[i]);
      keys[name] = {state.seen[i].time, state.seen[i].count};
    }
    return keys;
  };
  return waiting(a) == waiting(b) && a.seen.size() == b.seen.size() && a.filter == b.filter;
}

}  // namespace tfra::test
