// The state of one table: its rows, its index, its limits and its counters.
//
// TableState does not know the calls of a table. Each call is a small class (Reader, Writer,
// Exporter, ...) that works on a const TableState&. It is const because its members stay the same
// objects; the rows, index and counters that they own may change. The mutexes of the stripes guard
// these: see REQUIRES.
#pragma once

#include <array>
#include <atomic>
#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

#include "admission/admission.h"
#include "base/errors.h"
#include "index/stripe.h"
#include "kernels/initializer.h"
#include "memory/read_guard.h"
#include "rows/row_arena.h"
#include "rows/row_layout.h"
#include "scores/scores.h"
#include "storage/row_tiers.h"
#include "tfra/table.h"

namespace tfra {

// Counters are always on. Only bench/counters.py, which measures their cost, builds without them.
#ifdef TFRA_NO_COUNTERS
inline constexpr bool kCounters = false;
#else
inline constexpr bool kCounters = true;
#endif

// Events of one thread in one call. The thread adds them to the table's counters when it is done.
struct Tally : TableCounters {
  int64_t string_bytes = 0;
  std::vector<Retired> garbage;   // Strings that left the table.
  std::vector<uint32_t> records;  // Records of the file that no row uses any more.
};

class TableState {
 public:
  TableState(const TableSpec& spec_of_table, Initializer initializer_of_table);
  ~TableState();
  TableState(const TableState&) = delete;
  TableState& operator=(const TableState&) = delete;

  // Call this once, before anything else.
  Status Initialize();

  // Called around fork() by process/fork.cc, for all tables of the process. REQUIRES: the thread
  // holds no lock of the engine.
  static void LockAllForFork();
  static void UnlockAllAfterFork();

  // Constant after Initialize.
  const TableSpec spec;
  const Initializer initializer;
  const RowLayout layout;

  mutable RowArena arena;
  const std::unique_ptr<RowTiers> tiers;    // Null: all rows are in memory.
  const std::unique_ptr<Stripe[]> stripes;  // kStripes of them.
  const std::unique_ptr<Bounds> bounds;     // Null: any number of keys.
  std::unique_ptr<Admission> admission;     // Null: every key may enter.

  bool has_string_values() const { return spec.value_type == ValueType::kString; }
  bool has_string_keys() const { return spec.key_type == KeyType::kString; }
  // The number of strings that a row owns.
  size_t StringsPerRow() const {
    return has_string_keys() + (has_string_values() ? static_cast<size_t>(spec.dim) : 0);
  }

  // Checks of arguments. `what` names the call, or the thing, in the message.
  Status CheckKeys(const KeyBatch& keys) const;
  Status CheckMetadata(const char* what) const;
  // Fails for strings that are longer than a Blob holds.
  Status CheckStrings(const std::string_view* strings, size_t n, const char* what) const;
  Status CheckBounded(const char* what) const;
  Status CheckScores(const Scores& scores) const;

  uint64_t size() const;
  // The time that writes store in the metadata of rows.
  uint32_t clock() const;
  void SetClock(uint32_t now) { clock_.store(now); }

  // Adds the events of a thread to the counters, and frees what it collected.
  void Count(Tally tally) const;
  // Calls body(&tally) and adds the tally to the counters, also if body throws. finish(&tally),
  // which must not fail, adds events that are known only at the end.
  template <typename Body, typename Finish>
  void Counting(Body&& body, Finish&& finish) const {
    Tally tally;
    const auto count = [&] {
      finish(&tally);
      Count(std::move(tally));
    };
    try {
      body(&tally);
    } catch (...) {
      count();
      throw;
    }
    count();
  }
  template <typename Body>
  void Counting(Body&& body) const {
    Counting(body, [](Tally*) {});
  }
  TableStats stats() const;
  // How many full buckets insertions and growth have passed so far: the cost of collisions. For
  // tests.
  uint64_t index_steps() const;

