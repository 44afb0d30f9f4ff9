// Table: the Store of the engine, in memory and, if the spec says so, in a file.
//
// What Table adds to the contract of Store:
//
// Threads: lookups of rows in memory never wait for one another, nor for growth. A lookup that
// moves rows from the file to memory locks their stripes. A call uses up to NumThreads() threads of
// the engine's pool.
//
// Export: rows of one bucket of the index stay together, so a batch may be a little larger than
// asked for. If a stripe took a new seed since the last call, the rest of it comes in one batch.
//
// Capabilities: training(), scores() and upkeep() are there for every table. A call that a table
// cannot serve, such as the scores of a table without a bound, returns an error.
//
// Bounded tables (TableSpec::bound): size() never exceeds max_capacity. Every key has a score; each
// write renews it, reads do not. A key that is inserted into a full table evicts the candidate with
// the lowest score (one of them, if there are several); the row of that key goes with its slots and
// metadata. If the new key's own score is lower than that of every candidate, the key is rejected:
// it is not inserted, and what the call brings for it is dropped. Both are counted (TableStats).
//   Candidates: in a table of at most kExactCapacity keys, all keys. In a larger one, some 50 to 70
// keys with neighbouring hashes: those in 16 buckets of the index, from the new key's bucket on.
//   Full: size() is max_capacity. In a table of more than kExactCapacity keys, the keys of each
// stripe are also no more, and have room for no less, than chance would give them
// (four standard deviations): keys that come first, as in the order of an export, do not take the
// room of others.
//   Order: a call first writes to the keys that are in the table. Then it inserts the others one by
// one, in the order in which each first occurs. Equal keys count as one: it is inserted, or
// rejected, with the score that all its occurrences in the call make.
//   A key that was evicted after a lookup and is then updated (ApplyGradients, AddToRows) is a
// missing key like others: it starts from its initial value and slots, and evicts another key or is
// rejected.
//
// Tiered tables (TableSpec::tiers): rows beyond fast_bytes are in a file. All calls give the same
// results as without a file. The index, scores and the bytes of string keys are always in memory.
// Writing moves the rows of its keys to memory. Reading moves rows that are read repeatedly, or all
// rows it reads while there is much room. To make room, rows that were not used lately move to the
// file; among these, the ones with lower scores. Exports and passes over all rows move none. Except
// in rare races, no thread waits for the file while it holds what others need: threads whose rows
// are in memory go on. The file has no name: it is gone with the table, or with the process,
// however that ends.
//   Limits: values must be numbers (kInvalidArgument otherwise). The file holds at most 2^30 rows.
// fast_bytes counts for 4 rows in each stripe at least. A batch that needs more
// rows than fit takes memory for them until it is done; Shrink returns it to the operating system.
// A forked child cannot use the rows in the file (kIoError), only its parent can.
//
// Exceptions to "a call that fails has changed nothing": after them a part of the batch is stored,
// each row whole.
//   - A row of a tiered table that other threads move to the file meanwhile has to be read, and
//     that fails (kIoError).
//   - Memory runs out although room was made before the first change: because other threads insert
//     at the same time, because far more keys of a bounded table than others share the first bits
//     of their hashes, because not even a small allocation succeeds, or, with an admission rule,
//     because room is made only for keys that are admitted.
//   - AssignAndEvict reads evicted rows from the file at its end. If that fails, all is stored, and
//     the evicted values are zeros.
//   - Calls that remove rows by a rule may have removed some of them.
// If the file cannot take rows to make room (kStorageFull), writing fails and reading goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tfra/pooling.h"
#include "tfra/spec.h"
#include "tfra/status.h"
#include "tfra/store.h"
#include "tfra/table_stats.h"

