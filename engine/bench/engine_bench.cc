// Compares the speed and memory of the engine with those of raw arrays, in one run.
//
//   engine_bench [--keys N,N,..] [--dim N,N,..] [--threads N] [--batch N] [--rounds N]
//                [--json FILE] [workload ..]
//
// Workloads (all by default): lookup assign insert adam mixed. Each prints its rate, the rate of a
// raw loop over rows in an array, which is measured at the same time, and their ratio. Raw loops
// prefetch, and use the same thread pool. Results are checked: a wrong one ends the run. With
// --json, each workload also writes a line of JSON to a file.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "bench_helpers.h"
#include "memory/pages.h"
#include "tfra/table.h"
#include "tfra/thread_pool.h"

namespace {

using namespace tfra::bench;
using tfra::KeyBatch;
using tfra::ParallelFor;
using tfra::Table;

struct Config {
  std::vector<size_t> keys = {1'000'000, 10'000'000, 30'000'000};
  std::vector<size_t> dims = {32};
  int threads = 2;
  size_t batch = 65'536;
  size_t rounds = 60;
  std::vector<std::string> workloads;

  bool Wants(const char* name) const {
    return workloads.empty() ||
           std::find(workloads.begin(), workloads.end(), name) != workloads.end();
  }
};

// Element j of the row of key number i. It depends on both, so that wrong rows are detected.
float ValueOf(size_t i, size_t j) { return static_cast<float>((i * 31 + j * 7) & 0xFFFF); }

class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes), data_(tfra::AllocatePages(bytes)) {
    Require(data_ != nullptr, "out of memory");
  }
  ~Pages() { tfra::FreePages(data_, bytes_); }
  float* floats() { return reinterpret_cast<float*>(data_); }

 private:
  size_t bytes_;
  std::byte* data_;
};

// `rounds` batches of uniformly random key numbers, on request distinct within each batch.
struct Queries {
  Queries(size_t rounds, size_t batch, size_t keys, bool distinct) {
    uint64_t draw = 1;
    for (size_t r = 0; r < rounds; ++r) {
      std::vector<uint32_t> numbers(batch);
      std::vector<int64_t> ids(batch);
      std::vector<bool> used(distinct ? keys : 0);
      for (size_t i = 0; i < batch; ++i) {
        uint32_t number;
        do {
          number = static_cast<uint32_t>(tfra::MixInt64(draw++ ^ 0xABCDEFu) % keys);
        } while (distinct && used[number]);
        if (distinct) used[number] = true;
        numbers[i] = number;
        ids[i] = KeyOf(number);
      }
      index.push_back(std::move(numbers));
      key.push_back(std::move(ids));
    }
  }

  std::vector<std::vector<uint32_t>> index;
  std::vector<std::vector<int64_t>> key;
};

constexpr int kPasses = 20;

// The rate of the best pass of each body over all rounds, in keys per second. The bodies take
// turns, so that other programs on the machine slow down all of them.
std::vector<double> BestRates(const Config& config,
                              const std::vector<std::function<void(size_t round)>>& bodies) {
  std::vector<double> best(bodies.size());
  for (int pass = 0; pass < kPasses; ++pass) {
    for (size_t b = 0; b < bodies.size(); ++b) {
      const double start = WallSeconds();
      for (size_t r = 0; r < config.rounds; ++r) bodies[b](r);
      const double keys = static_cast<double>(config.rounds * config.batch);
      best[b] = std::max(best[b], keys / (WallSeconds() - start));
    }
  }
  return best;
}

// Calls body(begin, end) for the parts of one batch, on the thread pool.
void Spread(const Config& config, const std::function<void(size_t, size_t)>& body) {
  const size_t parts = static_cast<size_t>(config.threads);
  ParallelFor(parts, parts,
              [&](size_t p) { body(config.batch * p / parts, config.batch * (p + 1) / parts); });
}

constexpr size_t kRawAhead = 24;

void PrefetchBytes(const float* row, size_t bytes) {
  for (size_t b = 0; b < bytes; b += 64) __builtin_prefetch(reinterpret_cast<const char*>(row) + b);
}

void RawGather(const float* rows, const uint32_t* index, size_t begin, size_t end, size_t dim,
               float* out) {
  for (size_t i = begin; i < end; ++i) {
    if (i + kRawAhead < end) PrefetchBytes(rows + index[i + kRawAhead] * dim, dim * 4);
    std::memcpy(out + i * dim, rows + index[i] * dim, dim * 4);
  }
}

