// Pooled lookups and their gradients, with arbitrary splits and weights. A call is rejected and
// writes nothing, or a pooled lookup returns the same as a lookup whose rows are pooled afterwards.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "input.h"
#include "tfra/table.h"
#include "tfra/unique_keys.h"

namespace tfra::fuzz {
namespace {

bool Fits(const std::vector<int64_t>& splits, size_t keys) {
  return splits.front() == 0 && std::is_sorted(splits.begin(), splits.end()) &&
         splits.back() == static_cast<int64_t>(keys);
}

std::vector<int64_t> SplitsOf(Input* input, size_t keys) {
  std::vector<int64_t> splits;
  const bool hostile = input->Flag();
  const size_t segments = input->Below(40);
  for (size_t s = 0; s <= segments; ++s) {
    splits.push_back(hostile ? input->Integer()
                             : static_cast<int64_t>(input->Below(256)) %
                                   static_cast<int64_t>(keys + 1));
  }
  if (hostile) return splits;
  // These splits are valid, unless there are keys and only one split.
  std::sort(splits.begin(), splits.end());
  splits.front() = 0;
  splits.back() = static_cast<int64_t>(keys);
  return splits;
}

// Compares bit by bit, so that NaNs are equal.
template <typename Compute>
bool Same(const std::vector<Compute>& a, const std::vector<Compute>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](Compute x, Compute y) { return std::memcmp(&x, &y, sizeof(x)) == 0; });
}

template <typename Compute>
void Run(Input* input, ValueType type) {
  const size_t dim = 1 + input->Below(5), n = input->Below(48);
  TableSpec spec;
  spec.value_type = type;
  spec.dim = static_cast<int64_t>(dim);
  spec.initializer.kind = InitializerKind::kUniform;
  std::unique_ptr<Table> table;
  REQUIRE_OK(Table::Create(spec, &table));

  std::vector<int64_t> keys(n);
  for (int64_t& key : keys) key = input->IntKey();
  const KeyBatch batch(keys.data(), n);
  std::vector<std::byte> rows(n * dim * SizeOf(type));
  if (input->Flag()) {  // Otherwise all keys have their initial rows.
    for (std::byte& byte : rows) byte = static_cast<std::byte>(input->Below(256));
    REQUIRE_OK(table->Assign(batch, rows.data()));
  }
  REQUIRE_OK(table->Lookup(batch, {}, rows.data(), nullptr));

  const std::vector<int64_t> splits = SplitsOf(input, n);
  std::vector<float> weights(n);
  for (float& weight : weights) weight = static_cast<float>(input->Below(32)) - 8;
  if (n > 0 && input->Flag()) weights[0] = static_cast<float>(input->Take<float>());
  Pooling pooling;
  pooling.combiner = static_cast<Pooling::Combiner>(input->Below(3));
  pooling.splits = splits.data();
  pooling.segments = splits.size() - 1;
  pooling.weights = input->Flag() ? weights.data() : nullptr;
  pooling.max_norm = input->Flag() ? input->Real() : 0;

  std::vector<Compute> looked_up(pooling.segments * dim, 7), pooled = looked_up;
  const std::vector<Compute> before = looked_up;
  const Status by_table = table->LookupPooled(batch, {}, pooling, looked_up.data());
  const Status by_rows = Pool(pooling, rows.data(), n, type, dim, pooled.data());
  REQUIRE(by_table.ok() == by_rows.ok());
  REQUIRE(CheckPooling(pooling, n).ok() == by_table.ok());
  if (!Fits(splits, n)) REQUIRE(!by_table.ok());
  REQUIRE(Same(looked_up, by_table.ok() ? pooled : before));

  UniqueKeys unique;
  REQUIRE_OK(UniqueKeys::Find(batch, &unique));
  REQUIRE(unique.size() <= n);
  std::vector<Compute> gradients(pooling.segments * dim), sums(unique.size() * dim, 7);
  for (Compute& gradient : gradients) gradient = static_cast<Compute>(input->Below(16));
  const std::vector<Compute> no_sums = sums;
  const Status summed =
      unique.SumPooled(gradients.data(), ComputeType(type), dim, pooling, sums.data());
  REQUIRE(summed.ok() == (by_table.ok() && pooling.max_norm == 0));
  if (!summed.ok()) REQUIRE(Same(sums, no_sums));
}

}  // namespace
}  // namespace tfra::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tfra::ValueType;
  tfra::fuzz::Input input(data, size);
  switch (input.Below(4)) {
    case 0:
      tfra::fuzz::Run<double>(&input, ValueType::kFloat64);
      break;
    case 1:
      tfra::fuzz::Run<float>(&input, ValueType::kFloat16);
      break;
    case 2:
      tfra::fuzz::Run<float>(&input, ValueType::kBfloat16);
      break;
    default:
      tfra::fuzz::Run<float>(&input, ValueType::kFloat32);
  }
  return 0;
}
