// The content stream: how all that is kept of a table leaves and enters it.
//
// A content is a sequence of batches. Each batch is of one kind:
//   kState    what the table knows besides its rows. At most one, and the first batch.
//   kRemoved  keys that left since an earlier moment. Only a stream of changes has such batches. A
//             key that left and came back is removed first, so they come before all rows.
//   kRows     rows, as columns: keys, values, slots, metadata, scores.
//   kEnd      there is no more.
// Every way to save, restore or copy a table reads from a ContentReader or writes to a
// ContentWriter: the formats of files, checkpoints, other numbers of partitions, other slots. What
// has to be known to do it well is known here and not by its callers: how many rows of a tiered
// table are moved at a time, and which rows a bounded table takes first.
//
// The moment: a reader of a table sees each row as a whole, and each key that is in the table from
// the first batch to the last exactly once. Other threads may write meanwhile: their changes are
// seen or not, row by row, and a key that leaves and returns may be seen twice. If no thread
// writes, the content is that of one moment.
//
// Errors: a reader that fails has changed nothing. With kReplace, a writer removes the old rows
// when the first rows come, before it checks them. The content of a table whose writer failed
// half-way, or was not finished, is undefined until the next writer or Clear.
//
// Threads: one thread at a time uses a reader or a writer. Any number of them may be open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tfra/spec.h"
#include "tfra/status.h"

namespace tfra {

// The keys of one call. Points to the caller's memory, which must stay until the call returns.
struct KeyBatch {
  KeyBatch(const int64_t* keys, size_t n) : type(KeyType::kInt64), size(n), ints(keys) {}
  KeyBatch(const std::string_view* keys, size_t n)
      : type(KeyType::kString), size(n), strings(keys) {}

  KeyType type;
  size_t size;
  const int64_t* ints = nullptr;              // (n)
  const std::string_view* strings = nullptr;  // (n)
};

// Kept for each row of a store whose spec has `metadata`. Every write to the row renews it.
struct RowMetadata {
  uint32_t time;  // The clock at the last write.
  // Writes so far; stays at its maximum. An optimizer step counts once for each key, however often
  // the batch has it. A key that admission lets in starts with the number of times it was seen.
  uint32_t count;
};

// Byte strings, one after the other.
class StringColumn {
 public:
  size_t size() const { return ends_.size(); }
  bool empty() const { return ends_.empty(); }
  // REQUIRES: i < size(). The view is valid until the column changes.
  std::string_view operator[](size_t i) const {
    const uint64_t begin = i == 0 ? 0 : ends_[i - 1];
    return {bytes_.data() + begin, static_cast<size_t>(ends_[i] - begin)};
  }
  std::vector<std::string_view> views() const {
    std::vector<std::string_view> views(size());
    for (size_t i = 0; i < size(); ++i) views[i] = (*this)[i];
    return views;
  }

  void Append(std::string_view string) {
    bytes_.insert(bytes_.end(), string.begin(), string.end());
    ends_.push_back(bytes_.size());
  }
  void Append(const StringColumn& other) {
    const uint64_t before = bytes_.size();
    bytes_.insert(bytes_.end(), other.bytes_.begin(), other.bytes_.end());
    ends_.reserve(ends_.size() + other.size());
    for (const uint64_t end : other.ends_) ends_.push_back(before + end);
  }
  // Drops all but the first n strings. REQUIRES: n <= size().
  void Truncate(size_t n) {
    ends_.resize(n);
    bytes_.resize(n == 0 ? 0 : static_cast<size_t>(ends_[n - 1]));
  }
  void Clear() { Truncate(0); }

  // Where each string ends in bytes(): (n). The first one starts at 0.
  const std::vector<uint64_t>& ends() const { return ends_; }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  std::vector<uint64_t> ends_;
  std::vector<char> bytes_;
};

// Rows of a store, n of them. Only the columns of the store's types are filled.
struct ExportBatch {
  size_t size = 0;
  std::vector<int64_t> int_keys;      // (n)
  StringColumn string_keys;           // (n)
  std::vector<std::byte> values;      // (n, dim)
  StringColumn string_values;         // (n, dim)
  std::vector<std::byte> slots;       // (n, slot elements)
  std::vector<RowMetadata> metadata;  // (n), if the spec has metadata.
  std::vector<uint64_t> scores;       // (n), if the store is bounded.

