// What every in-memory table consists of, whatever its keys: rows, index, counters.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "admission/admission.h"
#include "base/errors.h"
#include "bounded/scores.h"
#include "index/stripe.h"
#include "kernels/initializer.h"
#include "memory/read_guard.h"
#include "rows/row_arena.h"
#include "rows/row_layout.h"
#include "tfra/table.h"
#include "tiers/row_tiers.h"

namespace tfra {

// Counting is always on. Only bench/counters.py, which measures what it costs, builds without.
#ifdef TFRA_NO_COUNTERS
inline constexpr bool kCounters = false;
#else
inline constexpr bool kCounters = true;
#endif

Status CheckCapacity(int64_t keys);

class KeyBits;

class TableBase : public Table {
 public:
  TableBase(const TableSpec& spec, Initializer initializer);
  ~TableBase() override;

  // Once, before anything else.
  Status Initialize();

  std::vector<SlotInfo> slots() const override;
  size_t slot_elements() const override;
  uint64_t size() const override;
  Status Clear() override;
  Status Reserve(int64_t keys) override;
  Status Shrink() override;
  Status ExportAdmission(AdmissionState* state) override;
  Status RestoreAdmission(const AdmissionState& state, uint32_t part, uint32_t parts) override;
  uint32_t clock() const override;
  void SetClock(uint32_t now) override { clock_.store(now); }
  void SetEpoch(uint32_t epoch) override {
    if (bounds_ != nullptr) bounds_->SetEpoch(epoch);
  }
  uint32_t epoch() const override { return bounds_ == nullptr ? 0 : bounds_->epoch(); }
  TableStats stats() const override;

  // Buckets that inserts and growth have passed so far, because they were full: what collisions
  // have cost. For tests.
  uint64_t index_steps() const;

  // Around fork(), for all tables of the process: see process/fork.cc, the only caller. REQUIRES:
  // the thread holds no lock of the engine.
  static void LockAllForFork();
  static void UnlockAllAfterFork();

  // Takes over what another table has counted and knows of keys that wait, and its clock. REQUIRES:
  // nobody else uses this one yet.
  void CopyHistory(TableBase* other);

