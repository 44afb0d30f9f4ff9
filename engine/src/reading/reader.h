// The calls that look keys up and change nothing. Contracts: tfra/store.h and tfra/table.h.
#pragma once

#include "keys/keys.h"
#include "state/finder.h"

namespace tfra {

template <typename Keys>
class Reader {
 public:
  explicit Reader(const TableState& state) : state_(state), finder_{state} {}

  Status Contains(const KeyBatch& keys, bool* exists) const;
  Status Lookup(const KeyBatch& keys, const Defaults& defaults, void* values, bool* exists,
                void* slots) const;
  Status LookupPooled(const KeyBatch& keys, const Defaults& defaults, const Pooling& pooling,
                      void* out) const;
  Status LookupMetadata(const KeyBatch& keys, RowMetadata* metadata, bool* exists) const;
  Status LookupScores(const KeyBatch& keys, uint64_t* scores, bool* exists) const;

 private:
  // Looks up the keys [begin, end) of a batch, whose values are numbers.
  template <size_t kBytes>  // Of a row's values; 0 if not known to the compiler.
  Status LookupValues(const KeyBits& bits, size_t begin, size_t end, const Defaults& defaults,
                      std::byte* values, bool* exists, Tally* tally) const;
  // Copies the value of one key, whatever other threads do. Returns false if the key is not in the
  // table. record: see Finder::ReadRow.
  bool CopyValue(uint64_t key_bits, std::string_view bytes, std::byte* out, uint32_t* record) const;
  // Like LookupValues, with the slots of the rows.
  Status LookupRows(const KeyBits& bits, size_t begin, size_t end, const Defaults& defaults,
                    std::byte* values, std::byte* slots, bool* exists, Tally* tally) const;
  // Like LookupValues, for values that are strings.
  void LookupStrings(const KeyBits& bits, size_t begin, size_t end, const Defaults& defaults,
                     std::string* values, bool* exists, Tally* tally) const;
  // Calls read(i, array, entry) for each key that is in the table, and missing(i) for the others.
  template <typename Read, typename Missing>
  void ReadEntries(const KeyBatch& keys, bool* exists, Read&& read, Missing&& missing) const;

  const TableState& state_;
  const Finder<Keys> finder_;
};

}  // namespace tfra
