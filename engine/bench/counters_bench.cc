// The cost of the counters of a table: the same lookups in an engine with counters and in one
// without, by turns, in one process.
//
//   counters_bench WITH.so WITHOUT.so [--keys N] [--dim N] [--tables N] [--turns N]
//
// The speed of a machine changes over time, and tables differ in where they are in memory. So calls
// of the two engines alternate, times are compared pair by pair, and tables are built several
// times. Prints the quartiles of the cost, in percent of the time without counters.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "tfra/table.h"

namespace {

using tfra::KeyBatch;
using tfra::Table;

constexpr size_t kBatch = 65'536;

// Table::Create of one library. The symbol name follows the Itanium ABI.
using CreateTable = tfra::Status (*)(const tfra::TableSpec&, std::unique_ptr<Table>*);
constexpr char kCreate[] =
    "_ZN4tfra5Table6CreateERKNS_9TableSpecEPSt10unique_ptrIS0_St14default_deleteIS0_EE";

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "expected %s\n", what);
  std::exit(1);
}

CreateTable Load(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  Require(library != nullptr, path);
  const auto create = reinterpret_cast<CreateTable>(dlsym(library, kCreate));
  Require(create != nullptr, "a library of this engine");
  return create;
}

std::unique_ptr<Table> Build(CreateTable create, size_t keys, int64_t dim) {
  tfra::TableSpec spec;
  spec.dim = dim;
  spec.initial_capacity = static_cast<int64_t>(keys);
  std::unique_ptr<Table> table;
  Require(create(spec, &table).ok(), "a table");
  std::vector<int64_t> batch(kBatch);
  const std::vector<float> values(kBatch * static_cast<size_t>(dim), 1.0f);
  for (size_t begin = 0; begin < keys; begin += kBatch) {
    const size_t count = std::min(kBatch, keys - begin);
    for (size_t i = 0; i < count; ++i) batch[i] = static_cast<int64_t>(begin + i);
    Require(table->Assign(KeyBatch(batch.data(), count), values.data()).ok(), "memory");
  }
  return table;
}

}  // namespace

int main(int argc, char** argv) {
  Require(argc >= 3, "two libraries");
  size_t keys = 10'000'000, tables = 4, turns = 200;
  int64_t dim = 16;
  for (int i = 3; i + 1 < argc; i += 2) {
    const auto is = [&](const char* name) { return std::strcmp(argv[i], name) == 0; };
    const auto value = std::strtoull(argv[i + 1], nullptr, 10);
    if (is("--keys")) keys = value;
    if (is("--dim")) dim = static_cast<int64_t>(value);
    if (is("--tables")) tables = value;
    if (is("--turns")) turns = value;
  }
  const CreateTable create[2] = {Load(argv[1]), Load(argv[2])};

  std::mt19937_64 random(1);
  std::vector<int64_t> wanted(kBatch);
  std::vector<float> values(kBatch * static_cast<size_t>(dim));
  std::vector<double> costs, seconds[2];
  for (size_t built = 0; built < tables; ++built) {
    std::unique_ptr<Table> both[2];
    for (size_t k = 0; k < 2; ++k) {
      const size_t which = (k + built) % 2;
      both[which] = Build(create[which], keys, dim);
    }
    for (size_t turn = 0; turn < turns; ++turn) {
      double took[2];
      for (size_t k = 0; k < 2; ++k) {
        const size_t which = (k + turn) % 2;
        // Each engine gets other keys, so that its rows are not in the caches because of the other.
        for (int64_t& key : wanted) key = static_cast<int64_t>(random() % keys);
        const auto start = std::chrono::steady_clock::now();
        const bool ok =
            both[which]->Lookup(KeyBatch(wanted.data(), kBatch), {}, values.data(), nullptr).ok();
        took[which] =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        Require(ok && values.front() == 1.0f && values.back() == 1.0f, "the values");
      }
      if (turn < turns / 10) continue;  // Warm-up.
      costs.push_back(100.0 * (took[0] / took[1] - 1.0));
      for (size_t k = 0; k < 2; ++k) seconds[k].push_back(took[k]);
    }
    const uint64_t looked_up = turns * kBatch;
    Require(both[0]->stats().hits == looked_up && both[1]->stats().hits == 0,
            "one engine that counts and one that does not");
  }
  const auto quantile = [](std::vector<double>* numbers, double share) {
    std::sort(numbers->begin(), numbers->end());
    return (*numbers)[static_cast<size_t>(share * static_cast<double>(numbers->size() - 1))];
  };
  std::printf(
      "{\"keys\": %zu, \"with\": %.0f, \"without\": %.0f, \"low\": %.2f, \"median\": %.2f, "
      "\"high\": %.2f}\n",
      keys, kBatch / quantile(&seconds[0], 0.5), kBatch / quantile(&seconds[1], 0.5),
      quantile(&costs, 0.25), quantile(&costs, 0.5), quantile(&costs, 0.75));
}
