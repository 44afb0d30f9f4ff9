// The cost of tiers: compares a table with an eighth of its rows in memory with a table that has
// all rows in memory, in one run, on ids that follow a Zipf distribution.
//
//   tier_bench [--keys N] [--dim N] [--threads N] [--passes N] [--part N] [--only 1|2]
//              [--directory PATH]
//   tier_bench --large 1 [--keys N] [--dim N] [--fast-bytes N] [--steps N] [--directory PATH]
//
// Rates are keys per second of CPU time, including the time of the kernel for the file. The tables
// take turns, pass by pass, and the best pass of each counts. Results are checked. With --part N,
// one row in N fits into memory. --large builds one table of 50 million keys with 2 GB of memory
// for rows, trains it for 200 steps of Adam and exports it.
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench_helpers.h"
#include "tfra/table.h"
#include "tfra/thread_pool.h"

namespace {

using namespace tfra::bench;
using tfra::KeyBatch;
using tfra::Table;
using tfra::TableStats;

struct Config {
  size_t keys = 2'000'000;
  size_t dim = 64;
  int threads = 2;
  int passes = 5;
  size_t part = 8;
  size_t only = 0;  // 1: lookups, 2: updates.
  bool large = false;
  uint64_t fast_bytes = uint64_t{2} << 30;
  size_t steps = 200;
  std::string directory;
};

constexpr size_t kBatch = 65'536;
constexpr double kExponent = 1.05;

// Random ranks from 0 on; the probability of rank r is proportional to 1 / (r + 1)^exponent. See
// Hörmann and Derflinger, "Rejection-inversion to generate variates from monotone discrete
// distributions".
class Zipf {
 public:
  Zipf(uint64_t n, uint64_t seed)
      : n_(static_cast<double>(n)),
        random_(seed),
        low_(Integral(1.5) - 1.0),
        high_(Integral(n_ + 0.5)),
        shift_(2.0 - Inverse(Integral(2.5) - std::pow(2.0, -kExponent))) {}

  uint64_t Next() {
    for (;;) {
      const double u = high_ + uniform_(random_) * (low_ - high_);
      const double x = Inverse(u);
      const double k = std::clamp(std::floor(x + 0.5), 1.0, n_);
      if (k - x <= shift_ || u >= Integral(k + 0.5) - std::pow(k, -kExponent)) {
        return static_cast<uint64_t>(k) - 1;
      }
    }
  }

 private:
  static double Integral(double x) {
    return (std::pow(x, 1.0 - kExponent) - 1.0) / (1.0 - kExponent);
  }
  static double Inverse(double x) {
    return std::pow(1.0 + x * (1.0 - kExponent), 1.0 / (1.0 - kExponent));
  }

