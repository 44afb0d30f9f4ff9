// The table itself, for one kind of keys. Its three parts: table_read.cc, table_write.cc,
// table_scan.cc.
#pragma once

#include <vector>

#include "batch.h"
#include "blob.h"
#include "keys.h"
#include "partition.h"
#include "table_base.h"

namespace tfra {

template <typename Keys>
class TableOf : public TableBase {
 public:
  TableOf(const TableOptions& options, Initializer initializer)
      : TableBase(options, std::move(initializer), &Keys::Hash) {}

  Status Lookup(const KeyBatch& keys, const Defaults& defaults, void* values,
                bool* exists) override;
  Status Contains(const KeyBatch& keys, bool* exists) override;

  Status Assign(const KeyBatch& keys, const void* values, const void* slots,
                const RowMetadata* metadata) override;
  Status Accumulate(const KeyBatch& keys, const void* deltas, const bool* exists) override;
  Status ApplyGradients(const KeyBatch& keys, const void* gradients, ValueType gradient_type,
                        const UpdateParams& params) override;
  Status Remove(const KeyBatch& keys, size_t* removed) override;

  Status Export(size_t max_rows, ExportCursor* cursor, ExportBatch* batch) override;
  Status ExportAll(ExportBatch* batch) override;
  Status CountIf(const MetadataPredicate& predicate, uint64_t* count) override;
  Status RemoveIf(const MetadataPredicate& predicate, uint64_t* removed) override;
  Status SelectIf(const MetadataPredicate& predicate, ExportBatch* batch) override;

 private:
  // A search for a key that takes no lock.
  struct Probe {
    enum Progress : uint32_t {
      kMissing,  // The key is not there.
      kFound,    // `row` is the key's (a string's: that of a key with its hash), if still valid.
      kFurther,  // Not in the buckets so far: `bucket` is the next to look at.
      kBusy,     // A writer holds the bucket.
    };
    const BucketArray* array;
    Bucket* bucket;
    std::byte* row;
    uint32_t state;  // Of the bucket, when it was searched.
    Progress progress;
  };

  // --- table_find.h. REQUIRES, for each: inside an EpochGuard.

  // Starts the search for a key.
  Probe Locate(uint64_t word) const;
  // Searches one bucket more.
  static Probe Search(Probe probe, uint64_t word, const RowArena::Map& rows);
  // Searches on to the end.
  static Probe SearchOn(Probe probe, uint64_t word, const RowArena::Map& rows);
  // True if nothing that was read from the probe's bucket and row since Find has changed.
  bool StillValid(const Probe& probe, uint64_t word) const;
  // Finds a key whatever other threads do, and calls read(row) until it has read a whole row: the
  // last call counts. Returns false if the key is not there.
  template <typename Read>
  bool ReadRow(uint64_t word, std::string_view bytes, Read&& read) const;
  // Whether Find found this very key, and the entry is still there.
  bool IsHit(const Probe& probe, uint64_t word, std::string_view bytes) const;
  // Calls visit(i, probe) for the keys that `order` names, or for key numbers from `begin` to
  // `end`, in order, pipelined. `row_bytes` of each row are prefetched.
  template <bool kForWrite, typename Visit>
  void Probes(const Words& words, size_t begin, size_t end, size_t row_bytes,
              const uint32_t* order, Visit&& visit) const;

  // --- table_read.cc

  bool ContainsOne(uint64_t word, std::string_view bytes) const;
  void LookupRows(const Words& words, size_t begin, size_t end, const Defaults& defaults,
                  std::byte* values, bool* exists, Tally* tally) const;
  bool CopyValue(uint64_t word, std::string_view bytes, std::byte* out) const;
  void LookupStrings(const Words& words, size_t begin, size_t end, const Defaults& defaults,
                     std::string* values, bool* exists, Tally* tally) const;

  // --- table_write.cc

  // Writes each key of the partition. An Op says what that does to a row: see row_ops.h.
  template <typename Op>
  Status Write(const Words& words, const Partition& partition, const Op& prototype);
  template <typename Op>
  Status WriteKeys(const Words& words, const uint32_t* order, size_t count, Op* op, Tally* tally);
  // The same for one key, with the shard's mutex.
  template <typename Op>
  Status WriteSlowly(const Words& words, size_t i, Op* op, Tally* tally);
  bool RemoveOne(uint64_t word, std::string_view bytes, Tally* tally);

  // Makes sure that the keys of a batch, as far as they are missing, can be inserted without
  // running out of memory half-way.
  Status PrepareInserts(const Words& words, const Partition& partition);
  // Adds to missing[shard] the keys of the part that are not in the table, in the shards that
  // `counted` names.
  void CountMissing(const Words& words, const Partition& partition, size_t part,
                    const std::vector<bool>& counted, std::vector<uint64_t>* missing);

  // Whether a row belongs to a string key. REQUIRES: the row cannot change owner meanwhile.
  bool HasKey(const std::byte* row, std::string_view bytes) const {
    if constexpr (Keys::kStrings) {
      return LoadBlob(row + layout_.key_offset)->view() == bytes;
    } else {
      return true;
    }
  }

  // --- table_scan.cc

  // Adds the rows of the keys whose search starts in one bucket of a shard and whose hash is `from`
  // or more. Returns false, with some of them added, if another thread interfered.
  bool ExportBucket(const Shard& shard, const BucketArray& array, uint64_t bucket, uint64_t from,
                    ExportBatch* batch) const;
  void AppendRow(uint64_t word, const std::byte* row, ExportBatch* batch) const;
  void Truncate(size_t rows, ExportBatch* batch) const;
  // Calls visit(shard number, entry, metadata) for every row, a shard at a time, with its mutex.
  template <typename Visit>
  Status VisitMetadata(Visit&& visit);
};

}  // namespace tfra