// Reads and writes the same memory as Adam: three parts of a row, and a gradient.
void RawUpdate(float* rows, const uint32_t* index, size_t begin, size_t end, size_t dim,
               const float* gradients) {
  const size_t stride = 3 * dim;
  for (size_t i = begin; i < end; ++i) {
    if (i + kRawAhead < end) PrefetchBytes(rows + index[i + kRawAhead] * stride, stride * 4);
    float* value = rows + index[i] * stride;
    const float* gradient = gradients + i * dim;
    for (size_t j = 0; j < dim; ++j) {
      const float g = gradient[j];
      value[dim + j] += g;
      value[2 * dim + j] += g * g;
      value[j] -= g;
    }
  }
}

std::FILE* json = nullptr;  // The file of --json, or null.

void Record(const char* workload, size_t keys, size_t dim,
            std::initializer_list<std::pair<const char*, double>> figures) {
  if (json == nullptr) return;
  std::fprintf(json, "{\"workload\": \"%s\", \"keys\": %zu, \"dim\": %zu", workload, keys, dim);
  for (const auto& [name, figure] : figures) std::fprintf(json, ", \"%s\": %.4g", name, figure);
  std::fprintf(json, "}\n");
  std::fflush(json);
}

void Print(const char* name, size_t keys, size_t dim, double rate, double raw, double target) {
  Record(name, keys, dim, {{"rate", rate}, {"ratio", rate / raw}, {"goal", target}});
  std::printf("%-22s %10zu keys  dim %3zu  %8.1f M/s  raw %8.1f M/s  ratio %.2f  (target %.2f)\n",
              name, keys, dim, rate / 1e6, raw / 1e6, rate / raw, target);
  std::fflush(stdout);
}

tfra::TableSpec Spec(size_t dim, bool adam) {
  tfra::TableSpec spec;
  spec.dim = static_cast<int64_t>(dim);
  if (adam) spec.rule.kind = tfra::RuleKind::kAdam;
  return spec;
}

// Inserts keys 0 .. keys - 1 in batches and returns the seconds inside the table.
double Build(const Config& config, Table* table, size_t keys, size_t dim, bool report_memory) {
  std::vector<int64_t> ids(config.batch);
  // On huge pages, like the rows of all other workloads here, and like large arrays of NumPy.
  Pages pages(config.batch * dim * 4);
  float* const values = pages.floats();
  std::memset(values, 0, config.batch * dim * 4);
  double seconds = 0, worst = 0;
  const size_t before = ResidentBytes();
  for (size_t first = 0; first < keys; first += config.batch) {
    const size_t n = std::min(config.batch, keys - first);
    for (size_t i = 0; i < n; ++i) {
      ids[i] = KeyOf(first + i);
      for (size_t j = 0; j < dim; ++j) values[i * dim + j] = ValueOf(first + i, j);
    }
    // The memory that the keys of this call, and growing stripes, may need.
    ProvideMemory(3 * n * (dim * 4 + 24) + first * 4);
    const double start = WallSeconds();
    RequireOk(table->Assign(KeyBatch(ids.data(), n), values));
    seconds += WallSeconds() - start;
    const size_t inserted = first + n;
    if (inserted < 1'000'000) continue;
    const double needed = static_cast<double>(inserted) * (8 + 4.0 * static_cast<double>(dim));
    worst = std::max(worst, static_cast<double>(ResidentBytes() - before) / needed);
  }
  Require(table->size() == keys, "size after inserting");
  if (report_memory) {
    const double bytes = static_cast<double>(ResidentBytes() - before) / static_cast<double>(keys);
    const double ratio = bytes / (8 + 4.0 * static_cast<double>(dim));
    Record("memory", keys, dim, {{"bytes_per_key", bytes}, {"ratio", ratio}, {"goal", 1.2}});
    std::printf(
        "%-22s %10zu keys  dim %3zu  %8.1f bytes per key, %.2f of 8 + row (target 1.20), "
        "at most %.2f while growing (target 1.60)\n",
        "memory", keys, dim, bytes, ratio, worst);
  }
  return seconds;
}

// Seconds to write fresh memory once, in order, on the thread pool.
double FirstTouch(const Config& config, size_t bytes) {
  Pages pages(bytes);
  const double start = WallSeconds();
  const size_t parts = static_cast<size_t>(config.threads);
  ParallelFor(parts, parts, [&](size_t p) {
    std::memset(pages.floats() + bytes / 4 * p / parts, 1, bytes / parts);
  });
  return WallSeconds() - start;
}

void CheckLookup(const Queries& queries, size_t round, size_t dim, const float* out) {
  for (size_t i = 0; i < queries.index[round].size(); ++i) {
    for (size_t j = 0; j < dim; ++j) {
      Require(out[i * dim + j] == ValueOf(queries.index[round][i], j), "looked up values");
    }
  }
}

