#include "state/table_state.h"

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

// All tables of the process. A table is in the list from the end of its constructor to the start of
// its destructor.
struct TableList {
  std::mutex mutex;
  std::unordered_set<TableState*> tables;  // Guarded by mutex.
};

// Never destroyed: tables may be destroyed while the process ends.
TableList& TheTables() {
  static TableList* list = new TableList;
  return *list;
}

}  // namespace

TableState::TableState(const TableSpec& spec_of_table, Initializer initializer_of_table)
    : spec(spec_of_table),
      initializer(std::move(initializer_of_table)),
      layout(spec),
      arena(layout.stride),
      tiers(spec.tiers.fast_bytes > 0
                ? new RowTiers(spec.tiers, layout.stride, spec.key_type == KeyType::kString)
                : nullptr),
      stripes(new Stripe[kStripes]),
      bounds(spec.bound.max_capacity > 0 ? new Bounds(spec.bound) : nullptr),
      admission(Admission::Create(spec.admission, spec.key_type == KeyType::kString)) {
  const std::lock_guard lock(TheTables().mutex);
  TheTables().tables.insert(this);
}

TableState::~TableState() {
  {
    const std::lock_guard lock(TheTables().mutex);
    TheTables().tables.erase(this);
  }
  if (!has_string_keys() && !has_string_values()) return;
  // Nobody reads any more, so that strings are freed at once. A list of them would need memory.
  const auto free = [](Blob* blob) {
    if (blob == nullptr) return;
    const Retired item = Blob::AsRetired(blob);
    item.free(item.pointer, item.bytes);
  };
  for (uint32_t s = 0; s < kStripes; ++s) {
    const BucketArray* array = stripes[s].array();
    for (uint64_t b = 0; array != nullptr && b < array->count; ++b) {
      const Bucket& bucket = array->buckets[b];
      for (uint32_t i = 0; i < kBucketEntries; ++i) {
        if (!(bucket.state.load() >> i & 1)) continue;
        const uint32_t row_id = bucket.rows[i].load();
        if (has_string_keys()) free(KeyOf(row_id));
        if (!has_string_values()) continue;
        const std::byte* row = RowAt(row_id);
        for (int64_t j = 0; j < spec.dim; ++j) free(LoadBlob(row + j * sizeof(Blob*)));
      }
    }
  }
}

Status TableState::Initialize() {
  if (tiers != nullptr) TFRA_RETURN_IF_ERROR(tiers->Open());
  const uint64_t keys = static_cast<uint64_t>(spec.initial_capacity);
  for (uint32_t s = 0; s < kStripes; ++s) {
    TFRA_RETURN_IF_ERROR(stripes[s].Create(s, has_string_keys(), &arena, KeysPerStripe(keys),
                                           {bounds != nullptr, spec.metadata},
                                           bounds == nullptr ? 0 : bounds->stripe_keys()));
  }
  return Status::Ok();
}

template <typename Do>
void TableState::ForEachLock(ForkLevel level, Do&& act) {
  if (level == ForkLevel::kArena) return act(arena.mutex());
  const bool demoting = level == ForkLevel::kDemoting;
  for (uint32_t s = 0; s < kStripes && !(demoting && tiers == nullptr); ++s) {
    act(demoting ? tiers->stripe(s).demoting : stripes[s].mutex());
  }
}

void TableState::LockAllForFork() {
  TheTables().mutex.lock();
  for (const ForkLevel level : {ForkLevel::kDemoting, ForkLevel::kIndex, ForkLevel::kArena}) {
    for (TableState* table : TheTables().tables) {
      table->ForEachLock(level, [](std::mutex& mutex) { mutex.lock(); });
    }
  }
}

void TableState::UnlockAllAfterFork() {
  for (const ForkLevel level : {ForkLevel::kArena, ForkLevel::kIndex, ForkLevel::kDemoting}) {
    for (TableState* table : TheTables().tables) {
      table->ForEachLock(level, [](std::mutex& mutex) { mutex.unlock(); });
    }
  }
  TheTables().mutex.unlock();
}

