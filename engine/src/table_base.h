// What every in-memory table consists of, whatever its keys: rows, index, counters.
#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <vector>

#include "admission.h"
#include "epoch.h"
#include "initializer.h"
#include "row_arena.h"
#include "row_layout.h"
#include "scores.h"
#include "shard.h"
#include "tfra/table.h"

namespace tfra {

// Around the body of every call of the contract: running out of memory is a Status.
#define TFRA_CATCH_BAD_ALLOC                                               \
  catch (const std::bad_alloc&) {                                          \
    return Status::OutOfMemory("out of memory for the needs of one call"); \
  }

// Counting is always on. Only bench/counters.py, which measures what it costs, builds without.
#ifdef TFRA_NO_COUNTERS
inline constexpr bool kCounters = false;
#else
inline constexpr bool kCounters = true;
#endif

// More rows than row numbers can tell apart, with room for sums.
inline constexpr int64_t kMaxKeys = (int64_t{1} << 32) - (int64_t{1} << 20);

Status CheckCapacity(int64_t keys);

// What a shard is likely to get of `keys` keys, with some room for chance.
uint64_t KeysPerShard(uint64_t keys);

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

  // Takes over what another table has counted and knows of keys that wait, and its clock. REQUIRES:
  // nobody else uses this one yet.
  void CopyHistory(TableBase* other);

 protected:
  // Events of one thread in one call, added up once at its end.
  struct Tally {
    uint64_t hits = 0, misses = 0, inserts = 0, updates = 0, removals = 0, ignored = 0;
    uint64_t refused = 0, evictions = 0, expirations = 0, restrict_runs = 0;
    uint64_t rejections = 0;
    int64_t string_bytes = 0;
    std::vector<Retired> garbage;  // Strings that left the table.
  };
  void Count(Tally tally);
  // Calls body(&tally) and counts what it did, also if memory runs out on the way.
  template <typename Body>
  void Counting(Body&& body) {
    Tally tally;
    try {
      body(&tally);
    } catch (const std::bad_alloc&) {
      Count(std::move(tally));
      throw;
    }
    Count(std::move(tally));
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
  std::byte* RowAt(uint32_t row) const { return arena_.At(row); }

  // Adds the strings that a row owns, after it left the index, to the tally's garbage.
  void DropStrings(const std::byte* row, Tally* tally) const;

  // How large the index of a shard has to be for so many more keys.
  uint64_t IndexedKeys(uint32_t shard, uint64_t more) const {
    const uint64_t size = shards_[shard].size();
    return bounds_ == nullptr ? size + more
                              : std::min(size + more, std::max(size, bounds_->shard_keys()));
  }

  // Takes entries of a bucket out, with their rows and strings; counting them is the caller's.
  // REQUIRES: the shard's mutex.
  void RemoveEntries(Shard* shard, Bucket* bucket, uint32_t entries, Tally* tally) const;
  void RemoveEntry(Shard* shard, Shard::Entry entry, Tally* tally) const {
    RemoveEntries(shard, entry.bucket, 1u << entry.index, tally);
  }

  // Constant after Initialize.
  const Initializer initializer_;
  const RowLayout layout_;

  RowArena arena_;
  std::unique_ptr<Shard[]> shards_;
  const std::unique_ptr<Bounds> bounds_;  // Or null: any number of keys.
  std::unique_ptr<Admission> admission_;  // Null: every key may enter.

 private:
  // Moves rows from the end of the arena into the gaps before. REQUIRES: all shard mutexes.
  void CompactRows();

  std::atomic<int64_t> clock_{-1};  // Negative: the time of day.
  std::atomic<uint64_t> hits_{0}, misses_{0}, inserts_{0}, updates_{0}, removals_{0}, ignored_{0};
  std::atomic<uint64_t> refused_{0}, evictions_{0}, expirations_{0}, restrict_runs_{0};
  std::atomic<uint64_t> rejections_{0};
  std::atomic<int64_t> string_bytes_{0};
};

}  // namespace tfra