// Readers and a writer, each on one thread: first alone, then together.
void Mixed(const Config& config, Table* table, const Queries& queries, size_t keys, size_t dim) {
  tfra::SetNumThreads(1);
  // The keys per second of `readers` and `writers` threads that run together.
  const auto run = [&](int readers, int writers, double* read_rate, double* write_rate) {
    std::atomic<bool> stop{false};
    std::atomic<size_t> read{0}, written{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < readers + writers; ++t) {
      threads.emplace_back([&, t, reads = t < readers] {
        std::vector<float> rows(config.batch * dim);
        for (size_t r = static_cast<size_t>(t); !stop; ++r) {
          const size_t round = r % config.rounds;
          const KeyBatch batch(queries.key[round].data(), config.batch);
          if (reads) {
            RequireOk(table->Lookup(batch, {}, rows.data(), nullptr));
            read += config.batch;
          } else {
            for (size_t i = 0; i < config.batch; ++i) {
              for (size_t j = 0; j < dim; ++j) {
                rows[i * dim + j] = ValueOf(queries.index[round][i], j);
              }
            }
            RequireOk(table->Assign(batch, rows.data()));
            written += config.batch;
          }
        }
      });
    }
    const double start = WallSeconds();
    std::this_thread::sleep_for(std::chrono::seconds(2));
    stop = true;
    for (std::thread& thread : threads) thread.join();
    const double seconds = WallSeconds() - start;
    *read_rate = static_cast<double>(read) / seconds;
    *write_rate = static_cast<double>(written) / seconds;
  };
  double reads_alone, writes_alone, reads, writes, none;
  run(2, 0, &reads_alone, &none);
  run(0, 1, &none, &writes_alone);
  run(2, 1, &reads, &writes);
  tfra::SetNumThreads(config.threads);
  // Three threads cannot do more than their CPUs, which may be fewer.
  const double cpus = static_cast<double>(std::thread::hardware_concurrency());
  const double possible = std::min(1.0, cpus / 3);
  const double ratio = (reads + writes) / (reads_alone + writes_alone);
  Record("mixed", keys, dim, {{"ratio", ratio}, {"goal", 0.7}});
  std::printf(
      "%-22s %10zu keys  dim %3zu  2 readers %.1f -> %.1f M/s, 1 writer %.1f -> %.1f M/s: "
      "%.2f of the sum, %.2f of what %.0f CPUs can do for 3 threads (target 0.70)\n",
      "mixed", keys, dim, reads_alone / 1e6, reads / 1e6, writes_alone / 1e6, writes / 1e6, ratio,
      ratio / possible, cpus);
  std::vector<float> rows(config.batch * dim);
  RequireOk(table->Lookup(KeyBatch(queries.key[0].data(), config.batch), {}, rows.data(), nullptr));
  CheckLookup(queries, 0, dim, rows.data());
}

void RunPlain(const Config& config, size_t keys, size_t dim) {
  const Queries queries(config.rounds, config.batch, keys, false);
  Pages out(config.batch * dim * 4), values(config.batch * dim * 4), dense(keys * dim * 4);
  for (size_t i = 0; i < keys; ++i) {
    for (size_t j = 0; j < dim; ++j) dense.floats()[i * dim + j] = ValueOf(i, j);
  }
  for (size_t i = 0; i < config.batch * dim; ++i) values.floats()[i] = ValueOf(i, 3);
  const auto gather = [&](size_t r) {
    Spread(config, [&](size_t begin, size_t end) {
      RawGather(dense.floats(), queries.index[r].data(), begin, end, dim, out.floats());
    });
  };

  // Take the best of several builds.
  std::unique_ptr<Table> table;
  double seconds = 1e9, touch = 1e9;
  for (int build = 0; build < (keys > 10'000'000 ? 4 : 8); ++build) {
    table.reset();
    touch = std::min(touch, FirstTouch(config, keys * (dim * 4 + 24)));
    RequireOk(Table::Create(Spec(dim, false), &table));
    seconds = std::min(seconds, Build(config, table.get(), keys, dim, build == 0));
  }
  const auto batch = [&](size_t r) { return KeyBatch(queries.key[r].data(), config.batch); };

  const auto lookup = [&](size_t r) {
    RequireOk(table->Lookup(batch(r), {}, out.floats(), nullptr));
  };
  const std::vector<double> reads = BestRates(config, {gather, lookup});
  CheckLookup(queries, config.rounds - 1, dim, out.floats());
  if (config.Wants("insert")) {
    Print("insert new", keys, dim, static_cast<double>(keys) / seconds, reads[0], 0.2);
    std::printf("%-22s %10zu keys  dim %3zu  %8.1f M/s  (writing as much fresh memory, only)\n",
                "  first touch", keys, dim, static_cast<double>(keys) / touch / 1e6);
  }
  if (config.Wants("lookup")) {
    Print("lookup", keys, dim, reads[1], reads[0], keys > 2'000'000 ? 0.5 : 0.4);
  }
  if (config.Wants("assign")) {
    const auto assign = [&](size_t r) { RequireOk(table->Assign(batch(r), values.floats())); };
    const std::vector<double> writes = BestRates(config, {gather, assign});
    Print("assign existing", keys, dim, writes[1], writes[0], 0.45);
    const size_t last = config.rounds - 1, i = config.batch - 1;
    std::vector<float> row(dim);
    RequireOk(table->Lookup(KeyBatch(&queries.key[last][i], 1), {}, row.data(), nullptr));
    for (size_t j = 0; j < dim; ++j) {
      Require(row[j] == ValueOf(i * dim + j, 3), "assigned values");
    }
    Build(config, table.get(), keys, dim, false);
  }
  if (config.Wants("mixed")) Mixed(config, table.get(), queries, keys, dim);
}

