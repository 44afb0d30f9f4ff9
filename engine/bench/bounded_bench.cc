// The cost of a bound: compares a bounded table with an unbounded one, in one run.
//
//   bounded_bench [--keys N] [--dim N] [--threads N] [--passes N]
//
// Prints three ratios: lookups in a full table to lookups in an unbounded one; insertions that
// evict to insertions that do not; and lookups in a half full table to lookups in a full one. Rates
// are keys per second of CPU time. The tables take turns, pass by pass, and the best pass of each
// counts. Results are checked.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "bench_helpers.h"
#include "tfra/table.h"
#include "tfra/thread_pool.h"

namespace {

using namespace tfra::bench;
using tfra::KeyBatch;
using tfra::Table;

struct Config {
  size_t keys = 2'000'000;
  size_t dim = 32;
  int threads = 2;
  int passes = 5;
};

constexpr size_t kBatch = 65'536;

// Inserts the keys of the numbers begin .. end - 1. Returns keys per second of CPU time.
double Insert(Table* table, size_t dim, size_t begin, size_t end) {
  std::vector<int64_t> keys(kBatch);
  std::vector<float> rows(kBatch * dim);
  double seconds = 0;
  for (size_t first = begin; first < end; first += kBatch) {
    const size_t n = std::min(kBatch, end - first);
    for (size_t i = 0; i < n; ++i) {
      keys[i] = KeyOf(first + i);
      std::fill_n(rows.begin() + static_cast<std::ptrdiff_t>(i * dim), dim, ValueOf(keys[i]));
    }
    const double start = CpuSeconds();
    RequireOk(table->Assign(KeyBatch(keys.data(), n), rows.data()));
    seconds += CpuSeconds() - start;
  }
  return static_cast<double>(end - begin) / seconds;
}

// Looks up keys of the table, in random order. Returns keys per second of CPU time.
double Lookup(Table* table, size_t dim, const std::vector<int64_t>& there) {
  std::vector<int64_t> keys(kBatch);
  std::vector<float> rows(kBatch * dim);
  const std::unique_ptr<bool[]> exists(new bool[kBatch]);
  double seconds = 0;
  constexpr size_t kRounds = 30;
  for (size_t round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kBatch; ++i) {
      keys[i] = there[tfra::MixInt64(round * kBatch + i) % there.size()];
    }
    const double start = CpuSeconds();
    RequireOk(table->Lookup(KeyBatch(keys.data(), kBatch), {}, rows.data(), exists.get()));
    seconds += CpuSeconds() - start;
    for (size_t i = 0; i < kBatch; ++i) {
      Require(exists[i] && rows[i * dim] == ValueOf(keys[i]), "a row that was looked up");
    }
  }
  return static_cast<double>(kRounds * kBatch) / seconds;
}

std::vector<int64_t> KeysOf(Table* table) {
  std::vector<int64_t> keys;
  tfra::ExportBatch batch;
  for (tfra::ExportCursor cursor; !cursor.done;) {
    RequireOk(table->Export(kBatch, &cursor, &batch));
    keys.insert(keys.end(), batch.int_keys.begin(), batch.int_keys.end());
  }
  Require(keys.size() == table->size(), "an export");
  return keys;
}

struct Rates {
  double insert = 0, lookup_half = 0, insert_evicting = 0, lookup_full = 0;
};

// Fills a table in two halves. If it is bounded, goes on to insert keys that evict others.
void Pass(Table* table, const Config& config, size_t pass, Rates* best) {
  const auto raise = [](double* rate, double measured) { *rate = std::max(*rate, measured); };
  RequireOk(table->Clear());
  const size_t n = config.keys, first = 3 * n * pass;
  Insert(table, config.dim, first, first + n / 2);
  raise(&best->lookup_half, Lookup(table, config.dim, KeysOf(table)));
  raise(&best->insert, Insert(table, config.dim, first + n / 2, first + n));
  Require(table->size() == n, "the size of a full table");
  if (table->spec().bound.max_capacity > 0) {
    const uint64_t before = table->stats().evictions;
    raise(&best->insert_evicting, Insert(table, config.dim, first + n, first + 3 * n));
    const tfra::TableStats stats = table->stats();
    Require(stats.evictions + stats.score_too_low >= before + 2 * n, "the number of evictions");
    Require(stats.size == n, "the size of a full table");
  }
  raise(&best->lookup_full, Lookup(table, config.dim, KeysOf(table)));
}

void Run(const Config& config, tfra::EvictStrategy strategy, const char* name) {
  tfra::TableSpec spec;
  spec.dim = static_cast<int64_t>(config.dim);
  std::unique_ptr<Table> unbounded, bounded;
  RequireOk(Table::Create(spec, &unbounded));
  spec.bound = {static_cast<int64_t>(config.keys), strategy};
  RequireOk(Table::Create(spec, &bounded));
  Rates without, with;
  // In the first pass, the tables grow and allocate memory, as they do for users.
  double filling = 0;
  for (int pass = 0; pass <= config.passes; ++pass) {
    if (pass == 1) {
      filling = with.insert;
      without = with = Rates();
    }
    Pass(unbounded.get(), config, static_cast<size_t>(pass), &without);
    Pass(bounded.get(), config, static_cast<size_t>(pass), &with);
  }
  std::printf("%s\n", name);
  std::printf("  lookup, full           %6.1f M/s  unbounded %6.1f M/s  ratio %.2f (target 0.80)\n",
              with.lookup_full / 1e6, without.lookup_full / 1e6,
              with.lookup_full / without.lookup_full);
  std::printf("  insert, not evicting   %6.1f M/s  unbounded %6.1f M/s  ratio %.2f\n",
              with.insert / 1e6, without.insert / 1e6, with.insert / without.insert);
  std::printf("  insert, evicting       %6.1f M/s  not       %6.1f M/s  ratio %.2f (target 0.50)\n",
              with.insert_evicting / 1e6, with.insert / 1e6, with.insert_evicting / with.insert);
  std::printf("  insert, evicting       %6.1f M/s  growing   %6.1f M/s  ratio %.2f\n",
              with.insert_evicting / 1e6, filling / 1e6, with.insert_evicting / filling);
  std::printf(
      "  lookup, half full      %6.1f M/s  full      %6.1f M/s  ratio %.2f (at most 1.30)\n",
      with.lookup_half / 1e6, with.lookup_full / 1e6, with.lookup_half / with.lookup_full);
  const tfra::TableStats stats = bounded->stats();
  std::printf(
      "  index %.1f bytes a key, unbounded %.1f\n",
      static_cast<double>(stats.index_bytes) / static_cast<double>(config.keys),
      static_cast<double>(unbounded->stats().index_bytes) / static_cast<double>(config.keys));
}

}  // namespace

int main(int argc, char** argv) {
  Config config;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string argument = argv[i];
    const size_t number = std::strtoull(argv[i + 1], nullptr, 10);
    if (argument == "--keys") {
      config.keys = number;
    } else if (argument == "--dim") {
      config.dim = number;
    } else if (argument == "--threads") {
      config.threads = static_cast<int>(number);
    } else if (argument == "--passes") {
      config.passes = static_cast<int>(number);
    } else {
      Require(false, "expected --keys, --dim, --threads or --passes");
    }
  }
  tfra::SetNumThreads(config.threads);
  std::printf("threads %d, batch %zu, %zu keys, dim %zu, float32\n", config.threads, kBatch,
              config.keys, config.dim);
  Run(config, tfra::EvictStrategy::kLru, "kLru");
  Run(config, tfra::EvictStrategy::kLfu, "kLfu");
  return 0;
}
