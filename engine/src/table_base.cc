#include "table_base.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <ctime>
#include <iterator>
#include <string>

#include "blob.h"
#include "epoch.h"
#include "fork.h"
#include "key_parts.h"

namespace tfra {
namespace {

using C = TableCounters;
// All of them, in the order in which a table stores them.
constexpr uint64_t C::* kCounterList[] = {
    &C::hits,          &C::misses,    &C::inserts,   &C::updates,    &C::removals,
    &C::ignored,       &C::refused,   &C::evictions, &C::rejections, &C::expirations,
    &C::restrict_runs, &C::fast_hits, &C::slow_hits};

}  // namespace

uint64_t KeysPerShard(uint64_t keys) {
  const double mean = static_cast<double>(keys) / kShards;
  return static_cast<uint64_t>(std::ceil(mean + 4 * std::sqrt(mean)));
}

TableBase::TableBase(const TableOptions& options, Initializer initializer)
    : Table(options),
      initializer_(std::move(initializer)),
      layout_(options),
      arena_(layout_.stride),
      tiers_(options.tiers.fast_bytes > 0
                 ? new RowTiers(options.tiers, layout_.stride, options.key_type == KeyType::kString)
                 : nullptr),
      shards_(new Shard[kShards]),
      bounds_(options.bound.max_capacity > 0 ? new Bounds(options.bound) : nullptr),
      admission_(Admission::Create(options.admission, options.key_type == KeyType::kString)) {
  EnterTable(this);
}

TableBase::~TableBase() {
  LeaveTable(this);
  if (!has_string_keys() && !has_string_values()) return;
  Tally tally;
  for (uint32_t s = 0; s < kShards; ++s) {
    const BucketArray* array = shards_[s].array();
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
  const uint64_t keys = static_cast<uint64_t>(options_.initial_capacity);
  for (uint32_t s = 0; s < kShards; ++s) {
    TFRA_RETURN_IF_ERROR(shards_[s].Create(s, has_string_keys(), &arena_, KeysPerShard(keys),
                                           {bounds_ != nullptr, options_.metadata},
                                           bounds_ == nullptr ? 0 : bounds_->shard_keys()));
  }
  return Status::Ok();
}

template <typename Do>
void TableBase::ForEachLock(ForkLevel level, Do&& act) {
  if (level == ForkLevel::kArena) return act(arena_.mutex());
  const bool demoting = level == ForkLevel::kDemoting;
  for (uint32_t s = 0; s < kShards && !(demoting && tiers_ == nullptr); ++s) {
    act(demoting ? tiers_->shard(s).demoting : shards_[s].mutex());
  }
}

void TableBase::LockForFork(ForkLevel level) {
  ForEachLock(level, [](std::mutex& mutex) { mutex.lock(); });
}

void TableBase::UnlockForFork(ForkLevel level) {
  ForEachLock(level, [](std::mutex& mutex) { mutex.unlock(); });
}

std::vector<SlotInfo> TableBase::slots() const {
  std::vector<SlotInfo> slots;
  for (const SlotSpec& slot : layout_.slots) {
    slots.push_back({slot.name, slot.scalar ? 1 : static_cast<size_t>(options_.dim)});
  }
  return slots;
}

size_t TableBase::slot_elements() const {
  return layout_.slots_bytes / SizeOf(ComputeType(options_.value_type));
}

uint64_t TableBase::size() const {
  uint64_t size = 0;
  for (uint32_t s = 0; s < kShards; ++s) size += shards_[s].size();
  // Shards are read one after the other: a key may have left one and another come to the next.
  return bounds_ == nullptr ? size : std::min(size, bounds_->max_capacity());
}

uint64_t TableBase::index_steps() const {
  uint64_t steps = 0;
  for (uint32_t s = 0; s < kShards; ++s) {
    std::lock_guard lock(shards_[s].mutex());
    steps += shards_[s].steps_taken();
  }
  return steps;
}

Status TableBase::CheckKeys(const KeyBatch& keys) const {
  if (keys.type != options_.key_type) {
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
  if (options_.metadata) return Status::Ok();
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

void TableBase::DropStrings(uint32_t number, Tally* tally) const {
  const auto drop = [&](Blob* blob) {
    if (blob == nullptr) return;
    tally->string_bytes -= static_cast<int64_t>(blob->allocated_bytes());
    tally->garbage.push_back(Blob::AsRetired(blob));
  };
  if (has_string_keys()) drop(KeyOf(number));
  if (!has_string_values()) return;
  const std::byte* row = RowAt(number);
  for (int64_t j = 0; j < options_.dim; ++j) drop(LoadBlob(row + j * sizeof(Blob*)));
}

void TableBase::RemoveEntries(Shard* shard, const Shard::Entry* entries, size_t count,
                              Tally* tally) const {
  PrepareDrop(shard, count, tally);
  uint64_t size = shard->size();
  shard->Erase(entries, count);
  for (size_t i = 0; i < count; ++i) {
    if (bounds_ != nullptr) bounds_->GiveRoom(size--);
    DropStrings(entries[i].row(), tally);
    DropRow(shard, entries[i].row(), tally);
  }
}

Status TableBase::StartRow(Shard* shard, uint32_t row) const {
  const Status status = tiers_->Start(row);
  if (!status.ok()) shard->GiveRow(row);
  return status;
}

void TableBase::DropRow(Shard* shard, uint32_t number, Tally* tally) const {
  if (IsSlow(number)) {
    tally->slots.push_back(SlotOf(number));
    tiers_->shard(shard->number()).slow.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  if (tiers_ != nullptr) {
    uint32_t& mark = tiers_->Mark(number);
    if (const uint32_t slot = RowTiers::OwnSlot(mark); slot != RowTiers::kNoSlot) {
      tally->slots.push_back(slot);
    }
    mark = RowTiers::kNoSlot | RowTiers::kDirty;
  }
  shard->GiveRow(number);
}

Status TableBase::Clear() try {
  const ShardLocks locks(shards_.get(), kAllShards);
  Tally tally;
  // All memory is taken before the first change.
  tally.garbage.reserve(size() * StringsPerRow());
  if (tiers_ != nullptr) tally.slots.reserve(size());
  for (uint32_t s = 0; s < kShards; ++s) GrowBy(&shards_[s].free_rows(), shards_[s].size());
  for (uint32_t s = 0; s < kShards; ++s) {
    Shard& shard = shards_[s];
    tally.removals += shard.size();
    shard.Clear([&](uint32_t row) {
      DropStrings(row, &tally);
      DropRow(&shard, row, &tally);
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
  const ShardLocks locks(shards_.get(), kAllShards);
  admission_->Save(state);
  return Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status TableBase::RestoreAdmission(const AdmissionState& state, uint32_t part, uint32_t parts) try {
  if (part >= parts) {
    return Status::InvalidArgument("expected the number of a part below " + std::to_string(parts) +
                                   ", received " + std::to_string(part));
  }
  if (admission_ == nullptr) {
    if (state.seen.empty() && state.filter.empty()) return Status::Ok();
    return Status::InvalidArgument(
        "expected no state of admission in a table that lets every key in, received one");
  }
  const ShardLocks locks(shards_.get(), kAllShards);
  return admission_->Load(state, part, parts);
}
TFRA_CATCH_BAD_ALLOC

void TableBase::CopyHistory(TableBase* other) {
  const ShardLocks locks(other->shards_.get(), kAllShards);
  clock_.store(other->clock_.load());
  if (admission_ != nullptr) admission_ = other->admission_->Clone();
  for (size_t k = 0; k < kCounterCount; ++k) counters_[k].store(other->counters_[k].load());
}

Status TableBase::Reserve(int64_t keys) try {
  TFRA_RETURN_IF_ERROR(CheckCapacity(keys));
  if (bounds_ != nullptr) keys = std::min(keys, options_.bound.max_capacity);
  const uint64_t each = KeysPerShard(static_cast<uint64_t>(keys));
  for (uint32_t s = 0; s < kShards; ++s) {
    std::lock_guard lock(shards_[s].mutex());
    TFRA_RETURN_IF_ERROR(shards_[s].Grow(each));
  }
  if (tiers_ != nullptr) {
    keys = std::min(keys, static_cast<int64_t>(tiers_->share() * kShards));
  }
  const uint64_t rows = arena_.rows();
  return rows < static_cast<uint64_t>(keys) ? arena_.Reserve(keys - rows) : Status::Ok();
}
TFRA_CATCH_BAD_ALLOC

Status TableBase::Shrink() try {
  std::vector<std::unique_lock<std::mutex>> demoting;
  for (uint32_t s = 0; tiers_ != nullptr && s < kShards; ++s) {
    demoting.emplace_back(tiers_->shard(s).demoting);
  }
  const ShardLocks locks(shards_.get(), kAllShards);
  for (uint32_t s = 0; s < kShards; ++s) {
    Shard& shard = shards_[s];
    if (shard.BucketsFor(shard.size()) < shard.bucket_count()) {
      TFRA_RETURN_IF_ERROR(shard.Rebuild(shard.size()));
    }
  }
  if (admission_ != nullptr) admission_->Shrink();
  CompactRows();
  return tiers_ == nullptr ? Status::Ok() : tiers_->slots().Trim();
}
TFRA_CATCH_BAD_ALLOC

void TableBase::CompactRows() {
  const uint64_t slow = tiers_ == nullptr ? 0 : tiers_->slow_rows();
  const uint32_t live = static_cast<uint32_t>(size() - slow);
  size_t free = 0;
  for (uint32_t s = 0; s < kShards; ++s) free += shards_[s].free_rows().size();
  std::vector<uint32_t> gaps;
  gaps.reserve(free);
  for (uint32_t s = 0; s < kShards; ++s) {
    for (uint32_t row : shards_[s].free_rows()) {
      if (row < live) gaps.push_back(row);
    }
    std::vector<uint32_t>().swap(shards_[s].free_rows());
  }
  for (uint32_t s = 0; s < kShards; ++s) {
    const BucketArray* array = shards_[s].array();
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
        if (tiers_ != nullptr) tiers_->SetHeat(gap, tiers_->Heat(row));
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
  if (!tally.slots.empty()) tiers_->slots().RetireSlots(std::move(tally.slots));
}

TableStats TableBase::stats() const {
  TableStats stats;
  stats.size = size();
  for (uint32_t s = 0; s < kShards; ++s) {
    stats.capacity += shards_[s].limit();
    stats.index_bytes += shards_[s].index_bytes();
    stats.reseeds += shards_[s].reseeds();
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
    const RowFile& file = tiers_->slots().file();
    stats.io_reads = file.reads();
    stats.io_writes = file.writes();
    stats.bytes_read = file.bytes_read();
    stats.bytes_written = file.bytes_written();
    stats.fast_bytes = stats.row_bytes;
    stats.slow_bytes = file.size();
    stats.index_bytes += tiers_->slot_bytes();
  }
  return stats;
}

}  // namespace tfra