uint64_t TableState::size() const {
  uint64_t total = 0;
  for (uint32_t s = 0; s < kStripes; ++s) total += stripes[s].size();
  // Stripes are counted one after the other. Meanwhile a key may leave a stripe that was counted,
  // and another key may enter a stripe that was not.
  return bounds == nullptr ? total : std::min(total, bounds->max_capacity());
}

uint64_t TableState::index_steps() const {
  uint64_t steps = 0;
  for (uint32_t s = 0; s < kStripes; ++s) {
    std::lock_guard lock(stripes[s].mutex());
    steps += stripes[s].steps_taken();
  }
  return steps;
}

Status TableState::CheckKeys(const KeyBatch& keys) const {
  if ((keys.type == KeyType::kString) != has_string_keys()) {
    return Status::WrongType(std::string("expected ") + (has_string_keys() ? "string" : "int64") +
                             " keys, received " + (has_string_keys() ? "int64" : "string") +
                             " keys");
  }
  TFRA_RETURN_IF_ERROR(CheckBatchSize(keys));
  return has_string_keys() ? CheckStrings(keys.strings, keys.size, "key") : Status::Ok();
}

Status TableState::CheckBounded(const char* what) const {
  if (bounds != nullptr) return Status::Ok();
  return Status::InvalidArgument(std::string(what) +
                                 " needs a table with a max_capacity, received one without");
}

Status TableState::CheckScores(const Scores& scores) const {
  if (scores.kind == Scores::kNone) return Status::Ok();
  TFRA_RETURN_IF_ERROR(CheckBounded("writing with scores"));
  return bounds->CheckScores(scores);
}

Status TableState::CheckMetadata(const char* what) const {
  if (spec.metadata) return Status::Ok();
  return Status::InvalidArgument(std::string(what) +
                                 " needs a table with metadata, received one without");
}

Status TableState::CheckStrings(const std::string_view* strings, size_t n, const char* what) const {
  for (size_t i = 0; i < n; ++i) {
    if (strings[i].size() <= Blob::kMaxSize) continue;
    return Status::InvalidArgument(std::string("expected a string ") + what + " of at most " +
                                   std::to_string(Blob::kMaxSize) + " bytes, received one of " +
                                   std::to_string(strings[i].size()));
  }
  return Status::Ok();
}

void TableState::DropStrings(uint32_t row_id, Tally* tally) const {
  const auto drop = [&](Blob* blob) {
    if (blob == nullptr) return;
    tally->string_bytes -= static_cast<int64_t>(blob->allocated_bytes());
    tally->garbage.push_back(Blob::AsRetired(blob));
  };
  if (has_string_keys()) drop(KeyOf(row_id));
  if (!has_string_values()) return;
  const std::byte* row = RowAt(row_id);
  for (int64_t j = 0; j < spec.dim; ++j) drop(LoadBlob(row + j * sizeof(Blob*)));
}

void TableState::RemoveEntries(Stripe* stripe, const Stripe::Entry* entries, size_t count,
                               Tally* tally) const {
  PrepareDrop(stripe, count, tally);
  uint64_t left = stripe->size();
  stripe->Erase(entries, count);
  for (size_t i = 0; i < count; ++i) {
    if (bounds != nullptr) bounds->GiveRoom(left--);
    DropStrings(entries[i].row(), tally);
    DropRow(stripe, entries[i].row(), tally);
  }
}

Status TableState::StartRow(Stripe* stripe, uint32_t row) const {
  const Status status = tiers->Start(row);
  if (!status.ok()) stripe->GiveRow(row);
  return status;
}

