// A Store keeps rows by key. Every backend offers this much; Table (tfra/table.h) offers more.
//
// A row is [value | slots]: `dim` elements of the value type, then the optimizer's slots, elements
// of ComputeType(value type). The spec says how many of each there are; slots are opaque to the
// Store. A key that was never assigned has no row: its value is the initial value of (seed, key),
// which a lookup computes and does not store.
//
// Threads: any thread may call anything at any time. Each row is read and written as a whole: no
// reader sees half a write, and no write is lost. A batch is not one transaction: another thread
// may see some of its rows changed and others not yet.
//
// Duplicates: Assign and Remove act as if the keys were taken one by one in batch order, so the
// last assignment of a key stays. Results do not depend on the number of threads.
//
// Errors: a call that fails has changed nothing. Implementations name their exceptions.
//
// Strings: values of a kString store are passed as std::string_view[n * dim] and are returned as
// std::string[n * dim].
#pragma once

#include <cstddef>
#include <cstdint>

#include "tfra/content.h"
#include "tfra/spec.h"
#include "tfra/status.h"

namespace tfra {

// The value that a lookup returns for a key that is not in the store.
struct Defaults {
  enum Kind { kInitial, kOneRow, kRowPerKey };
  Kind kind = kInitial;
  const void* rows = nullptr;  // (dim) or (n, dim)
};

// The scores that a writing call brings for its keys. REQUIRES, unless kNone (kInvalidArgument
// otherwise): a bounded store.
struct Scores {
  enum Kind : uint8_t {
    // The strategy decides. kCustomized: keys that are in the store keep their scores, others get
    // 0.
    kNone,
    // kLfu, kEpochLfu only: key i counts as values[i] occurrences.
    kCounts,
    // The scores themselves, whatever the strategy: for kCustomized, and for restoring. The clocks
    // of kLru and kEpochLru continue after them (after those of the present epoch).
    kExact,
  };
  Kind kind = kNone;
  const uint64_t* values = nullptr;  // (n)
};

// What a writing call does with keys that are not in the store.
enum class NewKeys : uint8_t {
  kInsert,  // They enter.
  kAdmit,   // Those enter that TableSpec::admission admits; the others are dropped.
  kDrop,    // They are dropped.
};

// The position of an export. Starts at its default value.
struct ExportCursor {
  uint64_t position = 0;
  uint64_t seed = 0;  // `position` counts in the order of this seed.
  bool done = false;
};

class Store {
 public:
  virtual ~Store() = default;

  virtual const TableSpec& spec() const = 0;
  virtual uint64_t size() const = 0;

  // Reads rows and inserts nothing. values: (n, dim). exists: (n), or null. slots: (n, slot
  // elements), or null; keys that are not in the store get initial slots. REQUIRES, for slots
  // (kWrongType otherwise): values that are numbers.
  virtual Status Lookup(const KeyBatch& keys, const Defaults& defaults, void* values, bool* exists,
                        void* slots = nullptr) = 0;

  // Inserts or overwrites rows. values: (n, dim). slots: (n, slot elements), or null: rows that are
  // there keep their slots, and new rows get initial ones. metadata: (n), or null: renewed as by
  // any write.
  virtual Status Assign(const KeyBatch& keys, const void* values, const void* slots = nullptr,
                        const RowMetadata* metadata = nullptr, const Scores& scores = {},
                        NewKeys new_keys = NewKeys::kInsert) = 0;

  // removed: how many of the keys were in the store.
  virtual Status Remove(const KeyBatch& keys, size_t* removed) = 0;
  // Removes all rows, and forgets the keys that wait to enter. May keep the memory for reuse.
  virtual Status Clear() = 0;

  // Fills `batch` with about `max_rows` rows from the cursor on, a little more if that is easier,
  // and moves the cursor. A key that is in the store from the first call to the last is exported
  // exactly once, whatever other threads do meanwhile; a key that leaves and returns may be
  // exported twice.
  virtual Status Export(size_t max_rows, ExportCursor* cursor, ExportBatch* batch) = 0;
  // Assigns the rows of a batch, with all columns that this store has. REQUIRES: the batch is of a
  // store with the same spec.
  Status Import(const ExportBatch& batch);
};

}  // namespace tfra
