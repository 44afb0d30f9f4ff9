#include "table/table_base.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <ctime>
#include <iterator>
#include <string>
#include <unordered_set>

#include "keys/key_groups.h"
#include "memory/blob.h"
#include "memory/read_guard.h"

namespace tfra {
namespace {

using C = TableCounters;
// All of them, in the order in which a table stores them.
constexpr uint64_t C::* kCounterList[] = {
    &C::hits,          &C::misses,    &C::inserts,   &C::updates,    &C::removals,
    &C::ignored,       &C::refused,   &C::evictions, &C::rejections, &C::expirations,
    &C::restrict_runs, &C::fast_hits, &C::slow_hits};

// All tables of the process. A table is in the list from the end of its constructor to the start of
// its destructor.
struct TableList {
  std::mutex mutex;
  std::unordered_set<TableBase*> tables;  // Guarded by mutex.
};

// Never destroyed: tables may be destroyed while the process ends.
TableList& TheTables() {
  static TableList* list = new TableList;
  return *list;
}

}  // namespace

TableBase::TableBase(const TableSpec& spec, Initializer initializer)
    : Table(spec),
      initializer_(std::move(initializer)),
      layout_(spec),
      arena_(layout_.stride),
      tiers_(spec.tiers.fast_bytes > 0
                 ? new RowTiers(spec.tiers, layout_.stride, spec.key_type == KeyType::kString)
                 : nullptr),
      stripes_(new Stripe[kStripes]),
      bounds_(spec.bound.max_capacity > 0 ? new Bounds(spec.bound) : nullptr),
      admission_(Admission::Create(spec.admission, spec.key_type == KeyType::kString)) {
  const std::lock_guard lock(TheTables().mutex);
  TheTables().tables.insert(this);
}

TableBase::~TableBase() {
  {
    const std::lock_guard lock(TheTables().mutex);
    TheTables().tables.erase(this);
  }
  if (!has_string_keys() && !has_string_values()) return;
  Tally tally;
  for (uint32_t s = 0; s < kStripes; ++s) {
    const BucketArray* array = stripes_[s].array();
    for (uint64_t b = 0; array != nullptr && b < array->count; ++b) {
      const Bucket& bucket = array->buckets[b];
      for (uint32_t i = 0; i < kBucketEntries; ++i) {
        if (bucket.state.load() >> i & 1) DropStrings(bucket.rows[i].load(), &tally);
      }
    }
  }
  Retire(std::move(tally.garbage));
}

Status TableBase::Initialize() {
  if (tiers_ != nullptr) TFRA_RETURN_IF_ERROR(tiers_->Open());
  const uint64_t keys = static_cast<uint64_t>(spec_.initial_capacity);
  for (uint32_t s = 0; s < kStripes; ++s) {
    TFRA_RETURN_IF_ERROR(stripes_[s].Create(s, has_string_keys(), &arena_, KeysPerStripe(keys),
                                            {bounds_ != nullptr, spec_.metadata},
                                            bounds_ == nullptr ? 0 : bounds_->stripe_keys()));
  }
  return Status::Ok();
}

template <typename Do>
void TableBase::ForEachLock(ForkLevel level, Do&& act) {
  if (level == ForkLevel::kArena) return act(arena_.mutex());
  const bool demoting = level == ForkLevel::kDemoting;
  for (uint32_t s = 0; s < kStripes && !(demoting && tiers_ == nullptr); ++s) {
    act(demoting ? tiers_->stripe(s).demoting : stripes_[s].mutex());
  }
}

void TableBase::LockAllForFork() {
  TheTables().mutex.lock();
  for (const ForkLevel level : {ForkLevel::kDemoting, ForkLevel::kIndex, ForkLevel::kArena}) {
    for (TableBase* table : TheTables().tables) {
      table->ForEachLock(level, [](std::mutex& mutex) { mutex.lock(); });
    }
  }
}

void TableBase::UnlockAllAfterFork() {
  for (const ForkLevel level : {ForkLevel::kArena, ForkLevel::kIndex, ForkLevel::kDemoting}) {
    for (TableBase* table : TheTables().tables) {
      table->ForEachLock(level, [](std::mutex& mutex) { mutex.unlock(); });
    }
  }
  TheTables().mutex.unlock();
}

std::vector<SlotInfo> TableBase::slots() const {
  std::vector<SlotInfo> slots;
  for (const SlotSpec& slot : layout_.slots) {
    slots.push_back({slot.name, slot.scalar ? 1 : static_cast<size_t>(spec_.dim)});
  }
  return slots;
}

size_t TableBase::slot_elements() const {
  return layout_.slots_bytes / SizeOf(ComputeType(spec_.value_type));
}

uint64_t TableBase::size() const {
  uint64_t size = 0;
  for (uint32_t s = 0; s < kStripes; ++s) size += stripes_[s].size();
  // Stripes are read one after the other: a key may have left one and another come to the next.
  return bounds_ == nullptr ? size : std::min(size, bounds_->max_capacity());
}

uint64_t TableBase::index_steps() const {
  uint64_t steps = 0;
  for (uint32_t s = 0; s < kStripes; ++s) {
    std::lock_guard lock(stripes_[s].mutex());
    steps += stripes_[s].steps_taken();
  }
  return steps;
}

Status TableBase::CheckKeys(const KeyBatch& keys) const {
  if ((keys.type == KeyType::kString) != has_string_keys()) {
    return Status::WrongType(std::string("expected ") + (has_string_keys() ? "string" : "int64") +
                             " keys, received " + (has_string_keys() ? "int64" : "string") +
                             " keys");
  }
  TFRA_RETURN_IF_ERROR(CheckBatchSize(keys));
  return has_string_keys() ? CheckStrings(keys.strings, keys.size, "key") : Status::Ok();
}

Status TableBase::CheckBounded(const char* what) const {
  if (bounds_ != nullptr) return Status::Ok();
  return Status::InvalidArgument(std::string(what) +
                                 " needs a table with a max_capacity, received one without");
}

Status TableBase::CheckScores(const Scores& scores) const {
  if (scores.kind == Scores::kNone) return Status::Ok();
  TFRA_RETURN_IF_ERROR(CheckBounded("writing with scores"));
  return bounds_->CheckScores(scores);
}

Status TableBase::CheckMetadata(const char* what) const {
  if (spec_.metadata) return Status::Ok();
  return Status::InvalidArgument(std::string(what) +
                                 " needs a table with metadata, received one without");
}

Status TableBase::CheckStrings(const std::string_view* strings, size_t n, const char* what) const {
  for (size_t i = 0; i < n; ++i) {
    if (strings[i].size() <= Blob::kMaxSize) continue;
    return Status::InvalidArgument(std::string("expected a string ") + what + " of at most " +
                                   std::to_string(Blob::kMaxSize) + " bytes, received one of " +
                                   std::to_string(strings[i].size()));
  }
  return Status::Ok();
}

void TableBase::DropStrings(uint32_t row_id, Tally* tally) const {
  const auto drop = [&](Blob* blob) {
    if (blob == nullptr) return;
    tally->string_bytes -= static_cast<int64_t>(blob->allocated_bytes());
    tally->garbage.push_back(Blob::AsRetired(blob));
  };
  if (has_string_keys()) drop(KeyOf(row_id));
  if (!has_string_values()) return;
  const std::byte* row = RowAt(row_id);
  for (int64_t j = 0; j < spec_.dim; ++j) drop(LoadBlob(row + j * sizeof(Blob*)));
}

void TableBase::RemoveEntries(Stripe* stripe, const Stripe::Entry* entries, size_t count,
                              Tally* tally) const {
  PrepareDrop(stripe, count, tally);
  uint64_t size = stripe->size();
  stripe->Erase(entries, count);
  for (size_t i = 0; i < count; ++i) {
    if (bounds_ != nullptr) bounds_->GiveRoom(size--);
    DropStrings(entries[i].row(), tally);
    DropRow(stripe, entries[i].row(), tally);
  }
}

Status TableBase::StartRow(Stripe* stripe, uint32_t row) const {
  const Status status = tiers_->Start(row);
  if (!status.ok()) stripe->GiveRow(row);
  return status;
}

void TableBase::DropRow(Stripe* stripe, uint32_t row_id, Tally* tally) const {
  if (IsSlow(row_id)) {
    tally->records.push_back(RecordOf(row_id));
    tiers_->stripe(stripe->number()).slow.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  if (tiers_ != nullptr) {
    uint32_t& mark = tiers_->Mark(row_id);
    if (const uint32_t record = RowTiers::OwnRecord(mark); record != RowTiers::kNoRecord) {
      tally->records.push_back(record);
    }
    mark = RowTiers::kNoRecord | RowTiers::kDirty;
  }
  stripe->GiveRow(row_id);
}

Status TableBase::Clear() try {
  const StripeLocks locks(stripes_.get(), kAllStripes);
  Tally tally;
  // All memory is taken before the first change.
  tally.garbage.reserve(size() * StringsPerRow());
  if (tiers_ != nullptr) tally.records.reserve(size());
  for (uint32_t s = 0; s < kStripes; ++s) GrowBy(&stripes_[s].free_rows(), stripes_[s].size());
  for (uint32_t s = 0; s < kStripes; ++s) {
    Stripe& stripe = stripes_[s];
    tally.removals += stripe.size();
    stripe.Clear([&](uint32_t row) {
      DropStrings(row, &tally);
      DropRow(&stripe, row, &tally);
    });
  }
  if (bounds_ != nullptr) bounds_->Clear();
  if (admission_ != nullptr) admission_->Clear();
  Count(std::move(tally));
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status TableBase::ExportAdmission(AdmissionState* state) try {
  *state = AdmissionState();
  if (admission_ == nullptr) return Status::Ok();
  const StripeLocks locks(stripes_.get(), kAllStripes);
  admission_->Save(state);
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status TableBase::RestoreAdmission(const AdmissionState& state, uint32_t part, uint32_t parts) try {
  if (part >= parts) {
    return Status::InvalidArgument("expected the row_id of a part below " + std::to_string(parts) +
                                   ", received " + std::to_string(part));
  }
  if (admission_ == nullptr) {
    if (state.seen.empty() && state.filter.empty()) return Status::Ok();
    return Status::InvalidArgument(
        "expected no state of admission in a table that lets every key in, received one");
  }
  const StripeLocks locks(stripes_.get(), kAllStripes);
  return admission_->Load(state, part, parts);
}
TFRA_CATCH_BAD_ALLOC

void TableBase::CopyHistory(TableBase* other) {
  const StripeLocks locks(other->stripes_.get(), kAllStripes);
  clock_.store(other->clock_.load());
  if (admission_ != nullptr) admission_ = other->admission_->Clone();
  for (size_t k = 0; k < kCounterCount; ++k) counters_[k].store(other->counters_[k].load());
}

Status TableBase::Reserve(int64_t keys) try {
  TFRA_RETURN_IF_ERROR(CheckCapacity(keys));
  if (bounds_ != nullptr) keys = std::min(keys, spec_.bound.max_capacity);
  const uint64_t each = KeysPerStripe(static_cast<uint64_t>(keys));
  for (uint32_t s = 0; s < kStripes; ++s) {
    std::lock_guard lock(stripes_[s].mutex());
    TFRA_RETURN_IF_ERROR(stripes_[s].Grow(each));
  }
  if (tiers_ != nullptr) {
    keys = std::min(keys, static_cast<int64_t>(tiers_->share() * kStripes));
  }
  const uint64_t rows = arena_.rows();
  return rows < static_cast<uint64_t>(keys) ? arena_.Reserve(keys - rows) : Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status TableBase::Shrink() try {
  std::vector<std::unique_lock<std::mutex>> demoting;
  for (uint32_t s = 0; tiers_ != nullptr && s < kStripes; ++s) {
    demoting.emplace_back(tiers_->stripe(s).demoting);
  }
  const StripeLocks locks(stripes_.get(), kAllStripes);
  for (uint32_t s = 0; s < kStripes; ++s) {
    Stripe& stripe = stripes_[s];
    if (stripe.BucketsFor(stripe.size()) < stripe.bucket_count()) {
      TFRA_RETURN_IF_ERROR(stripe.Rebuild(stripe.size()));
    }
  }
  if (admission_ != nullptr) admission_->Shrink();
  CompactRows();
  return tiers_ == nullptr ? Status::Ok() : tiers_->records().Trim();
}
TFRA_CATCH_BAD_ALLOC

void TableBase::CompactRows() {
  const uint64_t slow = tiers_ == nullptr ? 0 : tiers_->slow_rows();
  const uint32_t live = static_cast<uint32_t>(size() - slow);
  size_t free = 0;
  for (uint32_t s = 0; s < kStripes; ++s) free += stripes_[s].free_rows().size();
  std::vector<uint32_t> gaps;
  gaps.reserve(free);
  for (uint32_t s = 0; s < kStripes; ++s) {
    for (uint32_t row : stripes_[s].free_rows()) {
      if (row < live) gaps.push_back(row);
    }
    std::vector<uint32_t>().swap(stripes_[s].free_rows());
  }
  for (uint32_t s = 0; s < kStripes; ++s) {
    const BucketArray* array = stripes_[s].array();
    for (uint64_t b = 0; b < array->count; ++b) {
      Bucket& bucket = array->buckets[b];
      const uint32_t state = bucket.BeginWrite();
      for (uint32_t i = 0; i < kBucketEntries; ++i) {
        const uint32_t row = bucket.rows[i].load(std::memory_order_relaxed);
        if (!(state >> i & 1) || row < live || IsSlow(row)) continue;
        const uint32_t gap = gaps.back();
        gaps.pop_back();
        EditRow(RowAt(gap), layout_.stride,
                [&](std::byte* to) { std::memcpy(to, RowAt(row), layout_.stride); });
        if (tiers_ != nullptr) tiers_->Mark(gap) = tiers_->Mark(row);
        if (tiers_ != nullptr) tiers_->SetRecency(gap, tiers_->Recency(row));
        bucket.rows[i].store(gap, std::memory_order_relaxed);
      }
      bucket.EndWrite(state);
    }
  }
  arena_.Truncate(live);
}

uint32_t TableBase::clock() const {
  const int64_t fixed = clock_.load(std::memory_order_relaxed);
  return static_cast<uint32_t>(fixed >= 0 ? fixed : std::time(nullptr));
}

void TableBase::Count(Tally tally) const {
  static_assert(std::size(kCounterList) == kCounterCount);
  for (size_t k = 0; kCounters && k < kCounterCount; ++k) {
    const uint64_t amount = tally.*kCounterList[k];
    if (amount != 0) counters_[k].fetch_add(amount, std::memory_order_relaxed);
  }
  if (tally.string_bytes != 0)
    string_bytes_.fetch_add(tally.string_bytes, std::memory_order_relaxed);
  if (!tally.garbage.empty()) Retire(std::move(tally.garbage));
  if (!tally.records.empty()) tiers_->records().RetireRecords(std::move(tally.records));
}

TableStats TableBase::stats() const {
  TableStats stats;
  stats.size = size();
  for (uint32_t s = 0; s < kStripes; ++s) {
    stats.capacity += stripes_[s].limit();
    stats.index_bytes += stripes_[s].index_bytes();
    stats.reseeds += stripes_[s].reseeds();
  }
  if (bounds_ != nullptr) {
    stats.capacity = std::min(stats.capacity, bounds_->max_capacity());
    stats.index_bytes += bounds_->memory_bytes();
  }
  stats.row_bytes = uint64_t{arena_.rows()} * layout_.stride;
  stats.string_bytes = static_cast<uint64_t>(std::max<int64_t>(0, string_bytes_.load()));
  for (size_t k = 0; k < kCounterCount; ++k) stats.*kCounterList[k] = counters_[k].load();
  if (admission_ != nullptr) {
    stats.waiting = admission_->waiting();
    stats.admission_bytes = admission_->bytes();
  }
  if (tiers_ != nullptr) {
    const RowFile& file = tiers_->records().file();
    stats.io_reads = file.reads();
    stats.io_writes = file.writes();
    stats.bytes_read = file.bytes_read();
    stats.bytes_written = file.bytes_written();
    stats.fast_bytes = stats.row_bytes;
    stats.slow_bytes = file.size();
    stats.index_bytes += tiers_->record_bytes();
  }
  return stats;
}

}  // namespace tfra
