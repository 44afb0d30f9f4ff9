// A concurrent table from keys to rows, used in batches.
//
// A row is [value | optimizer slots], and may have metadata. A key that was never written has no
// row; its value is the initial value of (seed, key), which a lookup computes and does not store.
//
// Threads: any thread may call anything at any time. Each row is read and written as a whole: no
// reader sees half an update, and no update is lost. A batch is not one transaction: another
// thread may see some of its rows changed and others not yet. Lookups never wait for one another,
// nor for growth. A call uses up to NumThreads() threads of the engine's pool.
//
// Duplicates: Assign, Accumulate, AddToRows and Remove act as if the keys were taken one by one in
// their order (so the last assignment of a key stays). ApplyGradients first sums the gradients of
// equal keys, in their order, and then takes one step per distinct key. Results do not depend on
// the number of threads.
//
// Bounded tables (TableSpec::bound): size() never exceeds max_capacity. Every key has a score;
// each write renews it, reads do not. A key that is to be inserted into a full table evicts the
// candidate with the lowest score (one of them, if there are several), whose row goes with its
// slots and metadata. If its own score is lower than that of every candidate, it is rejected
// instead: it is not inserted, and what the call brings for it is dropped. Both are counted
// (TableStats).
//   Candidates: in a table of at most kExactCapacity keys, all keys. In a larger one, some 50 to 70
// keys whose hashes are near that of the new one: those in 16 buckets of the index, from its own
// on.
//   Full: size() is max_capacity. In a table of more than kExactCapacity keys the keys of each
// sixteenth of the hashes are also no more, and have room for no less, than chance would give them
// (four standard deviations): those that come first, as in the order of an export, do not take the
// room of others.
//   Order: a call first writes to the keys that are there. Then it inserts the others one by one,
//   in
// the order in which each first occurs. Equal keys count as one: it is inserted, or rejected, with
// the score that all its occurrences in the call make.
//   A key that was evicted after a lookup and is then updated (ApplyGradients, AddToRows) is a
// missing key like others: it starts from its initial value and slots and evicts another one, or is
// rejected.
//
// Tiered tables (TableSpec::tiers): rows beyond fast_bytes are in a file. All calls give the
// same results as without. The index, scores and the bytes of string keys are always in memory.
// Writing moves the rows of its keys to memory. Reading moves those that it needs again, or all
// while there is much room. To make room, rows that were not used lately move to the file; of
// these, the ones with lower scores. Exports and passes over all rows move none. No thread waits
// for the file while it holds what others need, but in rare races: threads whose rows are in memory
// go on. The file has no name: it is gone with the table, or with the process, however that ends.
//
// Limits of tiered tables: values must be numbers (kInvalidArgument otherwise). The file holds at
// most 2^30 rows. fast_bytes counts for 4 rows in each sixteenth of the hashes at least. A batch
// that needs more rows than fit takes memory for them until it is done; Shrink gives it back to the
// operating system. A forked child cannot use the rows in the file (kIoError), only its parent can.
//
// Errors: a call that fails has changed nothing. If the file cannot be read or written, calls
// return kIoError; where it cannot take rows to make room (kStorageFull), writing fails and reading
// goes on. In a tiered table, a row that other threads move to the file at the same time may have
// to be read half-way: if that fails, a part of the batch is stored, each row whole. AssignAndEvict
// reads rows that it evicts from the file at its end: if that fails, all is stored, and their
// values are zeros. The one other exception is running out of memory while a batch is being
// written, although room was made for it before: because other threads inserted meanwhile, because
// far more keys of a bounded table than others share the first bits of their hashes, or because not
// even a small allocation succeeds; or, in a table with an admission rule, because room is made
// only for keys that are let in. Then a part of the batch is stored, each row whole. And calls that
// remove rows by a rule may have removed some of them.
//
// Strings: values of a kString table are passed as std::string_view[n * dim] and come back as
// std::string[n * dim].
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tfra/pooling.h"
#include "tfra/spec.h"
#include "tfra/status.h"
#include "tfra/table_stats.h"