  const double n_;
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> uniform_;
  const double low_, high_, shift_;
};

tfra::TableSpec SpecOf(const Config& config, bool adam) {
  tfra::TableSpec spec;
  spec.dim = static_cast<int64_t>(config.dim);
  if (adam) spec.rule.kind = tfra::RuleKind::kAdam;
  spec.bound = {static_cast<int64_t>(config.keys), tfra::EvictStrategy::kLru};
  return spec;
}

// Inserts the keys in an order that does not depend on their frequencies.
void Build(Table* table, const Config& config) {
  std::vector<int64_t> keys(kBatch);
  std::vector<float> rows(kBatch * config.dim);
  for (size_t begin = 0; begin < config.keys; begin += kBatch) {
    const size_t n = std::min(kBatch, config.keys - begin);
    for (size_t i = 0; i < n; ++i) {
      // A prime: the product visits every key once, unless config.keys is a multiple of it.
      keys[i] = KeyOf((begin + i) * 1'000'003 % config.keys);
      std::fill_n(rows.begin() + static_cast<std::ptrdiff_t>(i * config.dim), config.dim,
                  ValueOf(keys[i]));
    }
    RequireOk(table->Assign(KeyBatch(keys.data(), n), rows.data()));
  }
  Require(table->size() == config.keys, "the number of keys");
}

struct Rate {
  double cpu = 0, wall = 0;
};

constexpr size_t kRounds = 30;
constexpr int kWarmPasses = 6;

Rate Lookups(Table* table, const Config& config, const std::vector<int64_t>& ids) {
  std::vector<float> rows(kBatch * config.dim);
  const double cpu = CpuSeconds(), wall = WallSeconds();
  for (size_t round = 0; round < kRounds; ++round) {
    const int64_t* keys = ids.data() + round * kBatch;
    RequireOk(table->Lookup(KeyBatch(keys, kBatch), {}, rows.data(), nullptr));
    if (table->spec().rule.kind != tfra::RuleKind::kNone) continue;
    for (size_t i = 0; i < kBatch; i += 16) {
      Require(rows[i * config.dim + i % config.dim] == ValueOf(keys[i]), "a row that was read");
    }
  }
  const double keys = static_cast<double>(kRounds * kBatch);
  return {keys / (CpuSeconds() - cpu), keys / (WallSeconds() - wall)};
}

Rate Updates(Table* table, const Config& config, const std::vector<int64_t>& ids) {
  const std::vector<float> gradients(kBatch * config.dim, 0.01f);
  tfra::UpdateParams params;
  const double cpu = CpuSeconds(), wall = WallSeconds();
  for (size_t round = 0; round < kRounds; ++round) {
    params.step = static_cast<int64_t>(round) + 1;
    RequireOk(table->training().ApplyGradients(KeyBatch(ids.data() + round * kBatch, kBatch),
                                               gradients.data(), tfra::ValueType::kFloat32,
                                               params));
  }
  const double keys = static_cast<double>(kRounds * kBatch);
  return {keys / (CpuSeconds() - cpu), keys / (WallSeconds() - wall)};
}

double Megabytes(uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

void Compare(const Config& config, bool adam, const char* name,
             Rate (*measure)(Table*, const Config&, const std::vector<int64_t>&)) {
  std::unique_ptr<Table> fast, tiered;
  const uint64_t before = ResidentBytes();
  tfra::TableSpec spec = SpecOf(config, adam);
  spec.tiers.fast_bytes = config.keys * config.dim * 4 * (adam ? 3 : 1) / config.part;
  spec.tiers.directory = config.directory;
  RequireOk(Table::Create(spec, &tiered));
  Build(tiered.get(), config);
  Zipf zipf(config.keys, 1);
  std::vector<int64_t> ids(kRounds * kBatch);
  const auto draw = [&] {
    for (int64_t& id : ids) id = KeyOf(zipf.Next());
  };
  // Warm up until the frequent rows are in memory, which takes many passes.
  for (int pass = 0; pass < kWarmPasses; ++pass) {
    draw();
    measure(tiered.get(), config, ids);
  }
  const uint64_t own = ids.capacity() * sizeof(ids[0]);
  const uint64_t resident = ResidentBytes() - before - own;
  RequireOk(Table::Create(SpecOf(config, adam), &fast));
  Build(fast.get(), config);
  Rate best_fast, best_tiered;
  const auto raise = [](Rate* best, const Rate& rate) {
    best->cpu = std::max(best->cpu, rate.cpu);
    best->wall = std::max(best->wall, rate.wall);
  };
  const TableStats start = tiered->stats();
  for (int pass = 0; pass < config.passes; ++pass) {
    draw();
    raise(&best_fast, measure(fast.get(), config, ids));
    raise(&best_tiered, measure(tiered.get(), config, ids));
  }
  const TableStats stats = tiered->stats();
  const double slow = static_cast<double>(stats.slow_hits - start.slow_hits);
  const double all = static_cast<double>(kRounds * kBatch) * config.passes;
  std::printf("%s\n", name);
  std::printf("  all in memory %6.2f M/s   tiered %6.2f M/s   ratio %.2f (target 0.35)\n",
              best_fast.cpu / 1e6, best_tiered.cpu / 1e6, best_tiered.cpu / best_fast.cpu);
  std::printf("  by the clock  %6.2f M/s          %6.2f M/s         %.2f\n", best_fast.wall / 1e6,
              best_tiered.wall / 1e6, best_tiered.wall / best_fast.wall);
  std::printf("  rows in the file %.1f %% of ids; a read per %.2f, %.0f bytes written for each\n",
              100 * slow / all, slow / static_cast<double>(stats.io_reads - start.io_reads),
              static_cast<double>(stats.bytes_written - start.bytes_written) / slow);
  const uint64_t budget = spec.tiers.fast_bytes + stats.index_bytes;
  std::printf("  resident %.0f MB, of fast level + index %.0f MB: %.2f (at most 1.15)\n",
              Megabytes(resident), Megabytes(budget),
              static_cast<double>(resident) / static_cast<double>(budget));
  std::printf("  fast %.0f MB, file %.0f MB, index %.1f bytes a key\n", Megabytes(stats.fast_bytes),
              Megabytes(stats.slow_bytes),
              static_cast<double>(stats.index_bytes) / static_cast<double>(config.keys));
}

void Large(const Config& config) {
  tfra::TableSpec spec = SpecOf(config, true);
  spec.tiers = {config.fast_bytes, config.directory};
  std::unique_ptr<Table> table;
  RequireOk(Table::Create(spec, &table));
  const auto report = [&](const char* what, double seconds, double keys) {
    const TableStats stats = table->stats();
    std::printf(
        "%-8s %8.1f s %7.2f M keys/s   resident %6.0f MB   fast %5.0f MB   index %5.0f MB   "
        "file %6.0f MB\n",
        what, seconds, keys / seconds / 1e6, Megabytes(ResidentBytes()),
        Megabytes(stats.fast_bytes), Megabytes(stats.index_bytes), Megabytes(stats.slow_bytes));
    std::fflush(stdout);
  };
  double start = WallSeconds();
  Build(table.get(), config);
  report("build", WallSeconds() - start, static_cast<double>(config.keys));

  Zipf zipf(config.keys, 1);
  std::vector<int64_t> ids(kBatch);
  const std::vector<float> gradients(kBatch * config.dim, 0.01f);
  tfra::UpdateParams params;
  const TableStats before = table->stats();
  double seconds = 0;
  for (size_t step = 1; step <= config.steps; ++step) {
    for (int64_t& id : ids) id = KeyOf(zipf.Next());
    params.step = static_cast<int64_t>(step);
    start = WallSeconds();
    RequireOk(table->training().ApplyGradients(KeyBatch(ids.data(), kBatch), gradients.data(),
                                               tfra::ValueType::kFloat32, params));
    seconds += WallSeconds() - start;
  }
  report("train", seconds, static_cast<double>(config.steps * kBatch));
  const TableStats after = table->stats();
  const double slow = static_cast<double>(after.slow_hits - before.slow_hits);
  std::printf("         rows in the file %.1f %% of ids\n",
              100 * slow / (slow + static_cast<double>(after.fast_hits - before.fast_hits)));

  tfra::ExportBatch batch;
  size_t rows = 0;
  start = WallSeconds();
  for (tfra::ExportCursor cursor; !cursor.done;) {
    RequireOk(table->Export(kBatch, &cursor, &batch));
    Require(batch.values.size() == batch.size * config.dim * 4, "the values of an export");
    rows += batch.size;
  }
  Require(rows == config.keys, "the rows of an export");
  report("export", WallSeconds() - start, static_cast<double>(rows));
}

}  // namespace

int main(int argc, char** argv) {
  Config config;
  bool keys_given = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string argument = argv[i];
    const size_t number = std::strtoull(argv[i + 1], nullptr, 10);
    if (argument == "--keys") {
      config.keys = number;
      keys_given = true;
    } else if (argument == "--dim") {
      config.dim = number;
    } else if (argument == "--threads") {
      config.threads = static_cast<int>(number);
    } else if (argument == "--passes") {
      config.passes = static_cast<int>(number);
    } else if (argument == "--part") {
      config.part = number;
    } else if (argument == "--only") {
      config.only = number;
    } else if (argument == "--large") {
      config.large = number != 0;
    } else if (argument == "--fast-bytes") {
      config.fast_bytes = number;
    } else if (argument == "--steps") {
      config.steps = number;
    } else if (argument == "--directory") {
      config.directory = argv[i + 1];
    } else {
      Require(false, "an argument that is known");
    }
  }
  if (config.large && !keys_given) config.keys = 50'000'000;
  // Freed buffers must return to the system, so that they do not count as resident memory.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  tfra::SetNumThreads(config.threads);
  std::printf("threads %d, batch %zu, %zu keys, dim %zu, float32, Zipf %.2f\n", config.threads,
              kBatch, config.keys, config.dim, kExponent);
  if (config.large) {
    Large(config);
    return 0;
  }
  if (config.only != 2) Compare(config, false, "lookup, rows without slots", Lookups);
  if (config.only != 1) Compare(config, true, "Adam", Updates);
  if (config.only == 0) Compare(config, true, "lookup, rows with slots of Adam", Lookups);
  return 0;
}
