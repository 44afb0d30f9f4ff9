// What every in-memory table consists of, whatever its keys: rows, index, counters.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "admission.h"
#include "epoch.h"
#include "initializer.h"
#include "row_arena.h"
#include "row_layout.h"
#include "row_tiers.h"
#include "scores.h"
#include "shard.h"
#include "tfra/table.h"

namespace tfra {

// Around the body of every call of the contract: running out of memory is a Status.
#define TFRA_CATCH_BAD_ALLOC                                               \
  catch (const std::bad_alloc&) {                                          \
    return Status::OutOfMemory("out of memory for the needs of one call"); \
  }

// Returns what body() does, or that there is no memory for it.
template <typename Body>
Status CatchBadAlloc(Body&& body) try {
  return body();
}
TFRA_CATCH_BAD_ALLOC

// Counting is always on. Only bench/counters.py, which measures what it costs, builds without.
#ifdef TFRA_NO_COUNTERS
inline constexpr bool kCounters = false;
#else
inline constexpr bool kCounters = true;
#endif

Status CheckCapacity(int64_t keys);

// What a shard is likely to get of `keys` keys, with some room for chance.
uint64_t KeysPerShard(uint64_t keys);

// The first failure of several threads.
class SharedStatus {
 public:
  void Set(Status status) {
    std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }
  Status Get() {
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  std::mutex mutex_;
  Status status_;
};

class Words;

class TableBase : public Table {
 public:
  TableBase(const TableOptions& options, Initializer initializer);
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

  // Around fork(), called by fork.cc only: the locks of the table, in this order.
  enum class ForkLevel { kDemoting, kShards, kArena };
  void LockForFork(ForkLevel level);
  void UnlockForFork(ForkLevel level);

  // Takes over what another table has counted and knows of keys that wait, and its clock. REQUIRES:
  // nobody else uses this one yet.
  void CopyHistory(TableBase* other);

 protected:
  // Events of one thread in one call, added up once at its end.
  struct Tally : TableCounters {
    int64_t string_bytes = 0;
    std::vector<Retired> garbage;  // Strings that left the table.
    std::vector<uint32_t> slots;   // Of the file, that rows have left.
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

  bool has_string_values() const { return options_.value_type == ValueType::kString; }
  bool has_string_keys() const { return options_.key_type == KeyType::kString; }

  // Strings outside the row that a row owns.
  size_t StringsPerRow() const {
    return has_string_keys() + (has_string_values() ? static_cast<size_t>(options_.dim) : 0);
  }

  Shard& ShardFor(uint64_t hash) const { return shards_[ShardOf(hash)]; }
  // REQUIRES: not a slow one.
  std::byte* RowAt(uint32_t row) const { return arena_.At(row); }
  // Whether a row number is a slot of the file, and which one.
  bool IsSlow(uint32_t number) const { return tiers_ != nullptr && (number & kSlowRow); }
  static uint32_t SlotOf(uint32_t number) { return number & ~kSlowRow; }
  // The key of a row. REQUIRES: string keys.
  Blob* KeyOf(uint32_t number) const {
    return IsSlow(number) ? tiers_->Key(SlotOf(number))
                          : LoadBlob(RowAt(number) + layout_.key_offset);
  }
  uint64_t HashOf(uint64_t word) const { return has_string_keys() ? word : MixInt64(word); }

  // Adds the strings that a row owns, after it left the index, to the tally's garbage.
  void DropStrings(uint32_t number, Tally* tally) const;

  // Takes a row in memory, for a key of the shard. REQUIRES, for these: the shard's mutex.
  Status TakeRow(Shard* shard, uint32_t* row) const {
    TFRA_RETURN_IF_ERROR(shard->TakeRow(row));
    return tiers_ == nullptr ? Status::Ok() : StartRow(shard, *row);
  }
  // Makes sure that removing so many rows needs no memory.
  void PrepareDrop(Shard* shard, size_t rows, Tally* tally) const {
    GrowBy(&shard->free_rows(), rows);
    if (StringsPerRow() > 0) GrowBy(&tally->garbage, rows * StringsPerRow());
    if (tiers_ != nullptr) GrowBy(&tally->slots, rows);
  }
  // Frees the row of a key that left the index.
  void DropRow(Shard* shard, uint32_t number, Tally* tally) const;

  // How large the index of a shard has to be for so many more keys.
  uint64_t IndexedKeys(uint32_t shard, uint64_t more) const {
    const uint64_t size = shards_[shard].size();
    return bounds_ == nullptr ? size + more
                              : std::min(size + more, std::max(size, bounds_->shard_keys()));
  }