namespace tfra {

// Keys of one call. Points to the caller's memory, which must stay until the call returns.
struct KeyBatch {
  KeyBatch(const int64_t* keys, size_t n) : type(KeyType::kInt64), size(n), ints(keys) {}
  KeyBatch(const std::string_view* keys, size_t n)
      : type(KeyType::kString), size(n), strings(keys) {}

  KeyType type;
  size_t size;
  const int64_t* ints = nullptr;              // (n)
  const std::string_view* strings = nullptr;  // (n)
};

// What a lookup returns for a key that is not there.
struct Defaults {
  enum Kind { kInitial, kOneRow, kRowPerKey };
  Kind kind = kInitial;
  const void* rows = nullptr;  // (dim) or (n, dim)
};

// Tables of so many keys or fewer evict exactly: every key is a candidate. Calls that insert into
// one of them take turns.
inline constexpr int64_t kExactCapacity = 2048;

// Scores reach from 0 to this; larger ones are stored as this one.
inline constexpr uint64_t kMaxScore = UINT64_MAX - 1;

// Scores that a writing call brings for its keys. REQUIRES, unless kNone (kInvalidArgument
// otherwise): a bounded table.
struct Scores {
  enum Kind : uint8_t {
    // As the strategy says. kCustomized: keys that are there keep their scores, others get 0.
    kNone,
    // kLfu, kEpochLfu only: key i counts as values[i] occurrences.
    kCounts,
    // The scores themselves, whatever the strategy: for kCustomized, and for restoring. The clocks
    // of kLru and kEpochLru go on after them (after those of the present epoch).
    kExact,
  };
  Kind kind = kNone;
  const uint64_t* values = nullptr;  // (n)
};

using ScorePredicate = std::function<bool(uint64_t score)>;

// Kept for each row of a table with TableSpec::metadata, renewed by every write to the row.
struct RowMetadata {
  uint32_t time;  // Table::clock() of the last write.
  // Writes so far; stays at its maximum. An optimizer step counts once for each key, however often
  // the batch has it. A key that an admission rule lets in starts with the times it was seen.
  uint32_t count;
};

// What becomes of the keys of a writing call that are not in the table.
enum class NewKeys : uint8_t {
  kInsert,  // They enter.
  kAdmit,   // Those enter that TableSpec::admission lets in; the others are dropped.
  kDrop,    // They are dropped.
};

// Which rows stay when there are too many. Of rows that are equal in this, which ones does not
// depend on the order in which they came.
enum class Ranking : uint8_t {
  kNewest,        // By the time of the last write, then by the number of writes.
  kMostFrequent,  // By the number of writes, then by the time of the last one.
};

// Which rows have expired: those of which one of these holds.
struct ExpiryRule {
  uint32_t written_before = 0;  // The last write was before this time; 0: whatever it was.
  // The L2 norm of the value is below this although the row was written `norm_writes` times; 0:
  // whatever it is.
  double norm_below = 0.0;
  uint32_t norm_writes = 1;
};

// What a table knows of keys that have not entered yet; see AdmissionSpec.
struct AdmissionState {
  std::vector<int64_t> int_keys;         // kMinCount: the keys that wait, n of them,
  std::vector<std::string> string_keys;  // if they are strings,
  std::vector<RowMetadata> seen;         // and when and how often each was seen.
  std::vector<std::byte> filter;         // kBloomFilter, kProbability.
};

using MetadataPredicate = std::function<bool(const RowMetadata&)>;

// Where an export goes on. Starts at its default value.
struct ExportCursor {
  uint64_t position = 0;
  uint64_t seed = 0;  // Of the order in which `position` counts.
  bool done = false;
};

// A part of the table's content, n rows. Only the vectors of the table's types are filled.
struct ExportBatch {
  size_t size = 0;
  std::vector<int64_t> int_keys;           // (n)
  std::vector<std::string> string_keys;    // (n)
  std::vector<std::byte> values;           // (n, dim)
  std::vector<std::string> string_values;  // (n, dim)
  std::vector<std::byte> slots;            // (n, slot elements)
  std::vector<RowMetadata> metadata;       // (n)
  std::vector<uint64_t> scores;            // (n), of bounded tables.

