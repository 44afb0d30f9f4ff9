#include "storage/row_tiers.h"

#include <algorithm>

namespace tfra {
namespace {

// The arrays of marks and keys grow by this many elements at a time.
constexpr uint64_t kCoverStep = 4096;

uint64_t StepAfter(uint32_t number) { return (number / kCoverStep + 1) * kCoverStep; }

}  // namespace

RowTiers::RowTiers(const Tiers& tiers, size_t stride, bool string_keys)
    : spec_(tiers),
      stride_(stride),
      string_keys_(string_keys),
      share_(ShareOf(tiers, stride)),
      marks_(sizeof(uint32_t)),
      recency_(sizeof(uint8_t)),
      keys_(sizeof(Blob*)),
      seen_(sizeof(uint64_t)) {}

RowTiers::~RowTiers() {
  if (records_ != nullptr) records_->Abandon();
}

Status RowTiers::Open() { return RowRecords::Create(spec_.directory, stride_, &records_); }

uint64_t RowTiers::ShareOf(const Tiers& tiers, size_t stride) {
  return std::clamp(tiers.fast_bytes / (stride + kRowOverhead) / kStripes, kMinShare, kMaxShare);
}

Status RowTiers::Cover(uint32_t row) {
  std::lock_guard lock(covering_);
  const uint64_t rows = StepAfter(row);
  if (rows <= covered_.load()) return Status::Ok();
  TFRA_RETURN_IF_ERROR(marks_.Reserve(rows));
  TFRA_RETURN_IF_ERROR(recency_.Reserve(rows));
  covered_.store(rows, std::memory_order_release);
  return Status::Ok();
}

Status RowTiers::CoverRecord(uint32_t record) {
  if (record < covered_records_.load(std::memory_order_acquire)) return Status::Ok();
  std::lock_guard lock(covering_);
  const uint64_t records = StepAfter(record);
  if (records <= covered_records_.load()) return Status::Ok();
  TFRA_RETURN_IF_ERROR(seen_.Reserve(records / 64));
  if (string_keys_) TFRA_RETURN_IF_ERROR(keys_.Reserve(records));
  covered_records_.store(records, std::memory_order_release);
  return Status::Ok();
}

bool RowTiers::SeenBefore(uint32_t record) {
  const auto seen_bits = [this](uint32_t number) {
    return reinterpret_cast<uint64_t*>(seen_.At(number / 64));
  };
  const uint64_t bit = uint64_t{1} << record % 64;
  if (__atomic_load_n(seen_bits(record), __ATOMIC_RELAXED) & bit) return true;
  __atomic_fetch_or(seen_bits(record), bit, __ATOMIC_RELAXED);
  // When as many records were seen as rows fit into memory, forget all of them.
  if (seen_count_.fetch_add(1, std::memory_order_relaxed) + 1 == share_ * kStripes) {
    const uint64_t records = covered_records_.load(std::memory_order_acquire);
    for (uint64_t first = 0; first < records; first += 64) {
      __atomic_store_n(seen_bits(static_cast<uint32_t>(first)), 0, __ATOMIC_RELAXED);
    }
    seen_count_.store(0, std::memory_order_relaxed);
  }
  return false;
}

uint64_t RowTiers::slow_rows() const {
  uint64_t rows = 0;
  for (const StripeTier& stripe : stripes_) rows += stripe.slow.load(std::memory_order_relaxed);
  return rows;
}

}  // namespace tfra
