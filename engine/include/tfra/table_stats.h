// What a table tells of itself: what happened to it, what it takes, what its rows are like.
#pragma once

#include <array>
#include <cstdint>

namespace tfra {

// Events since the table was made.
struct TableCounters {
  // Lookups count keys: each is a hit or a miss.
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t inserts = 0;
  uint64_t updates = 0;  // Writes to rows that were there.
  uint64_t removals = 0;
  uint64_t ignored = 0;  // Keys that Accumulate or AssignExisting were told to leave alone.
  uint64_t refused = 0;  // Writes to keys that were not let in, but for Accumulate's.
  // Keys that had to leave to make room: others' in a full table, or for Restrict.
  uint64_t evictions = 0;
  uint64_t rejections = 0;   // Writes that a full table dropped, with keys of too low a score.
  uint64_t expirations = 0;  // Keys that left because of Expire.
  uint64_t restrict_runs = 0;
  // Of tiered tables, 0 for others: keys of all calls whose rows were found in memory, or in the
  // file.
  uint64_t fast_hits = 0;
  uint64_t slow_hits = 0;
};

struct TableStats : TableCounters {
  uint64_t size = 0;
  // Keys it holds before the index grows. Of a bounded table never more than max_capacity; once it
  // is that, the table has grown as large as it gets.
  uint64_t capacity = 0;
  uint64_t index_bytes = 0;  // With scores and remembered counts.
  uint64_t row_bytes = 0;
  uint64_t string_bytes = 0;
  // How often a stripe of the index was rebuilt with a random seed, because searches were too long:
  // keys chosen to collide, or keys inserted in the order in which an export returns them.
  uint64_t reseeds = 0;
  uint64_t waiting = 0;          // Keys that were seen and may enter later, where these are known.
  uint64_t admission_bytes = 0;  // Memory of what is known of keys that have not entered.
  // Of tiered tables, 0 for others.
  uint64_t io_reads = 0;  // Calls of the operating system, and the bytes that they moved.
  uint64_t io_writes = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t fast_bytes = 0;  // Memory that rows take,
  uint64_t slow_bytes = 0;  // and what the file takes.
};

// How many rows there are of each age in seconds, number of writes, and L2 norm of the value. Bins
// double: [i] counts numbers whose binary form has i digits (0; 1; 2 and 3; 4 to 7; ...).
struct RowHistograms {
  std::array<uint64_t, 33> age{};     // With metadata only,
  std::array<uint64_t, 33> writes{};  // both.
  // [i] counts norms from 2^(i - 32) to 2^(i - 31); the first also smaller, the last also larger
  // ones and those that are not numbers. With floating values only.
  std::array<uint64_t, 64> norm{};
};

}  // namespace tfra