  // Removes all rows and keeps the memory for others.
  void Clear() {
    size = 0;
    int_keys.clear();
    string_keys.clear();
    values.clear();
    string_values.clear();
    slots.clear();
    metadata.clear();
    scores.clear();
  }
};

// Memory of the caller's for rows of a table with int64 keys and values that are not strings. Null:
// not wanted, or, of metadata and scores, not there.
struct RowArrays {
  size_t room = 0;                  // Rows that there is room for.
  int64_t* keys = nullptr;          // (room)
  std::byte* values = nullptr;      // (room, dim)
  std::byte* slots = nullptr;       // (room, slot elements)
  RowMetadata* metadata = nullptr;  // (room)
  uint64_t* scores = nullptr;       // (room)
};

// An optimizer slot of a row: `elements` numbers of ComputeType(value_type), dim or 1.
struct SlotInfo {
  std::string name;
  size_t elements;
};

// Checks a rule as Table::Create does. slot_elements: of all slots of one row together.
Status CheckRule(const RuleSpec& rule, ValueType value_type, int64_t dim, size_t* slot_elements);
// Checks a step as Table::ApplyGradients of a table with that rule does.
Status CheckStep(const RuleSpec& rule, const UpdateParams& params, ValueType value_type,
                 ValueType gradient_type);

class Table {
 public:
  static Status Create(const TableSpec& spec, std::unique_ptr<Table>* table);
  virtual ~Table() = default;

  const TableSpec& spec() const { return spec_; }
  // The slots of a row, in their order in memory.
  virtual std::vector<SlotInfo> slots() const = 0;
  // Elements of all slots of one row together.
  virtual size_t slot_elements() const = 0;

  // values: (n, dim). exists: (n), or null. Inserts nothing.
  virtual Status Lookup(const KeyBatch& keys, const Defaults& defaults, void* values,
                        bool* exists) = 0;
  // Whole rows, as Assign takes them. values: (n, dim). slots: (n, slot_elements()), or null. Keys
  // that are not there get their initial value and slots. Inserts nothing. Values must be numbers.
  virtual Status LookupRows(const KeyBatch& keys, void* values, void* slots) = 0;
  // Looks up and combines, without a copy of all rows. out: (segments, dim) of
  // ComputeType(value_type). Threads share the segments, each of which is one thread's. REQUIRES
  // (kWrongType otherwise): a floating value type.
  virtual Status LookupPooled(const KeyBatch& keys, const Defaults& defaults,
                              const Pooling& pooling, void* out) = 0;
  // exists: (n).
  virtual Status Contains(const KeyBatch& keys, bool* exists) = 0;

  // Inserts or overwrites. values: (n, dim). slots: (n, slot_elements()) or null, which leaves the
  // slots of rows that are there and gives new rows initial ones. metadata: (n), or null.
  virtual Status Assign(const KeyBatch& keys, const void* values, const void* slots = nullptr,
                        const RowMetadata* metadata = nullptr, const Scores& scores = {},
                        NewKeys new_keys = NewKeys::kInsert) = 0;
  // As Assign, and says what became of whom. evicted: the rows that had to go, as an export has
  // them, with their scores from before; one that this call itself inserted may be among them.
  // rejected: (n), or null; which keys did not get in.
  virtual Status AssignAndEvict(const KeyBatch& keys, const void* values, const void* slots,
                                const RowMetadata* metadata, const Scores& scores,
                                ExportBatch* evicted, bool* rejected) = 0;
  // As Assign, for keys that are there. The others are left alone and counted as ignored.
  virtual Status AssignExisting(const KeyBatch& keys, const void* values,
                                const void* slots = nullptr, const RowMetadata* metadata = nullptr,
                                const Scores& scores = {}) = 0;

  // Looks up, and inserts missing keys with their default. values: (n, dim). exists: (n), or null;
  // which keys were found. Counts as a write for scores and metadata, and as a lookup for hits and
  // misses. A key that is rejected gets its default all the same.
  virtual Status FindOrInsert(const KeyBatch& keys, const Defaults& defaults, void* values,
                              bool* exists, const Scores& scores = {}) = 0;

