// Moves the rows of a tiered table between memory and the file.
//
// No thread waits for the file while it holds a stripe's mutex, except in the rare case of
// RowToWrite. A row moves to memory in three steps: the row is read; the stripe is locked; if the
// index still contains the record, the row is copied to memory and the index gets the new row id. A
// row moves to the file in the same way: it is copied while the stripe is locked; the copy is
// written while the stripe is not locked; if the row has not changed since, the index gets the
// record.
#pragma once

#include <functional>
#include <vector>

#include "keys/keys.h"
#include "state/table_state.h"

namespace tfra {

class RowMover {
 public:
  explicit RowMover(const TableState& state) : state_(state) {}

  using UseRow = std::function<void(const SlowRow&)>;
  // For a call that reads: reads the first `bytes` of rows in the file and calls use(row) for each,
  // on this thread. Rows that were needed before move to memory; while at least half of the memory
  // is free, others do too. If there is no room for them, they stay in the file. rows: their
  // `number` is the position of the key in `bits`; the vector is changed. REQUIRES: since the
  // records were found, the thread was inside a ReadGuard.
  Status UseSlow(const KeyBits& bits, std::vector<SlowRow>* rows, size_t bytes,
                 const UseRow& use) const;
  // Moves rows to memory, for a call that writes. REQUIRES: as for UseSlow.
  Status FetchSlow(const KeyBits& bits, std::vector<SlowRow>* rows) const;
  // Copies each row to the position `number` of a batch. REQUIRES: as for UseSlow.
  Status FillRows(std::vector<SlowRow>* rows, ExportBatch* batch) const;

  // Makes room in memory for `rows` more rows of a stripe, but for no more rows than the stripe may
  // have in memory (RowTiers::share). To do so, moves rows to the file, often some more than
  // needed. If another thread makes room for the stripe already, waits for it or, if `wait` is
  // false, returns at once. demoted: set to true if rows may have moved, otherwise left as it is.
  // REQUIRES: the stripe's mutex is not held.
  Status MakeFastRoom(uint32_t stripe, uint64_t rows, bool wait, bool* demoted = nullptr) const;

  // Returns the row of an entry in memory, for a call that writes. changes: the call changes the
  // row, and not only its metadata or score. If the row is in the file, reads it, which is rare:
  // writing calls fetch their rows first. Also works for tables without tiers. REQUIRES: the
  // stripe's mutex.
  Status RowToWrite(Stripe* stripe, Stripe::Entry entry, bool changes, std::byte** row) const;

 private:
  // A row in memory that may move to the file. REQUIRES, to use it: the stripe's mutex.
  struct Victim {
    Stripe::Entry entry;
    uint32_t row;
    uint64_t score;
    uint64_t key_bits;
  };
  // Rows of a stripe that are in memory. Exact if the stripe's mutex is held.
  uint64_t FastRows(uint32_t stripe) const {
    const uint64_t slow = state_.tiers->stripe(stripe).slow.load(std::memory_order_relaxed);
    const uint64_t size = state_.stripes[stripe].size();
    return size > slow ? size - slow : 0;
  }
  // Moves about `count` rows of a stripe to the file. REQUIRES: the stripe's `demoting` mutex.
  Status Demote(uint32_t stripe, uint64_t count) const;
  // Finds up to `count` rows that were not used lately. Looks at some buckets, and returns how
  // many. REQUIRES: the stripe's mutex.
  uint64_t FindVictims(uint32_t stripe, size_t count, std::vector<Victim>* victims) const;
  // Sets the row id of an entry. REQUIRES: the stripe's mutex.
  void MoveEntry(Stripe::Entry entry, uint32_t row_id) const;
  // Writes copied rows to the file. The index then gets the records of the rows that have not
  // changed since they were copied.
  Status WriteVictims(uint32_t stripe, const std::vector<Victim>& victims,
                      const std::byte* rows) const;
  // Reads the first `bytes` of rows in the file, many at a time. REQUIRES: rows in the order of
  // their records, and as for UseSlow.
  Status ReadSlow(std::vector<SlowRow>* rows, size_t bytes,
                  const std::function<void(const std::vector<SlowRow>&)>& use) const;
  enum class Promotion { kIfRoom, kAlways };
  // Moves rows that were read to memory.
  void Promote(const KeyBits& bits, const std::vector<SlowRow>& rows, Promotion promotion) const;

  const TableState& state_;
};

}  // namespace tfra