namespace tfra {

// Training in place: rows are changed where they are, in one visit.
//
// Accumulate, AddToRows and AssignExisting act as if the keys were taken one by one in batch order.
// ApplyGradients first sums the gradients of equal keys, in batch order, and then takes one step
// for each distinct key. Results do not depend on the number of threads.
class TableTraining {
 public:
  // One optimizer step. gradients: (n, dim) of gradient_type, which is the value type or
  // ComputeType(value_type). Missing keys are inserted from their initial value first.
  virtual Status ApplyGradients(const KeyBatch& keys, const void* gradients,
                                ValueType gradient_type, const UpdateParams& params,
                                const Scores& scores = {}, NewKeys new_keys = NewKeys::kAdmit) = 0;

  // Adds to whole rows; missing keys are inserted from their initial value and slots first. deltas:
  // (n, dim). slots: (n, slot elements), or null. Values must be floating.
  virtual Status AddToRows(const KeyBatch& keys, const void* deltas, const void* slots,
                           const Scores& scores = {}, NewKeys new_keys = NewKeys::kAdmit) = 0;

  // deltas: (n, dim). exists: (n), what the caller last knew of each key. If the key is in the
  // table and exists is true: adds (bool: or). If the key is missing and exists is false: inserts
  // the delta as the value. Otherwise: leaves the key alone and counts it (exists_mismatch). With
  // NewKeys::kAdmit it prepares rows for an update that follows: inserting them does not count as a
  // write in their metadata.
  virtual Status Accumulate(const KeyBatch& keys, const void* deltas, const bool* exists,
                            const Scores& scores = {}, NewKeys new_keys = NewKeys::kInsert) = 0;

  // Looks up, and inserts missing keys with their default. values: (n, dim). exists: (n), or null;
  // which keys were found. Counts as a write for scores and metadata, and as a lookup for hits and
  // misses. A key that is rejected gets its default all the same.
  virtual Status FindOrInsert(const KeyBatch& keys, const Defaults& defaults, void* values,
                              bool* exists, const Scores& scores = {}) = 0;

  // Like Store::Assign, for keys that are in the table. Leaves the others alone and counts them
  // (exists_mismatch).
  virtual Status AssignExisting(const KeyBatch& keys, const void* values,
                                const void* slots = nullptr, const RowMetadata* metadata = nullptr,
                                const Scores& scores = {}) = 0;

 protected:
  ~TableTraining() = default;
};

// Tables of so many keys or fewer evict exactly: every key is a candidate. Calls that insert into
// one of them take turns.
inline constexpr int64_t kExactCapacity = 2048;

// Scores reach from 0 to this; larger ones are stored as this one.
inline constexpr uint64_t kMaxScore = UINT64_MAX - 1;

using ScorePredicate = std::function<bool(uint64_t score)>;

// Scores of bounded tables.
//
// Calls with a predicate make one pass over the scores of all keys, on several threads: the
// predicate is called by all of them, and must neither throw nor use the table. Reading threads go
// on; writing threads wait when they come to a stripe that is being passed.
//
// REQUIRES (kInvalidArgument otherwise), except for AssignAndEvict and epochs: a bounded table.
class TableScores {
 public:
  // scores: (n), 0 for keys that are not in the table. exists: (n), or null. Changes no score.
  virtual Status Lookup(const KeyBatch& keys, uint64_t* scores, bool* exists) = 0;
  // Gives keys that are in the table these scores: (n), whatever the strategy. Leaves the others
  // alone and counts them (exists_mismatch).
  virtual Status Assign(const KeyBatch& keys, const uint64_t* scores) = 0;

  // Like Store::Assign; also returns the evicted rows and the rejected keys. evicted: with the
  // scores from before; a row that this call itself inserted may be among them. rejected: (n), or
  // null. In a table without a bound, no key is evicted or rejected.
  virtual Status AssignAndEvict(const KeyBatch& keys, const void* values, const void* slots,
                                const RowMetadata* metadata, const Scores& scores,
                                ExportBatch* evicted, bool* rejected) = 0;

  virtual Status CountIf(const ScorePredicate& predicate, uint64_t* count) = 0;
  virtual Status RemoveIf(const ScorePredicate& predicate, uint64_t* removed) = 0;
  // Whole rows, with their scores.
  virtual Status ExportIf(const ScorePredicate& predicate, ExportBatch* batch) = 0;