  // deltas: (n, dim). exists: (n), what the caller last knew of each key. Found and true: adds
  // (bool: or). Missing and false: inserts the delta as the value. Otherwise: leaves the key alone
  // and counts it as ignored. With NewKeys::kAdmit it makes rows ready for an update that follows:
  // inserting them is not counted as a write in their metadata.
  virtual Status Accumulate(const KeyBatch& keys, const void* deltas, const bool* exists,
                            const Scores& scores = {}, NewKeys new_keys = NewKeys::kInsert) = 0;

  // Adds to whole rows; missing keys are inserted from their initial value and slots first. deltas:
  // (n, dim). slots: (n, slot_elements()), or null. Values must be floating.
  virtual Status AddToRows(const KeyBatch& keys, const void* deltas, const void* slots,
                           const Scores& scores = {}, NewKeys new_keys = NewKeys::kAdmit) = 0;

  // One optimizer step. gradients: (n, dim) of gradient_type, which is the value type or
  // ComputeType(value_type). Missing keys are inserted from their initial value first.
  virtual Status ApplyGradients(const KeyBatch& keys, const void* gradients,
                                ValueType gradient_type, const UpdateParams& params,
                                const Scores& scores = {}, NewKeys new_keys = NewKeys::kAdmit) = 0;

  // Renews the metadata of rows, as one write; of equal keys, one counts. Keys that are let in get
  // their initial value; in a table of string values, none is. REQUIRES (kInvalidArgument
  // otherwise): TableSpec::metadata.
  virtual Status Touch(const KeyBatch& keys, NewKeys new_keys = NewKeys::kAdmit) = 0;
  // metadata: (n), zeros for keys that are not there. exists: (n), or null. REQUIRES as for Touch.
  virtual Status LookupMetadata(const KeyBatch& keys, RowMetadata* metadata, bool* exists) = 0;

  // removed: how many of the keys were there.
  virtual Status Remove(const KeyBatch& keys, size_t* removed) = 0;
  // The same, counted as evictions and as a run of Restrict: for callers that rank keys themselves.
  virtual Status Evict(const KeyBatch& keys, size_t* evicted) = 0;
  // Forgets also the keys that wait to enter. Keeps the memory for reuse; Shrink gives it back.
  virtual Status Clear() = 0;
  virtual uint64_t size() const = 0;

  // Fills `batch` with about `max_rows` rows from the cursor on (a little more, since rows of one
  // bucket stay together; if a sixteenth of the hashes was reseeded since the last call, the rest
  // of it comes in one batch) and moves the cursor. A key that is in the table from the first call
  // to the last is exported exactly once, whatever other threads do meanwhile; one that leaves and
  // comes back may be exported twice.
  virtual Status Export(size_t max_rows, ExportCursor* cursor, ExportBatch* batch) = 0;

  // The whole table in one batch.
  virtual Status ExportAll(ExportBatch* batch) = 0;
  // Whether rows are all there is to copy: int64 keys, values that are not strings, and all of them
  // in memory.
  virtual bool ExportsAsWhole() const = 0;
  // The whole table, on several threads, straight into memory of the caller's. Its order depends
  // only on the table. What others do meanwhile is seen as by Export. rows: how many there were
  // room for. rest: the others. REQUIRES (kInvalidArgument otherwise): int64 keys, values that are
  // not strings, all rows in memory, and no memory for columns that the table does not have.
  virtual Status ExportInto(const RowArrays& arrays, size_t* rows, ExportBatch* rest) = 0;

  // One pass over the rows' metadata, on several threads: the predicate is called by all of them,
  // and must neither throw nor use the table. Reading threads go on; writing ones wait when they
  // come to a stripe that is being passed. REQUIRES (kInvalidArgument otherwise):
  // TableSpec::metadata.
  virtual Status CountIf(const MetadataPredicate& predicate, uint64_t* count) = 0;
  virtual Status RemoveIf(const MetadataPredicate& predicate, uint64_t* removed) = 0;
  // Keys only: the other vectors of `batch` stay empty.
  virtual Status SelectIf(const MetadataPredicate& predicate, ExportBatch* batch) = 0;