void RunAdam(const Config& config, size_t keys, size_t dim) {
  const Queries queries(config.rounds, config.batch, keys, true);
  std::vector<float> gradients(config.batch * dim);
  for (size_t i = 0; i < gradients.size(); ++i) {
    gradients[i] = 0.01f * static_cast<float>(static_cast<int>(i % 17) - 8);
  }
  Pages rows(keys * dim * 4 * 3);
  std::memset(rows.floats(), 0, keys * dim * 4 * 3);
  std::unique_ptr<Table> table;
  RequireOk(Table::Create(Spec(dim, true), &table));
  Build(config, table.get(), keys, dim, false);
  tfra::UpdateParams params;
  const auto raw = [&](size_t r) {
    Spread(config, [&](size_t begin, size_t end) {
      RawUpdate(rows.floats(), queries.index[r].data(), begin, end, dim, gradients.data());
    });
  };
  const auto apply = [&](size_t r) {
    RequireOk(table->training().ApplyGradients(KeyBatch(queries.key[r].data(), config.batch),
                                               gradients.data(), tfra::ValueType::kFloat32,
                                               params));
    ++params.step;
  };
  const std::vector<double> rates = BestRates(config, {raw, apply});
  const tfra::TableStats stats = table->stats();
  Require(stats.size == keys, "size after updates");
  Require(stats.updates == kPasses * config.rounds * config.batch, "number of updates");
  Print("apply Adam", keys, dim, rates[1], rates[0], 0.4);
}

std::vector<size_t> Numbers(const char* text) {
  std::vector<size_t> numbers;
  for (const char* p = text; *p != '\0';) {
    char* end;
    numbers.push_back(std::strtoull(p, &end, 10));
    p = *end == ',' ? end + 1 : end;
    if (end == p && *end != '\0') break;
  }
  return numbers;
}

}  // namespace

int main(int argc, char** argv) {
  Config config;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool more = i + 1 < argc;
    if (argument == "--keys" && more) {
      config.keys = Numbers(argv[++i]);
    } else if (argument == "--dim" && more) {
      config.dims = Numbers(argv[++i]);
    } else if (argument == "--threads" && more) {
      config.threads = std::atoi(argv[++i]);
    } else if (argument == "--batch" && more) {
      config.batch = Numbers(argv[++i]).at(0);
    } else if (argument == "--rounds" && more) {
      config.rounds = Numbers(argv[++i]).at(0);
    } else if (argument == "--json" && more) {
      json = std::fopen(argv[++i], "w");
      Require(json != nullptr, "can't write the file of --json");
    } else {
      config.workloads.push_back(argument);
    }
  }
  tfra::SetNumThreads(config.threads);
  std::printf("threads %d, batch %zu, float32, uniform random keys\n", config.threads,
              config.batch);
  for (const size_t dim : config.dims) {
    for (const size_t keys : config.keys) {
      if (config.Wants("lookup") || config.Wants("assign") || config.Wants("insert") ||
          config.Wants("mixed")) {
        RunPlain(config, keys, dim);
      }
      // Above this limit, the raw rows and the table would not fit into 24 GiB together.
      if (config.Wants("adam") && keys * dim <= 400'000'000) RunAdam(config, keys, dim);
    }
  }
  return 0;
}
