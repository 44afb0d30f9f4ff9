#include "storage/row_records.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "memory/read_guard.h"

namespace tfra {
namespace {

constexpr size_t kBatchBytes = size_t{1} << 20;
constexpr size_t kSegmentBytes = size_t{256} << 10;
// A gap between two rows is read or written along with them if it has at most this many bytes: that
// takes less time than another system call.
constexpr size_t kJoinBytes = 4096;
// When reading, a gap has at most this many rows. Otherwise it would need much more memory.
constexpr uint32_t kJoinRows = 2;
// Free records are used if at least one record in kSpare is free; otherwise the file grows. With
// more free records, one write contains more new rows.
constexpr uint64_t kSpare = 4;
// The emptiest of this many segments is used: the emptier, the fewer rows are written again.
constexpr uint32_t kCandidates = 32;
// The file grows by its size / kGrowShare, but at least by kGrowSegments segments.
constexpr uint32_t kGrowSegments = 4;
constexpr uint32_t kGrowShare = 32;

// The file is filled with zeros, in pieces of this size, before rows are written to it: the
// operating system may then cache it in large pages, which makes reading a row a third faster. With
// larger pieces, writing takes longer.
constexpr size_t kFillBytes = size_t{256} << 10;

constexpr uint32_t kNone = UINT32_MAX;

}  // namespace

void SortByRecord(std::vector<SlowRow>* rows) {
  std::sort(rows->begin(), rows->end(),
            [](const SlowRow& a, const SlowRow& b) { return a.record < b.record; });
}

RowRecords::RowRecords(size_t stride)
    : stride_(stride),
      batch_rows_(std::clamp<size_t>(kBatchBytes / stride, 1, 1024)),
      segment_(static_cast<uint32_t>(
          std::bit_floor(std::clamp<size_t>(kSegmentBytes / stride, 1, kMaxSegment)))) {}

Status RowRecords::Create(const std::string& directory, size_t stride, RowRecords** records) {
  auto made = new RowRecords(stride);
  const Status status = made->file_.Open(directory);
  if (status.ok()) {
    *records = made;
  } else {
    made->Leave();
  }
  return status;
}

uint32_t RowRecords::FindSegment() {
  uint32_t best = kNone;
  for (uint32_t step = 0; step < fresh_ && (step < kCandidates || best == kNone); ++step) {
    hand_ = hand_ + 1 < fresh_ ? hand_ + 1 : 0;
    const Segment& segment = segments_[hand_];
    if (segment.reserved || segment.free == 0) continue;
    if (best == kNone || segment.free > segments_[best].free) best = hand_;
  }
  return best;
}

Status RowRecords::Grow() {
  // Only the holder of reserving_ changes the number of segments.
  const size_t segments = segments_.size();
  if (segments * segment_ >= kMaxRecords - segment_) {
    return Status::StorageFull("the file for rows holds at most " + std::to_string(kMaxRecords) +
                               " rows");
  }
  const size_t most = kMaxRecords / segment_;
  const size_t wanted = std::min(
      most, segments + std::max<size_t>(kGrowSegments, std::min<size_t>(segments / kGrowShare,
                                                                        kBatchBytes / stride_)));
  TFRA_RETURN_IF_ERROR(file_.Resize(uint64_t{wanted} * segment_ * stride_));
  std::lock_guard lock(mutex_);
  segments_.resize(wanted, {{}, static_cast<uint16_t>(segment_), false});
  return Status::Ok();
}

Status RowRecords::MakeFresh() {
  // Only the holder of reserving_ changes these numbers.
  if (fresh_ == segments_.size()) TFRA_RETURN_IF_ERROR(Grow());
  static std::byte zeros[kFillBytes];  // Only read.
  const uint64_t needed = (uint64_t{fresh_} + 1) * segment_ * stride_;
  while (filled_ < needed) {
    const uint64_t end = std::min((filled_ / kFillBytes + 1) * kFillBytes, file_.size());
    TFRA_RETURN_IF_ERROR(file_.Write(filled_, zeros, end - filled_));
    filled_ = end;
  }
  return Status::Ok();
}

Status RowRecords::TakeRecords(uint32_t want, Reservation* reservation) {
  TFRA_RETURN_IF_ERROR(file_.CheckProcess());
  std::lock_guard reserving(reserving_);
  std::unique_lock lock(mutex_);
  uint32_t segment = kNone;
  if (free_ * kSpare >= uint64_t{fresh_} * segment_ && free_ > 0) {
    segment = FindSegment();
  }
  if (segment == kNone) {
    lock.unlock();
    const Status status = MakeFresh();
    lock.lock();
    if (status.ok()) {
      segment = fresh_++;
      free_ += segment_;
    } else {
      // The file cannot grow: use the records that are free.
      segment = FindSegment();
      if (segment == kNone) return status;
    }
  }
  Segment& taken = segments_[segment];
  taken.reserved = true;
  reservation->owner_ = this;
  reservation->segment_ = segment;
  for (uint32_t word = 0; word * 64 < segment_; ++word) {
    for (uint64_t free = ~taken.used[word]; free != 0 && reservation->count_ < want;
         free &= free - 1) {
      const auto bit = static_cast<uint32_t>(std::countr_zero(free));
      if (word * 64 + bit >= segment_) break;
      taken.used[word] |= uint64_t{1} << bit;
      reservation->records_[reservation->count_++] = segment * segment_ + word * 64 + bit;
    }
  }
  taken.free = static_cast<uint16_t>(taken.free - reservation->count_);
  free_ -= reservation->count_;
  return Status::Ok();
}

Status RowRecords::Write(const Reservation& reservation, const std::byte* rows) {
  const uint32_t* records = reservation.records_;
  thread_local Staging buffer;  // Kept between calls, because fresh memory costs more than copying.
  for (uint32_t begin = 0, end; begin < reservation.count_; begin = end) {
    bool gaps = false;
    for (end = begin + 1; end < reservation.count_; ++end) {
      const uint32_t between = records[end] - records[end - 1] - 1;
      if (between * stride_ > kJoinBytes) break;
      gaps |= between > 0;
    }
    const uint64_t offset = uint64_t{records[begin]} * stride_;
    const std::byte* first = rows + begin * stride_;
    const size_t bytes = (records[end - 1] - records[begin] + 1) * stride_;
    if (gaps) {
      if (buffer.size() < bytes) buffer.resize(bytes);
      TFRA_RETURN_IF_ERROR(file_.Read(offset, buffer.data(), bytes));
      for (uint32_t k = begin; k < end; ++k) {
        std::memcpy(buffer.data() + (records[k] - records[begin]) * stride_, rows + k * stride_,
                    stride_);
      }
      first = buffer.data();
    }
    TFRA_RETURN_IF_ERROR(file_.Write(offset, first, bytes));
  }
  return Status::Ok();
}

RowRecords::Reservation::~Reservation() {
  if (owner_ == nullptr) return;
  std::lock_guard lock(owner_->mutex_);
  owner_->segments_[segment_].reserved = false;
  for (uint32_t k = 0; k < count_; ++k) {
    if (!taken_[k]) owner_->FreeLocked(records_[k]);
  }
}

void RowRecords::FreeLocked(uint32_t record) {
  Segment& segment = segments_[record / segment_];
  segment.used[record % segment_ / 64] &= ~(uint64_t{1} << record % segment_ % 64);
  ++segment.free;
  ++free_;
}

void RowRecords::RetireRecords(std::vector<uint32_t> records) {
  if (!file_.CheckProcess().ok()) return;
  struct Waiting {
    RowRecords* owner;
    std::vector<uint32_t> records;
  };
  auto* retired = new Waiting{this, std::move(records)};
  users_.fetch_add(1, std::memory_order_relaxed);
  Retire({{retired, 0, [](void* pointer, size_t) {
             const std::unique_ptr<Waiting> waiting(static_cast<Waiting*>(pointer));
             // In a forked child, records that the parent retired before the fork are left alone.
             if (waiting->owner->file_.CheckProcess().ok()) {
               std::lock_guard lock(waiting->owner->mutex_);
               for (const uint32_t record : waiting->records) waiting->owner->FreeLocked(record);
             }
             waiting->owner->Leave();
           }}});
}

Status RowRecords::Read(std::vector<SlowRow>* rows, size_t bytes, Staging* staging) {
  // Runs of rows that are read at once: [begin, end) of `rows`.
  const auto run_end = [&](size_t begin) {
    size_t end = begin + 1;
    for (; end < rows->size(); ++end) {
      const uint32_t step = (*rows)[end].record - (*rows)[end - 1].record;
      if (step > kJoinRows + 1 || step * stride_ > bytes + kJoinBytes) break;
    }
    return end;
  };
  const auto run_bytes = [&](size_t begin, size_t end) {
    return ((*rows)[end - 1].record - (*rows)[begin].record) * stride_ + bytes;
  };
  size_t total = 0;
  for (size_t begin = 0, end; begin < rows->size(); begin = end) {
    end = run_end(begin);
    total += run_bytes(begin, end);
  }
  if (staging->size() < total) staging->resize(total);
  std::byte* to = staging->data();
  for (size_t begin = 0, end; begin < rows->size(); begin = end) {
    end = run_end(begin);
    const uint32_t first = (*rows)[begin].record;
    TFRA_RETURN_IF_ERROR(file_.Read(uint64_t{first} * stride_, to, run_bytes(begin, end)));
    for (size_t k = begin; k < end; ++k) {
      (*rows)[k].row = to + ((*rows)[k].record - first) * stride_;
    }
    to += run_bytes(begin, end);
  }
  return Status::Ok();
}

Status RowRecords::Trim() {
  TFRA_RETURN_IF_ERROR(file_.CheckProcess());
  std::lock_guard reserving(reserving_);
  std::lock_guard lock(mutex_);
  size_t keep = segments_.size();
  while (keep > 0 && !segments_[keep - 1].reserved && segments_[keep - 1].free == segment_) --keep;
  if (keep == segments_.size()) return Status::Ok();
  TFRA_RETURN_IF_ERROR(file_.Resize(uint64_t{keep} * segment_ * stride_));
  if (fresh_ > keep) free_ -= (fresh_ - keep) * uint64_t{segment_};
  segments_.resize(keep);
  filled_ = std::min(filled_, file_.size());
  fresh_ = std::min(fresh_, static_cast<uint32_t>(keep));
  return Status::Ok();
}

}  // namespace tfra