  // Moves the rows of another batch of the same store to the end of this one.
  void Append(ExportBatch&& other);
  // Removes all rows and keeps the memory for others.
  void Clear();
};

// Rows that a writer gets, n of them, in the caller's memory. Null: the content does not have the
// column, and rows get initial slots, new metadata, or the scores of a new key.
struct RowColumns {
  KeyBatch keys;
  const void* values = nullptr;           // (n, dim), or std::string_view[n * dim].
  const void* slots = nullptr;            // (n, slot elements)
  const RowMetadata* metadata = nullptr;  // (n)
  const uint64_t* scores = nullptr;       // (n)
};

// Which of some keys a writer takes: those of one partition.
struct Partition {
  const int32_t* of_key = nullptr;  // (n), the partition of each key. Null: the writer takes all.
  int32_t number = 0;               // The writer takes keys of this partition,
  int32_t count = 1;                // of so many.
};

// What a table knows of keys that have not entered yet; see AdmissionSpec.
struct AdmissionState {
  std::vector<int64_t> int_keys;  // kMinCount: the keys that wait, n of them,
  StringColumn string_keys;       // if they are strings,
  std::vector<RowMetadata> seen;  // and when and how often each was seen.
  std::vector<std::byte> filter;  // kBloomFilter, kProbability.

  // Adds the state of another table of the same rule, which has other keys.
  void Append(const AdmissionState& other);
};

// What a table knows besides its rows. Fields without a value stay as they are in the table that
// the content enters.
struct ContentState {
  AdmissionState admission;            // Takes the place of what the table knows, even if empty.
  std::optional<uint32_t> epoch;       // TableScores::epoch().
  std::optional<int64_t> epoch_steps;  // TrainedTable::epoch_steps().
  std::optional<int64_t> step;         // TrainedTable::step().
};

struct ContentBatch {
  enum Kind : uint8_t { kEnd, kState, kRemoved, kRows };
  Kind kind = kEnd;
  ContentState state;  // kState.
  ExportBatch rows;    // kRows; kRemoved has keys only.
};

// Memory of the caller for rows of a table with int64 keys and values that are numbers. Null: not
// wanted or, for metadata and scores, not there.
struct RowArrays {
  size_t room = 0;                  // Rows that there is room for.
  int64_t* keys = nullptr;          // (room)
  std::byte* values = nullptr;      // (room, dim)
  std::byte* slots = nullptr;       // (room, slot elements)
  RowMetadata* metadata = nullptr;  // (room)
  uint64_t* scores = nullptr;       // (room)
};

// What a reader of a table gives.
struct ReadOptions {
  bool state = true;           // Whether the first batch is the state.
  size_t batch_rows = 16'384;  // About so many rows in each batch.
};

class ContentReader {
 public:
  virtual ~ContentReader() = default;

  // The spec of the table that the content is of: it says which columns rows have.
  virtual const TableSpec& spec() const = 0;
  // The next batch. After kEnd: kEnd again.
  virtual Status Next(ContentBatch* batch) = 0;
  // Like Next, but a reader that can do so puts rows straight into the caller's memory, on several
  // threads. rows: how many are there. The other rows are in `batch`.
  virtual Status NextInto(const RowArrays& arrays, size_t* rows, ContentBatch* batch);
};

// What a writer does to a table.
struct WriteOptions {
  enum Mode : uint8_t {
    kReplace,  // The content takes the place of what is in the table.
    kChange,   // The content changes what is in the table: other keys stay.
  };
  Mode mode = kReplace;
  // The rule whose slots the rows have; the table gets them before its first row is written. None:
  // rows have the slots of the table, or no slots.
  std::optional<RuleSpec> rule = std::nullopt;
  uint64_t expected_rows = 0;  // Room is made for so many rows. 0: their number is not known.
};

class ContentWriter {
 public:
  virtual ~ContentWriter() = default;

  // Refuses a state that does not fit, but changes nothing yet: the epoch is set when rows come,
  // and the rest by Finish. Rows and removed keys are written at once. of_key of the partition: for
  // the waiting keys.
  virtual Status WriteState(const ContentState& state, const Partition& partition = {}) = 0;
  virtual Status WriteRemoved(const KeyBatch& keys, const Partition& partition = {}) = 0;
  virtual Status WriteRows(const RowColumns& rows, const Partition& partition = {}) = 0;
  // The content is complete.
  virtual Status Finish() = 0;
};

// Writes all that a reader gives, and finishes the writer. REQUIRES: both are of tables with the
// same columns; a writer may lack metadata, scores or admission, and drops what it has no use for.
Status CopyContent(ContentReader* reader, ContentWriter* writer);

}  // namespace tfra
