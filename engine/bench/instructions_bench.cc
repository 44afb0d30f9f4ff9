// Runs one kind of call on many keys, on one thread. callgrind counts its instructions:
//
//   instructions_bench lookup|insert|adam ROUNDS
//
// A round has 196,608 int64 keys with rows of 16 floats, in calls of 65,536 keys.
// bench/instructions.py runs this program with and without rounds; the difference is the cost of
// the calls.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench_helpers.h"
#include "tfra/table.h"
#include "tfra/thread_pool.h"

namespace tfra::bench {
namespace {

constexpr size_t kBatch = 65536;
constexpr size_t kKeys = 3 * kBatch;
constexpr size_t kDim = 16;

std::unique_ptr<Table> MakeTable(bool adam) {
  TableSpec spec;
  spec.key_type = KeyType::kInt64;
  spec.value_type = ValueType::kFloat32;
  spec.dim = kDim;
  if (adam) spec.rule.kind = RuleKind::kAdam;
  std::unique_ptr<Table> table;
  RequireOk(Table::Create(spec, &table));
  return table;
}

struct Batches {
  std::vector<int64_t> keys;
  std::vector<float> rows;

  Batches() : keys(kKeys), rows(kKeys * kDim) {
    for (size_t i = 0; i < kKeys; ++i) keys[i] = KeyOf(i);
    for (size_t i = 0; i < kKeys * kDim; ++i) rows[i] = ValueOf(keys[i / kDim]);
  }

  template <typename Body>
  void ForEach(Body&& body) {
    for (size_t first = 0; first < kKeys; first += kBatch) {
      body(KeyBatch(keys.data() + first, kBatch), rows.data() + first * kDim);
    }
  }
};

void Fill(Table* table, Batches* batches) {
  batches->ForEach(
      [&](const KeyBatch& keys, const float* rows) { RequireOk(table->Assign(keys, rows)); });
}

void Run(const std::string& call, int rounds) {
  SetNumThreads(1);
  Batches batches;
  const std::unique_ptr<Table> table = MakeTable(call == "adam");
  Fill(table.get(), &batches);
  UpdateParams step;
  step.learning_rate = 0.01;
  std::vector<float> values(kBatch * kDim);
  for (int round = 0; round < rounds; ++round) {
    if (call == "insert") {
      const std::unique_ptr<Table> fresh = MakeTable(false);
      Fill(fresh.get(), &batches);
      Require(fresh->size() == kKeys, "all keys are in the table");
      continue;
    }
    batches.ForEach([&](const KeyBatch& keys, const float* rows) {
      if (call == "adam") {
        RequireOk(table->training().ApplyGradients(keys, rows, ValueType::kFloat32, step));
        return;
      }
      RequireOk(table->Lookup(keys, Defaults(), values.data(), nullptr));
      Require(values[0] == rows[0] && values.back() == rows[kBatch * kDim - 1], "a looked-up row");
    });
  }
}

}  // namespace
}  // namespace tfra::bench

int main(int argc, char** argv) {
  const std::string call = argc == 3 ? argv[1] : "";
  if (call != "lookup" && call != "insert" && call != "adam") return 2;
  tfra::bench::Run(call, std::atoi(argv[2]));
  return 0;
}
