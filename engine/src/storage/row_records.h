// The records of a tiered table's file, each of which holds a row: which ones are free, and how
// rows get into them and out of them.
//
// Reading a single row is cheap, writing one is not. So records come in segments, and a thread that
// writes reserves the free records of one segment and writes what lies between the first and the
// last of them at once; of the rows in between the same bytes are written again. A record that is
// in use therefore never changes: it may be read at any time by whoever keeps it from being freed.
//
// Records are freed late (read_guard.h): a thread inside a ReadGuard may read a record that it
// found in the index, also if the row leaves the record meanwhile.
//
// A forked child cannot use the file of its parent (row_file.h). There these calls fail, or do
// nothing, before they take a lock: another thread may have held it at the fork (process/fork.cc).
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <mutex>
#include <vector>

#include "storage/row_file.h"

namespace tfra {

// Records have 30 bits, which leaves two for marks.
inline constexpr uint32_t kMaxRecords = (uint32_t{1} << 30) - 1;

// A row that is to be read. The number is the caller's, for example a position in a batch.
struct SlowRow {
  uint32_t number;
  uint32_t record;
  const std::byte* row = nullptr;  // After reading.
  bool seen = false;               // Whether the row was needed before.
};

// In the order in which reading them is fastest.
void SortByRecord(std::vector<SlowRow>* rows);

// The memory that rows are read into. Each thread needs its own.
using Staging = std::vector<std::byte>;

class RowRecords {
 public:
  // Records of a segment, at most: fewer of large rows.
  static constexpr uint32_t kMaxSegment = 256;

  // Some free records of one segment, ascending, for one thread to write to. The reservation ends
  // with this object: records that were not taken by then are free again.
  class Reservation {
   public:
    Reservation() = default;
    ~Reservation();
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

    uint32_t count() const { return count_; }
    uint32_t record(uint32_t k) const { return records_[k]; }
    // Takes record k, which the index will name.
    uint32_t Take(uint32_t k) {
      taken_[k] = true;
      return records_[k];
    }

   private:
    friend class RowRecords;
    RowRecords* owner_ = nullptr;
    uint32_t segment_ = 0;
    uint32_t count_ = 0;
    uint32_t records_[kMaxSegment];
    std::bitset<kMaxSegment> taken_;
  };

  // stride: bytes of a row. The object is freed after Abandon.
  static Status Create(const std::string& directory, size_t stride, RowRecords** records);
  // Frees this object, as soon as all records that were retired are free.
  void Abandon() { Leave(); }

  // Rows that are read, or written, at once: as many as fit a cache, and one at least.
  size_t batch_rows() const { return batch_rows_; }

  // Reserves up to `want` records, and one at least. REQUIRES: a fresh reservation.
  Status TakeRecords(uint32_t want, Reservation* reservation);
  // Writes rows, (reservation.count(), stride), to the records of a reservation.
  Status Write(const Reservation& reservation, const std::byte* rows);
  // Frees records when no reader can be reading them. The index must not name them any more.
  void RetireRecords(std::vector<uint32_t> records);

  // Reads the first `bytes` of rows into `staging`. REQUIRES: records in use, ascending; at most
  // batch_rows() of them, or it takes much memory.
  Status Read(std::vector<SlowRow>* rows, size_t bytes, Staging* staging);

  // Returns free records at the end of the file to the file system.
  Status Trim();

  const RowFile& file() const { return file_; }

 private:
  struct Segment {
    uint64_t used[kMaxSegment / 64] = {};
    uint16_t free = 0;
    bool reserved = false;
  };

  explicit RowRecords(size_t stride);
  ~RowRecords() = default;
  void FreeLocked(uint32_t record);
  void Leave() {
    if (users_.fetch_sub(1) == 1) delete this;
  }
  // A segment that is not reserved and has many free records, or none (UINT32_MAX).
  uint32_t FindSegment();
  // Makes segments that no row was in yet.
  Status Grow();
  // Makes sure that there is a segment at fresh_, to be written to.
  Status MakeFresh();

  // Constant after Create.
  const size_t stride_;
  const size_t batch_rows_;
  const uint32_t segment_;  // Records of a segment.
  RowFile file_;

  std::atomic<int64_t> users_{1};  // The table, and whoever waits to free records.
  std::mutex reserving_;           // Held while the file grows; taken before mutex_.
  uint64_t filled_ = 0;            // Bytes of the file that were written. Guarded by reserving_.
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<Segment> segments_;
  uint32_t fresh_ = 0;  // The first segment that no row was in yet; all that follow are like it.
  uint64_t free_ = 0;   // Records in the segments before it.
  uint32_t hand_ = 0;   // Where the search for a segment goes on.
};

}  // namespace tfra