void TableState::DropRow(Stripe* stripe, uint32_t row_id, Tally* tally) const {
  if (IsSlow(row_id)) {
    tally->records.push_back(RecordOf(row_id));
    tiers->stripe(stripe->number()).slow.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  if (tiers != nullptr) {
    uint32_t& mark = tiers->Mark(row_id);
    if (const uint32_t record = RowTiers::OwnRecord(mark); record != RowTiers::kNoRecord) {
      tally->records.push_back(record);
    }
    mark = RowTiers::kNoRecord | RowTiers::kDirty;
  }
  stripe->GiveRow(row_id);
}

Status TableState::Clear() try {
  const StripeLocks locks(stripes.get(), kAllStripes);
  Tally tally;
  // Allocate all memory before the first change.
  tally.garbage.reserve(size() * StringsPerRow());
  if (tiers != nullptr) tally.records.reserve(size());
  for (uint32_t s = 0; s < kStripes; ++s) GrowBy(&stripes[s].free_rows(), stripes[s].size());
  for (uint32_t s = 0; s < kStripes; ++s) {
    Stripe& stripe = stripes[s];
    tally.removals += stripe.size();
    stripe.Clear([&](uint32_t row) {
      DropStrings(row, &tally);
      DropRow(&stripe, row, &tally);
    });
  }
  if (bounds != nullptr) bounds->Clear();
  if (admission != nullptr) admission->Clear();
  Count(std::move(tally));
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status TableState::ExportAdmission(AdmissionState* to) const try {
  *to = AdmissionState();
  if (admission == nullptr) return Status::Ok();
  const StripeLocks locks(stripes.get(), kAllStripes);
  admission->Save(to);
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status TableState::CheckAdmission(const AdmissionState& from) const {
  if (admission != nullptr) return admission->Check(from);
  if (from.seen.empty() && from.filter.empty()) return Status::Ok();
  return Status::InvalidArgument(
      "expected no state of admission in a table that lets every key in, received one");
}

Status TableState::RestoreAdmission(const AdmissionState& from, uint32_t partition,
                                    uint32_t partitions) try {
  if (partition >= partitions) {
    return Status::InvalidArgument("expected a partition below " + std::to_string(partitions) +
                                   ", received " + std::to_string(partition));
  }
  TFRA_RETURN_IF_ERROR(CheckAdmission(from));
  if (admission == nullptr) return Status::Ok();
  const StripeLocks locks(stripes.get(), kAllStripes);
  admission->Load(from, partition, partitions);
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

void TableState::CopyHistory(const TableState& other) {
  const StripeLocks locks(other.stripes.get(), kAllStripes);
  if (admission != nullptr) admission = other.admission->Clone();
  for (size_t k = 0; k < kCounterCount; ++k) counters_[k].store(other.counters_[k].load());
}

void TableState::AddHistory(const TableState& former) {
  Tally removed;
  removed.removals = former.size();
  Count(std::move(removed));
  for (size_t k = 0; k < kCounterCount; ++k) counters_[k].fetch_add(former.counters_[k].load());
}

Status CheckCapacity(int64_t keys) {
  if (keys >= 0 && keys <= kMaxKeys) return Status::Ok();
  return Status::InvalidArgument("expected a capacity between 0 and " + std::to_string(kMaxKeys) +
                                 " keys, received " + std::to_string(keys));
}

Status TableState::Reserve(int64_t keys) try {
  TFRA_RETURN_IF_ERROR(CheckCapacity(keys));
  if (bounds != nullptr) keys = std::min(keys, spec.bound.max_capacity);
  const uint64_t each = KeysPerStripe(static_cast<uint64_t>(keys));
  for (uint32_t s = 0; s < kStripes; ++s) {
    std::lock_guard lock(stripes[s].mutex());
    TFRA_RETURN_IF_ERROR(stripes[s].Grow(each));
  }
  if (tiers != nullptr) {
    keys = std::min(keys, static_cast<int64_t>(tiers->share() * kStripes));
  }
  const uint64_t rows = arena.rows();
  return rows < static_cast<uint64_t>(keys) ? arena.Reserve(keys - rows) : Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status TableState::Shrink() try {
  std::vector<std::unique_lock<std::mutex>> demoting;
  for (uint32_t s = 0; tiers != nullptr && s < kStripes; ++s) {
    demoting.emplace_back(tiers->stripe(s).demoting);
  }
  const StripeLocks locks(stripes.get(), kAllStripes);
  for (uint32_t s = 0; s < kStripes; ++s) {
    Stripe& stripe = stripes[s];
    if (stripe.BucketsFor(stripe.size()) < stripe.bucket_count()) {
      TFRA_RETURN_IF_ERROR(stripe.Rebuild(stripe.size()));
    }
  }
  if (admission != nullptr) admission->Shrink();
  CompactRows();
  return tiers == nullptr ? Status::Ok() : tiers->records().Trim();
}
TFRA_CATCH_BAD_ALLOC

void TableState::CompactRows() {
  const uint64_t slow = tiers == nullptr ? 0 : tiers->slow_rows();
  const uint32_t live = static_cast<uint32_t>(size() - slow);
  size_t free = 0;
  for (uint32_t s = 0; s < kStripes; ++s) free += stripes[s].free_rows().size();
  std::vector<uint32_t> gaps;
  gaps.reserve(free);
  for (uint32_t s = 0; s < kStripes; ++s) {
    for (uint32_t row : stripes[s].free_rows()) {
      if (row < live) gaps.push_back(row);
    }
    stripes[s].FreeFreeRows();
  }
  for (uint32_t s = 0; s < kStripes; ++s) {
    const BucketArray* array = stripes[s].array();
    for (uint64_t b = 0; b < array->count; ++b) {
      Bucket& bucket = array->buckets[b];
      const uint32_t state = bucket.BeginWrite();
      for (uint32_t i = 0; i < kBucketEntries; ++i) {
        const uint32_t row = bucket.rows[i].load(std::memory_order_relaxed);
        if (!(state >> i & 1) || row < live || IsSlow(row)) continue;
        const uint32_t gap = gaps.back();
        gaps.pop_back();
        EditRow(RowAt(gap), layout.stride,
                [&](std::byte* to) { std::memcpy(to, RowAt(row), layout.stride); });
        if (tiers != nullptr) tiers->Mark(gap) = tiers->Mark(row);
        if (tiers != nullptr) tiers->SetRecency(gap, tiers->Recency(row));
        bucket.rows[i].store(gap, std::memory_order_relaxed);
      }
      bucket.EndWrite(state);
    }
  }
  arena.Truncate(live);
}

uint32_t TableState::clock() const {
  const int64_t fixed = clock_.load(std::memory_order_relaxed);
  return static_cast<uint32_t>(fixed >= 0 ? fixed : std::time(nullptr));
}

void TableState::Count(Tally tally) const {
  for (size_t k = 0; kCounters && k < kCounterCount; ++k) {
    const uint64_t amount = tally.*kCounterFields[k].field;
    if (amount != 0) counters_[k].fetch_add(amount, std::memory_order_relaxed);
  }
  if (tally.string_bytes != 0)
    string_bytes_.fetch_add(tally.string_bytes, std::memory_order_relaxed);
  if (!tally.garbage.empty()) Retire(std::move(tally.garbage));
  if (!tally.records.empty()) tiers->records().RetireRecords(std::move(tally.records));
}

TableStats TableState::stats() const {
  TableStats stats;
  stats.size = size();
  for (uint32_t s = 0; s < kStripes; ++s) {
    stats.capacity += stripes[s].limit();
    stats.index_bytes += stripes[s].index_bytes();
    stats.reseeds += stripes[s].reseeds();
  }
  if (bounds != nullptr) {
    stats.capacity = std::min(stats.capacity, bounds->max_capacity());
    stats.index_bytes += bounds->memory_bytes();
  }
  stats.row_bytes = uint64_t{arena.rows()} * layout.stride;
  stats.string_bytes = static_cast<uint64_t>(std::max<int64_t>(0, string_bytes_.load()));
  for (size_t k = 0; k < kCounterCount; ++k) stats.*kCounterFields[k].field = counters_[k].load();
  if (admission != nullptr) {
    stats.waiting = admission->waiting();
    stats.admission_bytes = admission->bytes();
  }
  if (tiers != nullptr) {
    const RowFile& file = tiers->records().file();
    stats.io_reads = file.reads();
    stats.io_writes = file.writes();
    stats.bytes_read = file.bytes_read();
    stats.bytes_written = file.bytes_written();
    stats.fast_bytes = stats.row_bytes;
    stats.slow_bytes = file.size();
    stats.index_bytes += tiers->record_bytes();
  }
  return stats;
}

}  // namespace tfra
