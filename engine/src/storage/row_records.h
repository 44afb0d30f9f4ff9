// The records of a row file, each of which holds one row: which records are free, and how rows are
// read and written.
//
// Reading a single row is cheap, writing a single row is not. So a thread that writes reserves free
// records of one segment, and writes them in runs. Rows in a short gap within a run are read first,
// and written again with the same bytes. So a record in use never changes, and may be read at any
// time as long as it is not freed.
//
// Freeing records is deferred (read_guard.h): a thread inside a ReadGuard may read a record that it
// found in the index, even if the row leaves the record meanwhile.
//
// A forked child cannot use the file of its parent (row_file.h). In a child these calls fail, or do
// nothing, before they take a lock, since a thread of the parent may have held the lock at the fork
// (process/fork.cc).
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <mutex>
#include <vector>

#include "storage/row_file.h"

namespace tfra {

// The number of a record has 30 bits, which leaves two bits for marks.
inline constexpr uint32_t kMaxRecords = (uint32_t{1} << 30) - 1;

// A row to be read from the file.
struct SlowRow {
  uint32_t number;  // Chosen by the caller, for example a position in a batch.
  uint32_t record;
  const std::byte* row = nullptr;  // Set by RowRecords::Read.
  bool seen = false;               // Whether the row was needed before: see RowTiers::SeenBefore.
};

// Sorts rows into the order in which reading them is fastest.
void SortByRecord(std::vector<SlowRow>* rows);

// The memory that rows are read into. Each thread needs its own.
using Staging = std::vector<std::byte>;

class RowRecords {
 public:
  // The most records of a segment. Segments of large rows have fewer.
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
    // Keeps record k beyond the reservation, because the index will contain it.
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

  // How many rows to read or write at once: as many as fit into a cache, and at least one.
  size_t batch_rows() const { return batch_rows_; }

  // Reserves up to `want` records, and at least one. REQUIRES: a new reservation.
  Status TakeRecords(uint32_t want, Reservation* reservation);
  // Writes rows, (reservation.count(), stride), to the records of a reservation.
  Status Write(const Reservation& reservation, const std::byte* rows);
  // Frees records when no thread can be reading them. REQUIRES: the index does not contain them.
  void RetireRecords(std::vector<uint32_t> records);

  // Reads the first `bytes` of each row into `staging`. REQUIRES: the records are in use and
  // ascending. More than batch_rows() rows take much memory.
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
  // A segment with many free records that is not reserved, or UINT32_MAX if there is none.
  uint32_t FindSegment();
  // Adds segments to the end of the file.
  Status Grow();
  // Makes sure that the segment fresh_ exists and is filled with zeros.
  Status MakeFresh();

  // Constant after Create.
  const size_t stride_;
  const size_t batch_rows_;
  const uint32_t segment_;  // The number of records of a segment.
  RowFile file_;

  std::atomic<int64_t> users_{1};  // The table, and all lists of retired records.
  std::mutex reserving_;           // Held while the file grows; taken before mutex_.
  uint64_t filled_ = 0;            // Bytes of the file that are filled. Guarded by reserving_.
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<Segment> segments_;
  uint32_t fresh_ = 0;  // From this segment on, no segment was used yet.
  uint64_t free_ = 0;   // The number of free records in the segments before fresh_.
  uint32_t hand_ = 0;   // Where the next search for a segment starts.
};

}  // namespace tfra
