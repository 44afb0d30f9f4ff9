// Where the rows of a tiered table are: in memory, or in records of a file.
//
// A row id with kSlowRow set names a record of the file; other row ids name rows of the arena. Rows
// that are needed move to memory; rows that were not used lately move to the file to make room
// (tiers/row_mover.h). A row that moved to memory keeps its record until the row changes. If it has
// not changed, moving it back writes nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "index/stripe.h"
#include "memory/blob.h"
#include "rows/row_arena.h"
#include "storage/row_records.h"
#include "tfra/spec.h"

namespace tfra {

// The bit of a row id that says that it names a record of the file.
inline constexpr uint32_t kSlowRow = uint32_t{1} << 31;
// The record that such a row id names.
inline uint32_t RecordOf(uint32_t row_id) { return row_id & ~kSlowRow; }

class RowTiers {
 public:
  // A stripe has room for at least this many rows in memory, however small fast_bytes is.
  static constexpr uint64_t kMinShare = 4;
  // The most rows in memory of one stripe: row ids have 30 bits.
  static constexpr uint64_t kMaxShare = (uint64_t{1} << 30) / kStripes;

  RowTiers(const Tiers& tiers, size_t stride, bool string_keys);
  ~RowTiers();

  // Makes the file. Call this once, before anything else.
  Status Open();

  RowRecords& records() const { return *records_; }
  // The number of rows of one stripe that fit into memory.
  uint64_t share() const { return share_; }
  static uint64_t ShareOf(const Tiers& tiers, size_t stride);

  // The bytes that each row in memory needs besides the row itself: mark and recency.
  static constexpr size_t kRowOverhead = sizeof(uint32_t) + sizeof(uint8_t);

  // Initializes the mark and the recency of a new row, which is not in the file.
  Status Start(uint32_t row) {
    if (row >= covered_.load(std::memory_order_acquire)) TFRA_RETURN_IF_ERROR(Cover(row));
    Mark(row) = kNoRecord | kDirty;
    SetRecency(row, 1);
    return Status::Ok();
  }

  // The recency of a row: how much it was used lately. Any thread.
  static constexpr uint8_t kMaxRecency = 3;
  // The recency of a row that was fetched for a write. The write sets it to 0, because most rows in
  // the file are needed only once in a long while.
  static constexpr uint8_t kFetched = kMaxRecency + 1;
  [[gnu::always_inline]] void Warm(uint32_t row) {
    const uint8_t recency = Recency(row);
    if (recency != kMaxRecency)
      SetRecency(row, recency < kMaxRecency ? static_cast<uint8_t>(recency + 1) : 1);
  }
  // Lowers the recency, because a search for rows to move to the file has passed the row.
  void Cool(uint32_t row, uint8_t recency) {
    SetRecency(row, recency == kFetched ? 0 : static_cast<uint8_t>(recency - 1));
  }
  uint8_t Recency(uint32_t row) const {
    return __atomic_load_n(reinterpret_cast<const uint8_t*>(recency_.At(row)), __ATOMIC_RELAXED);
  }
  void SetRecency(uint32_t row, uint8_t recency) {
    __atomic_store_n(reinterpret_cast<uint8_t*>(recency_.At(row)), recency, __ATOMIC_RELAXED);
  }

  // The mark of a row in memory: the record that the row came from, or kNoRecord; kDirty if the row
  // has changed since; kWriting while it is being written to the file. REQUIRES: the mutex of its
  // stripe.
  static constexpr uint32_t kNoRecord = kMaxRecords;
  static constexpr uint32_t kWriting = uint32_t{1} << 30;
  static constexpr uint32_t kDirty = uint32_t{1} << 31;
  uint32_t& Mark(uint32_t row) { return *reinterpret_cast<uint32_t*>(marks_.At(row)); }
  // Call this when the content of a row changes.
  [[gnu::always_inline]] void NoteWrite(uint32_t row) {
    Mark(row) |= kDirty;
    if (Recency(row) == kFetched) SetRecency(row, 0);
  }
  static bool IsClean(uint32_t mark) { return mark < kNoRecord; }
  // The record that a row still owns: the one it came from, or kNoRecord.
  static uint32_t OwnRecord(uint32_t mark) {
    return mark & kWriting ? kNoRecord : mark & kNoRecord;
  }

  // Whether the row of a record was needed before, not too long ago. This call counts as needing
  // it. Any thread.
  bool SeenBefore(uint32_t record);

  // The string key of the row in a record: so keys are compared without reading the file. Written
  // under the mutex of the row's stripe, before the index contains the record; read by any thread.
  Blob* Key(uint32_t record) const { return LoadBlob(keys_.At(record)); }
  // Makes room for the data of a record. Call this before the index contains the record.
  Status CoverRecord(uint32_t record);
  void SetKey(uint32_t record, Blob* key) {
    if (string_keys_) StoreBlob(keys_.At(record), key);
  }

  struct StripeTier {
    std::mutex demoting;              // Held by the thread that moves rows to the file.
    std::atomic<uint64_t> slow{0};    // Rows in the file. Changed under the stripe's mutex.
    std::atomic<uint64_t> needed{0};  // Rows that the last batch needed memory for.
    uint64_t hand = 0;                // The bucket where the next search for victims starts.
  };
  StripeTier& stripe(uint32_t number) { return stripes_[number]; }
  const StripeTier& stripe(uint32_t number) const { return stripes_[number]; }

  uint64_t slow_rows() const;
  // The memory that the data of records take.
  uint64_t record_bytes() const {
    return covered_records_.load() / 8 +
           (string_keys_ ? covered_records_.load() * sizeof(Blob*) : 0);
  }

 private:
  Status Cover(uint32_t row);

  const Tiers spec_;
  const size_t stride_;
  const bool string_keys_;
  const uint64_t share_;
  RowRecords* records_ = nullptr;
  // Arrays by row id (marks_, recency_) and by record (keys_, seen_).
  RowArena marks_, recency_, keys_, seen_;
  std::atomic<uint64_t> seen_count_{0};
  std::mutex covering_;
  std::atomic<uint64_t> covered_{0}, covered_records_{0};
  std::array<StripeTier, kStripes> stripes_;
};

}  // namespace tfra
