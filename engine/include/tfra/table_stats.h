// What a table reports about itself: events, memory, and histograms of its rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>

namespace tfra {

// Events since the table was made.
struct TableCounters {
  // Lookups count keys: each is a hit or a miss.
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t inserts = 0;
  uint64_t updates = 0;  // Writes to rows that were there.
  uint64_t removals = 0;
  // Keys that a call left alone because they were in the table or were not, against what the call
  // expected: of Accumulate, AssignExisting and TableScores::Assign.
  uint64_t exists_mismatch = 0;
  uint64_t not_admitted = 0;  // Writes to keys that admission kept out, except those of Accumulate.
  // Keys that left to make room for others in a full table, or because of Restrict.
  uint64_t evictions = 0;
  uint64_t score_too_low = 0;  // Writes to keys that a full table rejected.
  uint64_t expirations = 0;    // Keys that left because of Expire.
  uint64_t restrict_runs = 0;
  // Tiered tables only: keys whose rows were in memory, or in the file.
  uint64_t fast_hits = 0;
  uint64_t slow_hits = 0;
};

struct TableStats : TableCounters {
  uint64_t size = 0;
  // Keys that the index has room for before it grows. In a bounded table at most max_capacity.
  uint64_t capacity = 0;
  uint64_t index_bytes = 0;  // With scores and remembered counts.
  uint64_t row_bytes = 0;
  uint64_t string_bytes = 0;
  // How often a stripe of the index was rebuilt with a random seed, because searches were too long:
  // keys chosen to collide, or keys inserted in the order in which an export returns them.
  uint64_t reseeds = 0;
  uint64_t waiting = 0;          // Keys that were seen and may enter later, if the rule keeps them.
  uint64_t admission_bytes = 0;  // Memory for keys that have not entered.
  // Tiered tables only.
  uint64_t io_reads = 0;  // Calls of the operating system, and the bytes that they moved.
  uint64_t io_writes = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t fast_bytes = 0;  // Of rows in memory,
  uint64_t slow_bytes = 0;  // and of the file.
};

// The public names of all figures: the one list from which adapters and Python take theirs, in this
// order.
struct CounterField {
  const char* name;
  uint64_t TableCounters::* field;
};
struct StatsField {
  const char* name;
  uint64_t TableStats::* field;
};

inline constexpr CounterField kCounterFields[] = {
    {"hits", &TableCounters::hits},
    {"misses", &TableCounters::misses},
    {"inserts", &TableCounters::inserts},
    {"updates", &TableCounters::updates},
    {"removals", &TableCounters::removals},
    {"ignored", &TableCounters::exists_mismatch},
    {"refused", &TableCounters::not_admitted},
    {"evictions", &TableCounters::evictions},
    {"rejections", &TableCounters::score_too_low},
    {"expirations", &TableCounters::expirations},
    {"restrict_runs", &TableCounters::restrict_runs},
    {"fast_hits", &TableCounters::fast_hits},
    {"slow_hits", &TableCounters::slow_hits},
};
static_assert(sizeof(TableCounters) == std::size(kCounterFields) * sizeof(uint64_t),
              "a counter is not listed");

// The counters, then what else TableStats has.
inline constexpr auto kStatsFields = [] {
  std::array<StatsField, sizeof(TableStats) / sizeof(uint64_t)> fields = {};
  size_t next = 0;
  for (const CounterField& counter : kCounterFields) {
    fields[next++] = {counter.name, counter.field};
  }
  for (const StatsField& figure : {
           StatsField{"size", &TableStats::size},
           StatsField{"capacity", &TableStats::capacity},
           StatsField{"index_bytes", &TableStats::index_bytes},
           StatsField{"row_bytes", &TableStats::row_bytes},
           StatsField{"string_bytes", &TableStats::string_bytes},
           StatsField{"reseeds", &TableStats::reseeds},
           StatsField{"waiting", &TableStats::waiting},
           StatsField{"admission_bytes", &TableStats::admission_bytes},
           StatsField{"io_reads", &TableStats::io_reads},
           StatsField{"io_writes", &TableStats::io_writes},
           StatsField{"bytes_read", &TableStats::bytes_read},
           StatsField{"bytes_written", &TableStats::bytes_written},
           StatsField{"fast_bytes", &TableStats::fast_bytes},
           StatsField{"slow_bytes", &TableStats::slow_bytes},
       }) {
    fields[next++] = figure;
  }
  return fields;
}();
static_assert(kStatsFields.back().name != nullptr, "a figure is not listed");

// How many rows there are of each age in seconds, number of writes, and L2 norm of the value. Bins
// double: [i] counts numbers whose binary form has i digits (0; 1; 2 and 3; 4 to 7; ...).
struct RowHistograms {
  // Only of tables with metadata.
  std::array<uint64_t, 33> age{};
  std::array<uint64_t, 33> writes{};
  // [i] counts norms from 2^(i - 32) to 2^(i - 31); the first also smaller, the last also larger
  // ones and those that are not numbers. With floating values only.
  std::array<uint64_t, 64> norm{};
};

}  // namespace tfra