  Stripe& StripeFor(uint64_t hash) const { return stripes[StripeOf(hash)]; }
  uint64_t HashOf(uint64_t key_bits) const {
    return has_string_keys() ? key_bits : MixInt64(key_bits);
  }
  // REQUIRES: the row is in memory.
  std::byte* RowAt(uint32_t row) const { return arena.At(row); }
  // Whether a row id names a record of the file. See RecordOf.
  bool IsSlow(uint32_t row_id) const { return tiers != nullptr && (row_id & kSlowRow); }
  // The key of a row. REQUIRES: string keys.
  Blob* KeyOf(uint32_t row_id) const {
    return IsSlow(row_id) ? tiers->Key(RecordOf(row_id))
                          : LoadBlob(RowAt(row_id) + layout.key_offset);
  }

  // REQUIRES, for the rest of the const functions: the stripe's mutex.

  // Takes a row in memory, for a key of the stripe.
  Status TakeRow(Stripe* stripe, uint32_t* row) const {
    TFRA_RETURN_IF_ERROR(stripe->TakeRow(row));
    return tiers == nullptr ? Status::Ok() : StartRow(stripe, *row);
  }
  // Allocates all memory that removing `rows` rows needs, so that removing them cannot fail.
  void PrepareDrop(Stripe* stripe, size_t rows, Tally* tally) const {
    GrowBy(&stripe->free_rows(), rows);
    if (StringsPerRow() > 0) GrowBy(&tally->garbage, rows * StringsPerRow());
    if (tiers != nullptr) GrowBy(&tally->records, rows);
  }
  // Frees the row of a key that left the index.
  void DropRow(Stripe* stripe, uint32_t row_id, Tally* tally) const;
  // Adds the strings of a row that left the index to the tally's garbage.
  void DropStrings(uint32_t row_id, Tally* tally) const;
  // Removes entries from the index and frees their rows and strings. The caller counts them.
  void RemoveEntries(Stripe* stripe, const Stripe::Entry* entries, size_t count,
                     Tally* tally) const;
  void RemoveEntry(Stripe* stripe, Stripe::Entry entry, Tally* tally) const {
    RemoveEntries(stripe, &entry, 1, tally);
  }
  // How many keys the index of a stripe must have room for, if `more` keys are added.
  uint64_t IndexedKeys(uint32_t stripe, uint64_t more) const {
    const uint64_t present = stripes[stripe].size();
    return bounds == nullptr ? present + more
                             : std::min(present + more, std::max(present, bounds->stripe_keys()));
  }

  // Calls on the whole table: see Store and Table.
  Status Clear();
  Status Reserve(int64_t keys);
  Status Shrink();
  Status ExportAdmission(AdmissionState* to) const;
  Status CheckAdmission(const AdmissionState& from) const;
  Status RestoreAdmission(const AdmissionState& from, uint32_t partition, uint32_t partitions);
  // The next three REQUIRE: no other thread uses this table yet.

  // Copies the clock of another table, which new metadata has.
  void CopyClock(const TableState& other) { clock_.store(other.clock_.load()); }
  // Copies the counters and the waiting keys of another table.
  void CopyHistory(const TableState& other);
  // Adds the counters of the table whose place this one takes, and counts its rows as removed.
  void AddHistory(const TableState& former);

 private:
  // The locks of a table, in the order in which fork takes them.
  enum class ForkLevel { kDemoting, kIndex, kArena };
  template <typename Do>
  void ForEachLock(ForkLevel level, Do&& act);
  // Prepares a row of a tiered table that was taken. Gives the row back if that fails.
  Status StartRow(Stripe* stripe, uint32_t row) const;
  // Moves rows from the end of the arena to free rows before them, then frees the end. REQUIRES:
  // the mutexes of all stripes, and no row is being written to the file.
  void CompactRows();

  std::atomic<int64_t> clock_{-1};  // Negative: use the system clock.
  static constexpr size_t kCounterCount = std::size(kCounterFields);
  mutable std::array<std::atomic<uint64_t>, kCounterCount> counters_{};
  mutable std::atomic<int64_t> string_bytes_{0};
};

// Fails if no table can have room for `keys` keys.
Status CheckCapacity(int64_t keys);

}  // namespace tfra