  // The epoch in the scores of the calls that start from now on. A smaller one than before makes
  // them lower than older scores. Without effect, and always 0, if the strategy has no epochs.
  virtual void SetEpoch(uint32_t epoch) = 0;
  virtual uint32_t epoch() const = 0;

 protected:
  ~TableScores() = default;
};

using MetadataPredicate = std::function<bool(const RowMetadata&)>;

// Which rows stay when there are too many. Rows that are equal in this are ranked by their hashes,
// not by the order in which they came.
enum class Ranking : uint8_t {
  kNewest,        // By the time of the last write, then by the number of writes.
  kMostFrequent,  // By the number of writes, then by the time of the last one.
};

// Which rows have expired: those to which one of these conditions applies.
struct ExpiryRule {
  uint32_t written_before = 0;  // The last write was before this time; 0: no condition.
  // The L2 norm of the value is below this although the row was written `norm_writes` times; 0: no
  // condition.
  double norm_below = 0.0;
  uint32_t norm_writes = 1;
};

// Which rows are still needed: their metadata, the rows that leave, and the keys that wait to
// enter.
//
// Calls that look at all rows make passes over their metadata, as TableScores does over scores.
//
// REQUIRES (kInvalidArgument otherwise), except where a call says less: TableSpec::metadata.
class TableUpkeep {
 public:
  // metadata: (n), zeros for keys that are not in the table. exists: (n), or null.
  virtual Status LookupMetadata(const KeyBatch& keys, RowMetadata* metadata, bool* exists) = 0;
  // Renews the metadata of rows, as one write; equal keys count as one. Keys that are admitted get
  // their initial value; in a table of string values no key is inserted.
  virtual Status Touch(const KeyBatch& keys, NewKeys new_keys = NewKeys::kAdmit) = 0;

  virtual Status CountIf(const MetadataPredicate& predicate, uint64_t* count) = 0;
  virtual Status RemoveIf(const MetadataPredicate& predicate, uint64_t* removed) = 0;
  // Keys only: the other vectors of `batch` stay empty.
  virtual Status SelectIf(const MetadataPredicate& predicate, ExportBatch* batch) = 0;

  // Leaves the `keep` best rows and evicts the others. Takes two or three passes, and 4 bytes for
  // each row that leaves. Exact if no other thread writes meanwhile; rows that others write while
  // it runs may stay in addition.
  virtual Status Restrict(uint64_t keep, Ranking ranking, uint64_t* evicted) = 0;
  // Removes keys, counted as evictions and as a run of Restrict: for callers that rank keys
  // themselves. Needs no metadata.
  virtual Status Evict(const KeyBatch& keys, size_t* evicted) = 0;
  // Removes rows that have expired, in one pass for each condition; also forgets waiting keys last
  // seen before `written_before`. REQUIRES: metadata, unless the rule is only about norms, from 0
  // writes on (kInvalidArgument otherwise); floating values, if it is about norms (kWrongType
  // otherwise).
  virtual Status Expire(const ExpiryRule& rule, uint64_t* expired) = 0;
  // One pass. Tables without metadata have only the histogram of norms.
  virtual Status Histograms(RowHistograms* histograms) = 0;

  // What is known of keys that have not entered: to be saved, and restored into a table with the
  // same AdmissionSpec, where it replaces what is known there. `state` may hold the states of
  // several tables one after the other, which had different keys. If it has as many filters as
  // `partitions`, only that of `partition` is used. REQUIRES (kInvalidArgument otherwise):
  // partition < partitions, and CheckAdmission. Needs no metadata.
  virtual Status ExportAdmission(AdmissionState* state) = 0;
  // kInvalidArgument unless the state is one of the table's kind of rule.
  virtual Status CheckAdmission(const AdmissionState& state) = 0;
  virtual Status RestoreAdmission(const AdmissionState& state, uint32_t partition = 0,
                                  uint32_t partitions = 1) = 0;