  // The scores of keys, and of all keys that a predicate selects, as above. REQUIRES, for each of
  // these (kInvalidArgument otherwise): a bounded table.

  // scores: (n), 0 for keys that are not there. exists: (n), or null. Changes no score.
  virtual Status LookupScores(const KeyBatch& keys, uint64_t* scores, bool* exists) = 0;
  // Gives keys that are there these scores: (n), whatever the strategy. Others are left alone and
  // counted as ignored.
  virtual Status AssignScores(const KeyBatch& keys, const uint64_t* scores) = 0;
  virtual Status CountIfScore(const ScorePredicate& predicate, uint64_t* count) = 0;
  virtual Status RemoveIfScore(const ScorePredicate& predicate, uint64_t* removed) = 0;
  // Whole rows, with their scores.
  virtual Status ExportIfScore(const ScorePredicate& predicate, ExportBatch* batch) = 0;

  // The epoch in the scores of the calls that start from now on. A smaller one than before makes
  // them lower than older scores. Without effect, and always 0, where the strategy has no epochs.
  virtual void SetEpoch(uint32_t epoch) = 0;
  virtual uint32_t epoch() const = 0;

  // Leaves the `keep` best rows and evicts the others. Takes two or three passes like those above,
  // and 4 bytes for each row that leaves. Exact if no other thread writes meanwhile; rows that
  // others write while it runs may stay in addition. REQUIRES as for CountIf.
  virtual Status Restrict(uint64_t keep, Ranking ranking, uint64_t* evicted) = 0;
  // Removes what has expired, in one pass, or one for each part of the rule; of keys that wait to
  // enter, those last seen before `written_before`. REQUIRES: TableSpec::metadata, unless only
  // norms are looked at, from 0 writes on (kInvalidArgument otherwise); floating values, if norms
  // are (kWrongType otherwise).
  virtual Status Expire(const ExpiryRule& rule, uint64_t* expired) = 0;
  // One pass, like those above.
  virtual Status Histograms(RowHistograms* histograms) = 0;

  // What is known of keys that have not entered: to be saved, and restored into a table with the
  // same AdmissionSpec, in place of what that knows (kInvalidArgument for another kind of rule).
  // `state` may hold the states of several tables one after the other, which had different keys; of
  // `parts` filters only that of number `part` is taken, if there are as many. REQUIRES
  // (kInvalidArgument otherwise): part < parts.
  virtual Status ExportAdmission(AdmissionState* state) = 0;
  virtual Status RestoreAdmission(const AdmissionState& state, uint32_t part = 0,
                                  uint32_t parts = 1) = 0;

  // Makes room for `keys` keys in all, or for max_capacity of them if that is less, so that no
  // growth happens until then.
  virtual Status Reserve(int64_t keys) = 0;
  // Gives memory that the present keys do not need back to the operating system. Writing threads
  // wait meanwhile, reading ones do not.
  virtual Status Shrink() = 0;

  // The time written into metadata: seconds since 1970, or what SetClock said last.
  virtual uint32_t clock() const = 0;
  virtual void SetClock(uint32_t now) = 0;

  virtual TableStats stats() const = 0;

  // A table with the content of this one whose rows have the slots of `rule`: with keep_slots,
  // those of the same name and length are taken over; all others get their initial value. Scores,
  // the epoch, counters, the clock and keys that wait to enter go along; remembered counts of keys
  // that are not there do not. REQUIRES: no other thread writes to this table meanwhile.
  Status CopyWithRule(const RuleSpec& rule, bool keep_slots, std::unique_ptr<Table>* copy);

 protected:
  explicit Table(const TableSpec& spec) : spec_(spec) {}

  const TableSpec spec_;
};

// Bytes that a table of `keys` keys takes, as TableStats reports them and the operating system
// sees them. string_key_bytes: average length of string keys.
Status EstimateMemory(const TableSpec& spec, int64_t keys, double string_key_bytes,
                      TableStats* estimate);

}  // namespace tfra