  // Takes entries out, with their rows and strings; counting them is the caller's. REQUIRES: the
  // shard's mutex.
  void RemoveEntries(Shard* shard, const Shard::Entry* entries, size_t count, Tally* tally) const;
  void RemoveEntry(Shard* shard, Shard::Entry entry, Tally* tally) const {
    RemoveEntries(shard, &entry, 1, tally);
  }

  // --- table_tiers.cc: tiered tables.

  using UseRow = std::function<void(const SlowRow&)>;
  // Reads the first `bytes` of rows in the file and calls use(row) for each. Those that are needed
  // often move to memory. REQUIRES: since the slots were found the thread was inside an EpochGuard.
  Status UseSlow(const Words& words, std::vector<SlowRow>* rows, size_t bytes,
                 const UseRow& use) const;
  // Moves rows to memory, for a call that writes. REQUIRES as for UseSlow.
  Status FetchSlow(const Words& words, std::vector<SlowRow>* rows) const;
  // Rows of a shard in memory. Exact with its mutex.
  uint64_t FastRows(uint32_t shard) const {
    const uint64_t slow = tiers_->shard(shard).slow.load(std::memory_order_relaxed);
    const uint64_t size = shards_[shard].size();
    return size > slow ? size - slow : 0;
  }
  // Makes room for so many more rows of a shard in memory, or for its share if that is less.
  // Returns at once if another thread does so already and `wait` is false.
  // demoted: set if rows have left memory for that.
  Status MakeFastRoom(uint32_t shard, uint64_t rows, bool wait, bool* demoted = nullptr) const;
  // The row of an entry, in memory, for a call that writes; changes: to the row itself, and not
  // only to what the index has of it. Reads the file if it must, which is rare: such calls have
  // fetched their rows before. REQUIRES: the shard's mutex.
  Status RowToWrite(Shard* shard, Shard::Entry entry, bool changes, std::byte** row) const;
  // Copies rows into a batch, in the places that their numbers say. REQUIRES as for UseSlow.
  Status FillRows(std::vector<SlowRow>* rows, ExportBatch* batch) const;

  // Constant after Initialize.
  const Initializer initializer_;
  const RowLayout layout_;

  // Mutable, because reading moves rows between tiers.
  mutable RowArena arena_;
  const std::unique_ptr<RowTiers> tiers_;  // Or null: all rows are in memory.
  std::unique_ptr<Shard[]> shards_;
  const std::unique_ptr<Bounds> bounds_;  // Or null: any number of keys.
  std::unique_ptr<Admission> admission_;  // Null: every key may enter.

 private:
  template <typename Do>
  void ForEachLock(ForkLevel level, Do&& act);
  // Prepares a row of a tiered table that was taken, or gives it back.
  Status StartRow(Shard* shard, uint32_t row) const;
  // Moves rows from the end of the arena into the gaps before. REQUIRES: all shard mutexes, and
  // that no row is on the way to the file.
  void CompactRows();

  // A row in memory that may leave it. REQUIRES, to use it: the shard's mutex.
  struct Victim {
    Shard::Entry entry;
    uint32_t row;
    uint64_t score;
    uint64_t word;
  };
  // Moves about `count` rows of a shard to the file. REQUIRES: its `demoting`.
  Status Demote(uint32_t shard, uint64_t count) const;
  // Finds up to `count` rows that were not used lately. Looks at some buckets, and returns how
  // many. REQUIRES, for these: the shard's mutex.
  uint64_t FindVictims(uint32_t shard, size_t count, std::vector<Victim>* victims) const;
  // Names another place of an entry's row.
  void MoveEntry(Shard::Entry entry, uint32_t number) const;
  // Writes rows that were copied, and lets their entries name the file, if they have not changed.
  Status WriteVictims(uint32_t shard, const std::vector<Victim>& victims,
                      const std::byte* rows) const;
  // Reads the first `bytes` of rows in the file, many at a time. REQUIRES: rows in the order of
  // their slots, and as for UseSlow.
  Status ReadSlow(std::vector<SlowRow>* rows, size_t bytes,
                  const std::function<void(const std::vector<SlowRow>&)>& use) const;
  enum class Promotion { kIfRoom, kAlways };
  // Moves rows that were read to memory.
  void Promote(const Words& words, const std::vector<SlowRow>& rows, Promotion promotion) const;

  std::atomic<int64_t> clock_{-1};  // Negative: the time of day.
  // One for each member of TableCounters.
  static constexpr size_t kCounterCount = sizeof(TableCounters) / sizeof(uint64_t);
  mutable std::array<std::atomic<uint64_t>, kCounterCount> counters_{};
  mutable std::atomic<int64_t> string_bytes_{0};
};

}  // namespace tfra