 protected:
  // Events of one thread in one call, added up once at its end.
  struct Tally : TableCounters {
    int64_t string_bytes = 0;
    std::vector<Retired> garbage;   // Strings that left the table.
    std::vector<uint32_t> records;  // Of the file, that rows have left.
  };
  void Count(Tally tally) const;
  // Calls body(&tally) and counts what it did, also if memory runs out on the way. finish(&tally),
  // which must not fail, adds what only the end tells.
  template <typename Body, typename Finish>
  void Counting(Body&& body, Finish&& finish) {
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
  void Counting(Body&& body) {
    Counting(body, [](Tally*) {});
  }

  Status CheckKeys(const KeyBatch& keys) const;
  // `what` needs metadata.
  Status CheckMetadata(const char* what) const;
  // Strings longer than a Blob holds.
  Status CheckStrings(const std::string_view* strings, size_t n, const char* what) const;

  Status CheckBounded(const char* what) const;
  Status CheckScores(const Scores& scores) const;

  bool has_string_values() const { return spec_.value_type == ValueType::kString; }
  bool has_string_keys() const { return spec_.key_type == KeyType::kString; }

  // Strings outside the row that a row owns.
  size_t StringsPerRow() const {
    return has_string_keys() + (has_string_values() ? static_cast<size_t>(spec_.dim) : 0);
  }

  Stripe& StripeFor(uint64_t hash) const { return stripes_[StripeOf(hash)]; }
  // REQUIRES: not a slow one.
  std::byte* RowAt(uint32_t row) const { return arena_.At(row); }
  // Whether a row number is a record of the file, and which one.
  bool IsSlow(uint32_t row_id) const { return tiers_ != nullptr && (row_id & kSlowRow); }
  static uint32_t RecordOf(uint32_t row_id) { return row_id & ~kSlowRow; }
  // The key of a row. REQUIRES: string keys.
  Blob* KeyOf(uint32_t row_id) const {
    return IsSlow(row_id) ? tiers_->Key(RecordOf(row_id))
                          : LoadBlob(RowAt(row_id) + layout_.key_offset);
  }
  uint64_t HashOf(uint64_t key_bits) const {
    return has_string_keys() ? key_bits : MixInt64(key_bits);
  }

  // Adds the strings that a row owns, after it left the index, to the tally's garbage.
  void DropStrings(uint32_t row_id, Tally* tally) const;

  // Takes a row in memory, for a key of the stripe. REQUIRES, for these: the stripe's mutex.
  Status TakeRow(Stripe* stripe, uint32_t* row) const {
    TFRA_RETURN_IF_ERROR(stripe->TakeRow(row));
    return tiers_ == nullptr ? Status::Ok() : StartRow(stripe, *row);
  }
  // Makes sure that removing so many rows needs no memory.
  void PrepareDrop(Stripe* stripe, size_t rows, Tally* tally) const {
    GrowBy(&stripe->free_rows(), rows);
    if (StringsPerRow() > 0) GrowBy(&tally->garbage, rows * StringsPerRow());
    if (tiers_ != nullptr) GrowBy(&tally->records, rows);
  }
  // Frees the row of a key that left the index.
  void DropRow(Stripe* stripe, uint32_t row_id, Tally* tally) const;

  // How large the index of a stripe has to be for so many more keys.
  uint64_t IndexedKeys(uint32_t stripe, uint64_t more) const {
    const uint64_t size = stripes_[stripe].size();
    return bounds_ == nullptr ? size + more
                              : std::min(size + more, std::max(size, bounds_->stripe_keys()));
  }

  // Takes entries out, with their rows and strings; counting them is the caller's. REQUIRES: the
  // stripe's mutex.
  void RemoveEntries(Stripe* stripe, const Stripe::Entry* entries, size_t count,
                     Tally* tally) const;
  void RemoveEntry(Stripe* stripe, Stripe::Entry entry, Tally* tally) const {
    RemoveEntries(stripe, &entry, 1, tally);
  }

  // --- table_tiers.cc: tiered tables.

  using UseRow = std::function<void(const SlowRow&)>;
  // Reads the first `bytes` of rows in the file and calls use(row) for each. Those that are needed
  // often move to memory. REQUIRES: since the records were found, the thread was inside a
  // ReadGuard.
  Status UseSlow(const KeyBits& bits, std::vector<SlowRow>* rows, size_t bytes,
                 const UseRow& use) const;
  // Moves rows to memory, for a call that writes. REQUIRES as for UseSlow.
  Status FetchSlow(const KeyBits& bits, std::vector<SlowRow>* rows) const;
  // Rows of a stripe in memory. Exact with its mutex.
  uint64_t FastRows(uint32_t stripe) const {
    const uint64_t slow = tiers_->stripe(stripe).slow.load(std::memory_order_relaxed);
    const uint64_t size = stripes_[stripe].size();
    return size > slow ? size - slow : 0;
  }
  // Makes room for so many more rows of a stripe in memory, or for its share if that is less.
  // Returns at once if another thread does so already and `wait` is false.
  // demoted: set if rows have left memory for that.
  Status MakeFastRoom(uint32_t stripe, uint64_t rows, bool wait, bool* demoted = nullptr) const;
  // The row of an entry, in memory, for a call that writes; changes: to the row itself, and not
  // only to what the index has of it. Reads the file if it must, which is rare: such calls have
  // fetched their rows before. REQUIRES: the stripe's mutex.
  Status RowToWrite(Stripe* stripe, Stripe::Entry entry, bool changes, std::byte** row) const;
  // Copies rows into a batch, in the places that their numbers say. REQUIRES as for UseSlow.
  Status FillRows(std::vector<SlowRow>* rows, ExportBatch* batch) const;

  // Constant after Initialize.
  const Initializer initializer_;
  const RowLayout layout_;

  // Mutable, because reading moves rows between tiers.
  mutable RowArena arena_;
  const std::unique_ptr<RowTiers> tiers_;  // Or null: all rows are in memory.
  std::unique_ptr<Stripe[]> stripes_;
  const std::unique_ptr<Bounds> bounds_;  // Or null: any number of keys.
  std::unique_ptr<Admission> admission_;  // Null: every key may enter.

 private:
  // The locks of a table, in the order in which fork takes them.
  enum class ForkLevel { kDemoting, kIndex, kArena };
  template <typename Do>
  void ForEachLock(ForkLevel level, Do&& act);
  // Prepares a row of a tiered table that was taken, or gives it back.
  Status StartRow(Stripe* stripe, uint32_t row) const;
  // Moves rows from the end of the arena into the gaps before. REQUIRES: all stripe mutexes, and
  // that no row is on the way to the file.
  void CompactRows();

  // A row in memory that may leave it. REQUIRES, to use it: the stripe's mutex.
  struct Victim {
    Stripe::Entry entry;
    uint32_t row;
    uint64_t score;
    uint64_t key_bits;
  };
  // Moves about `count` rows of a stripe to the file. REQUIRES: its `demoting`.
  Status Demote(uint32_t stripe, uint64_t count) const;
  // Finds up to `count` rows that were not used lately. Looks at some buckets, and returns how
  // many. REQUIRES, for these: the stripe's mutex.
  uint64_t FindVictims(uint32_t stripe, size_t count, std::vector<Victim>* victims) const;
  // Names another place of an entry's row.
  void MoveEntry(Stripe::Entry entry, uint32_t row_id) const;
  // Writes rows that were copied, and lets their entries name the file, if they have not changed.
  Status WriteVictims(uint32_t stripe, const std::vector<Victim>& victims,
                      const std::byte* rows) const;
  // Reads the first `bytes` of rows in the file, many at a time. REQUIRES: rows in the order of
  // their records, and as for UseSlow.
  Status ReadSlow(std::vector<SlowRow>* rows, size_t bytes,
                  const std::function<void(const std::vector<SlowRow>&)>& use) const;
  enum class Promotion { kIfRoom, kAlways };
  // Moves rows that were read to memory.
  void Promote(const KeyBits& bits, const std::vector<SlowRow>& rows, Promotion promotion) const;

  std::atomic<int64_t> clock_{-1};  // Negative: the time of day.
  // One for each member of TableCounters.
  static constexpr size_t kCounterCount = sizeof(TableCounters) / sizeof(uint64_t);
  mutable std::array<std::atomic<uint64_t>, kCounterCount> counters_{};
  mutable std::atomic<int64_t> string_bytes_{0};
};

}  // namespace tfra