  // The time written into metadata: seconds since 1970, or what SetClock said last.
  virtual uint32_t clock() const = 0;
  virtual void SetClock(uint32_t now) = 0;

 protected:
  ~TableUpkeep() = default;
};

// An optimizer slot of a row: `elements` numbers of ComputeType(value_type), dim or 1.
struct SlotInfo {
  std::string name;
  size_t elements;
};

// Checks a rule as Table::Create does. slot_elements: of all slots of one row together.
Status CheckRule(const RuleSpec& rule, ValueType value_type, int64_t dim, size_t* slot_elements);
// Checks a step as ApplyGradients of a table with that rule does.
Status CheckStep(const RuleSpec& rule, const UpdateParams& params, ValueType value_type,
                 ValueType gradient_type);

class Table : public Store {
 public:
  static Status Create(const TableSpec& spec, std::unique_ptr<Table>* table);

  virtual TableTraining& training() = 0;
  virtual TableScores& scores() = 0;
  virtual TableUpkeep& upkeep() = 0;

  // The slots of a row, in their order in memory.
  virtual std::vector<SlotInfo> slots() const = 0;
  // Elements of all slots of one row together.
  virtual size_t slot_elements() const = 0;

  // exists: (n).
  virtual Status Contains(const KeyBatch& keys, bool* exists) = 0;
  // Looks up and combines, without a copy of all rows. out: (segments, dim) of
  // ComputeType(value_type). Threads share the segments; one thread does a whole segment. REQUIRES
  // (kWrongType otherwise): a floating value type.
  virtual Status LookupPooled(const KeyBatch& keys, const Defaults& defaults,
                              const Pooling& pooling, void* out) = 0;

  // The whole table in one batch.
  virtual Status ExportAll(ExportBatch* batch) = 0;
  // Whether ExportInto serves this table: int64 keys, and values that are numbers in memory.
  virtual bool ExportsAsWhole() const = 0;
  // The whole table, on several threads, straight into the caller's memory. The order of rows
  // depends only on the table. What other threads do meanwhile is seen as by Export. rows: how many
  // found room. rest: the others. REQUIRES (kInvalidArgument otherwise): ExportsAsWhole(), and no
  // memory for columns that the table does not have.
  virtual Status ExportInto(const RowArrays& arrays, size_t* rows, ExportBatch* rest) = 0;

  // Makes room for `keys` keys in all, or for max_capacity of them if that is less, so that no
  // growth happens until then.
  virtual Status Reserve(int64_t keys) = 0;
  // Returns memory that the present keys do not need to the operating system. Clear keeps it.
  // Writing threads wait meanwhile, reading ones do not.
  virtual Status Shrink() = 0;

  virtual TableStats stats() const = 0;

  // A table with the content of this one whose rows have the slots of `rule`: with keep_slots,
  // slots of the same name and length are copied; all others get their initial value. Scores, the
  // epoch, counters, the clock and waiting keys are copied too; remembered counts of keys that are
  // not in the table are not. REQUIRES: no other thread writes to this table meanwhile.
  Status CopyWithRule(const RuleSpec& rule, bool keep_slots, std::unique_ptr<Table>* copy);
  // Such a copy with the same slots, whose rows have metadata: new ones, as if they had been
  // written now for the first time, unless this table has metadata, too.
  Status CopyWithMetadata(std::unique_ptr<Table>* copy);

  // An empty table whose rows have the slots of `rule`, which is like this one otherwise, and has
  // its clock and its epoch.
  Status MakeLike(const RuleSpec& rule, std::unique_ptr<Table>* table) const;
  // For a table that takes the place of another: goes on with the clock and the counters of that
  // one, whose rows count as removed. REQUIRES: no other thread uses either of them.
  void AddHistory(const Table& former);
};

// Bytes that a table of `keys` keys takes, as TableStats reports them and the operating system
// sees them. string_key_bytes: average length of string keys.
Status EstimateMemory(const TableSpec& spec, int64_t keys, double string_key_bytes,
                      TableStats* estimate);

}  // namespace tfra
