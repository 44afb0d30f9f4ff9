// The table itself, for one kind of keys. Its parts: table_read.cc, table_update.cc (the calls that
// write), table_write.cc, table_scan.cc, table_export.cc, table_restrict.cc and, for bounded
// tables, table_bounded.cc, table_evict.cc and table_scores.cc.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "base/batch.h"
#include "keys/key_groups.h"
#include "keys/keys.h"
#include "keys/new_keys.h"
#include "memory/blob.h"
#include "rows/row_ops.h"
#include "table/table_base.h"

namespace tfra {

class RankSearch;

// What a call does to the keys that it finds: nothing; something to their entries; or to their rows
// as well, which in a tiered table are then not what the file has.
enum class Access { kRead, kEntry, kRow };

template <typename Keys>
class TableOf : public TableBase {
 public:
  TableOf(const TableSpec& spec, Initializer initializer)
      : TableBase(spec, std::move(initializer)) {}

  Status Lookup(const KeyBatch& keys, const Defaults& defaults, void* values,
                bool* exists) override;
  Status LookupRows(const KeyBatch& keys, void* values, void* slots) override;
  Status LookupPooled(const KeyBatch& keys, const Defaults& defaults, const Pooling& pooling,
                      void* out) override;
  Status Contains(const KeyBatch& keys, bool* exists) override;

  Status LookupMetadata(const KeyBatch& keys, RowMetadata* metadata, bool* exists) override;

  Status Assign(const KeyBatch& keys, const void* values, const void* slots,
                const RowMetadata* metadata, const Scores& scores, NewKeys new_keys) override;
  Status AssignAndEvict(const KeyBatch& keys, const void* values, const void* slots,
                        const RowMetadata* metadata, const Scores& scores, ExportBatch* evicted,
                        bool* rejected) override;
  Status AssignExisting(const KeyBatch& keys, const void* values, const void* slots,
                        const RowMetadata* metadata, const Scores& scores) override;
  Status FindOrInsert(const KeyBatch& keys, const Defaults& defaults, void* values, bool* exists,
                      const Scores& scores) override;
  Status Accumulate(const KeyBatch& keys, const void* deltas, const bool* exists,
                    const Scores& scores, NewKeys new_keys) override;
  Status AddToRows(const KeyBatch& keys, const void* deltas, const void* slots,
                   const Scores& scores, NewKeys new_keys) override;
  Status ApplyGradients(const KeyBatch& keys, const void* gradients, ValueType gradient_type,
                        const UpdateParams& params, const Scores& scores,
                        NewKeys new_keys) override;
  Status Touch(const KeyBatch& keys, NewKeys new_keys) override;
  Status Remove(const KeyBatch& keys, size_t* removed) override {
    return RemoveKeys(keys, &Tally::removals, removed);
  }
  Status Evict(const KeyBatch& keys, size_t* evicted) override {
    TFRA_RETURN_IF_ERROR(RemoveKeys(keys, &Tally::evictions, evicted));
    Counting([](Tally* tally) { ++tally->restrict_runs; });
    return Status::Ok();
  }

  Status Export(size_t max_rows, ExportCursor* cursor, ExportBatch* batch) override;
  Status ExportAll(ExportBatch* batch) override;
  bool ExportsAsWhole() const override { return StringsPerRow() == 0 && tiers_ == nullptr; }
  Status ExportInto(const RowArrays& arrays, size_t* rows, ExportBatch* rest) override;
  Status CountIf(const MetadataPredicate& predicate, uint64_t* count) override;
  Status RemoveIf(const MetadataPredicate& predicate, uint64_t* removed) override;
  Status SelectIf(const MetadataPredicate& predicate, ExportBatch* batch) override;

  Status Restrict(uint64_t keep, Ranking ranking, uint64_t* evicted) override;
  Status Expire(const ExpiryRule& rule, uint64_t* expired) override;
  Status Histograms(RowHistograms* histograms) override;

  Status LookupScores(const KeyBatch& keys, uint64_t* scores, bool* exists) override;
  Status AssignScores(const KeyBatch& keys, const uint64_t* scores) override;
  Status CountIfScore(const ScorePredicate& predicate, uint64_t* count) override;
  Status RemoveIfScore(const ScorePredicate& predicate, uint64_t* removed) override;
  Status ExportIfScore(const ScorePredicate& predicate, ExportBatch* batch) override;

 private:
  // What was found in one bucket: the key's row (a string's: that of a key with its hash), if still
  // valid; or none, and then the key is not there.
  struct Probe {
    Bucket* bucket;
    std::byte* row;
    uint32_t state;  // Of the bucket, before it was read.
  };

  // --- table_find.h. REQUIRES, for each: inside a ReadGuard, or with the stripe's mutex.

  // The array and the bucket where the search for a key starts.
  const BucketArray* ArrayFor(uint64_t key_bits) const {
    return StripeFor(Keys::Hash(key_bits)).array();
  }
  // True if nothing that was read from the probe's bucket and row since the search has changed.
  static bool StillValid(const Bucket* bucket, uint32_t state) {
    AcquireFence();
    return bucket->state.load(std::memory_order_relaxed) == state;
  }
  // Whether the probe found this very key, and the entry is still there.
  bool IsHit(const Probe& probe, std::string_view bytes) const;
  // Finds a key whatever other threads do, and calls read(array, entry, row number) until it has
  // read a whole row: the last call counts. Returns false if the key is not there.
  template <typename Read>
  bool ReadEntry(uint64_t key_bits, std::string_view bytes, Read&& read) const;
  // The same with read(row). A row in the file is not read, and its record is left in `record`;
  // otherwise that is kInMemory.
  static constexpr uint32_t kInMemory = UINT32_MAX;
  template <typename Read>
  bool ReadRow(uint64_t key_bits, std::string_view bytes, uint32_t* record, Read&& read) const {
    return ReadEntry(key_bits, bytes, [&](const BucketArray&, Stripe::Entry, uint32_t row_id) {
      *record = IsSlow(row_id) ? RecordOf(row_id) : kInMemory;
      if (*record == kInMemory) read(RowAt(row_id));
    });
  }
  // Goes through n keys, fetching ahead: number(i) is the i-th key's place in `bits`. Calls
  // fetch(number) early, for keys that seem to be there, to prefetch what else is needed, and
  // visit(number, probe) late; `row_bytes` of each row are prefetched. Keys that are neither in
  // their first buckets nor known to be missing, and those for which visit returns false, get
  // late(number) instead. Equal keys are visited in their order, if no other thread writes to their
  // stripe and visit moves no entries.
  template <Access kAccess, typename KeyAt, typename Fetch, typename Visit, typename Late>
  void Probes(const uint64_t* bits, size_t n, size_t row_bytes, KeyAt&& key_at, Fetch&& fetch,
              Visit&& visit, Late&& late) const;
  // Does so in the first buckets, or, kLater, in those `offset` after them. Fills `rest` with the
  // numbers of the keys that are left, and returns how many.
  template <Access kAccess, bool kLater, typename KeyAt, typename Fetch, typename Visit,
            typename Late>
  size_t Pass(const BucketArray* arrays, uint64_t offset, const uint64_t* bits, size_t n,
              size_t row_bytes, KeyAt&& key_at, Fetch&& fetch, Visit&& visit, Late&& late,
              uint32_t* rest) const;

  // --- table_read.cc

  bool ContainsOne(uint64_t key_bits, std::string_view bytes) const;
  template <size_t kBytes>  // Of a row's values; 0 if not known to the compiler.
  Status LookupValues(const KeyBits& bits, size_t begin, size_t end, const Defaults& defaults,
                      std::byte* values, bool* exists, Tally* tally) const;
  bool CopyValue(uint64_t key_bits, std::string_view bytes, std::byte* out, uint32_t* record) const;
  void LookupStrings(const KeyBits& bits, size_t begin, size_t end, const Defaults& defaults,
                     std::string* values, bool* exists, Tally* tally) const;

  // --- table_write.cc

  // Takes keys out, and counts those that were there by `counter`.
  Status RemoveKeys(const KeyBatch& keys, uint64_t Tally::* counter, size_t* removed);
  RowContext Context(NewKeys new_keys) const {
    return {layout_, initializer_, spec_.metadata, clock(), new_keys};
  }
  // Makes room for the keys of a batch that an Op (see row_ops.h) would insert, so that Write does
  // not run out of memory half-way. Fills `new_keys`. Other threads may write meanwhile.
  template <typename Op>
  Status PrepareInserts(const KeyBits& bits, const KeyGroups& groups, const Op& op,
                        PendingBlobs* new_keys);
  // Whether the Op would insert nearly all keys of a group that are in one of `stripes`. Judges by
  // a sample.
  template <typename Op>
  bool NearlyAllMissing(const KeyBits& bits, const KeyGroups& groups, size_t group,
                        StripeSet stripes, const Op& op) const;
  // The keys of a group that are in one of `stripes` and that the Op would insert; with `all` also
  // those that are in the table.
  template <typename Op>
  std::vector<uint32_t> MissingKeys(const KeyBits& bits, const KeyGroups& groups, size_t group,
                                    StripeSet stripes, const Op& op, bool all) const;
  // Grows those of `stripes` that have no room for so many keys more, or for the `missing` keys.
  Status MakeRoom(StripeSet stripes, const std::array<uint64_t, kStripes>& more);
  Status MakeRoom(const KeyBits& bits, StripeSet stripes, const std::vector<uint32_t>& missing);
  // Those of `stripes` that so many keys more, if all are different, make grow by more than a step.
  StripeSet GrowingMuch(StripeSet stripes, const std::array<uint64_t, kStripes>& more) const;
  // What a writing call is to say about a bounded table.
  struct Report {
    ExportBatch* evicted = nullptr;  // Or null.
    bool* rejected = nullptr;        // (n), all false at first; or null.
  };
  // Writes the keys as the Op says.
  template <typename Op>
  Status Write(const KeyBits& bits, const KeyGroups& groups, const Op& prototype,
               const Scores& scores, const Report& report = {});
  // What it does in a table without a bound, once room was made.
  template <typename Op>
  Status WriteUnbounded(const KeyBits& bits, const KeyGroups& groups, const Op& prototype,
                        PendingBlobs* new_keys);
  // All ways of assigning.
  Status AssignRows(const KeyBatch& keys, const void* values, const void* slots,
                    const RowMetadata* metadata, const Scores& scores, bool insert_missing,
                    NewKeys new_keys, const Report& report);
  // Calls body(op, tally) with an Op of its own, and counts what it did.
  template <typename Op, typename Body>
  void RunOp(const Op& prototype, size_t keys, Body&& body);
  // REQUIRES: their mutexes.
  void Tidy(StripeSet stripes) const {
    for (; stripes != 0; stripes &= stripes - 1) stripes_[__builtin_ctzll(stripes)].Tidy();
  }
  // REQUIRES, for these: the mutexes of the keys' stripes. `order` has `count` key numbers.
  template <typename Op>
  Status WriteKeys(const KeyBits& bits, const uint32_t* order, size_t count, Op* op,
                   PendingBlobs* new_keys, DistinctKeys* seen, Tally* tally);
  // Whether WriteKeys streams rows to memory, past the caches. REQUIRES, of these two:
  // kReplacesRows.
  template <typename Op>
  bool StreamsRows(const Op& op) const;
  // Replaces rows so, unless keys come again and again: returns for how many keys. Those of them
  // that are not in their homes it leaves, as `others`.
  template <typename Op>
  size_t StreamKeys(const KeyBits& bits, const uint32_t* order, size_t count, Op op,
                    uint32_t* others, size_t* other_count) const;
  // Enters those of the keys that are not there, as long as there is room. Leaves the others, equal
  // ones in their order, as `rest`, and returns how many. kStreamed: rows are streamed to memory,
  // see StreamsRows. REQUIRES: kFillsAhead.
  template <bool kStreamed, typename Op>
  size_t FillAndEnter(const KeyBits& bits, const uint32_t* keys, size_t count, Op* op,
                      uint32_t* rest, Tally* tally);
  // What WriteKeys does with keys that it has not found. It is right for others too, only slower.
  template <typename Op>
  Status InsertNewKeys(const KeyBits& bits, const uint32_t* missing, size_t count, Op* op,
                       PendingBlobs* new_keys, DistinctKeys* seen, Tally* tally);
  // Changes the row of key i, and its metadata, as the Op says. Returns whether it does. array:
  // where the entry is; only metadata are asked for it.
  template <typename Op>
  bool UpdateRow(const BucketArray* array, size_t i, Stripe::Entry entry, std::byte* row, Op* op,
                 Tally* tally) const;
  // Whether a key that is not there may enter, which counts as seeing it; and how often it was
  // seen, this time included.
  Status Enters(const KeyBits& bits, size_t i, const RowContext& context, bool* enters,
                uint32_t* seen);
  // Key i has entered.
  void NoteEntered(const KeyBits& bits, size_t i) {
    if (admission_ == nullptr) return;
    admission_->Forget(StripeOf(Keys::Hash(bits[i])), bits[i], bits.bytes(i));
  }
  // Does with a key that is not there what the Op's NewKeys say. seen: the keys that this call has
  // asked to let in.
  template <typename Op>
  Status InsertKey(const KeyBits& bits, size_t i, uint64_t hash, Stripe* stripe, Op* op,
                   PendingBlobs* new_keys, DistinctKeys* seen, Tally* tally);
  // seen: how often the key was, this time included.
  template <typename Op>
  Status InsertRow(const KeyBits& bits, size_t i, uint64_t hash, Stripe* stripe, uint32_t seen,
                   Op* op, PendingBlobs* new_keys, Tally* tally);

  // Whether a row belongs to a string key. REQUIRES: the row cannot change owner meanwhile.
  bool HasKey(const std::byte* row, std::string_view bytes) const {
    if constexpr (Keys::kStrings) {
      return LoadBlob(row + layout_.key_offset)->view() == bytes;
    } else {
      return true;
    }
  }
  // The entry of key i. REQUIRES: the stripe's mutex.
  Stripe::Entry FindEntry(const Stripe& stripe, const KeyBits& bits, size_t i) const {
    return stripe.Find(bits[i], Keys::Hash(bits[i]), [&](uint32_t row_id) {
      if constexpr (Keys::kStrings) return KeyOf(row_id)->view() == bits.bytes(i);
      return true;
    });
  }
  // Of a tiered table: moves the rows of a batch to memory, and makes room there for its new keys,
  // before anything changes.
  using Inserts = std::function<bool(size_t i)>;  // Whether key i, missing, is to be inserted.
  Status FetchRows(const KeyBits& bits, const KeyGroups& groups, const Inserts& inserts) const;
  // Rows that a batch needs memory for, by stripe.
  using NeededRows = std::array<uint64_t, kStripes>;
  // Finds the keys of a group whose rows are in the file, and what the group needs. Returns how
  // many of its keys are there.
  size_t SurveyGroup(const KeyBits& bits, const KeyGroups& groups, size_t group,
                     const Inserts& inserts, std::vector<SlowRow>* slow, NeededRows* needed) const;
  // Makes room again after a batch.
  void TrimRows(const KeyGroups& groups) const;
  Status FetchGroup(const KeyBits& bits, const KeyGroups& groups, size_t group,
                    const Inserts& inserts, Tally* tally) const;

  // --- table_bounded.cc, table_evict.cc

  // What Write does in a bounded table, once room was made.
  template <typename Op>
  Status WriteBounded(const KeyBits& bits, const KeyGroups& groups, const Op& prototype,
                      const Scores& scores, const Report& report, PendingBlobs* new_keys);
  // What the threads of one call share.
  struct BoundedCall;
  struct Evicted;
  template <typename Op>
  struct Insertion;
  // Whether new keys of an Op are to be let in.
  template <typename Op>
  bool Admits(const Op& op) const {
    return admission_ != nullptr && op.context.new_keys == NewKeys::kAdmit;
  }
  // What WriteBounded does in a full table with many keys that are mostly new.
  template <typename Op>
  Status WriteFull(BoundedCall* call, const KeyGroups& groups, const Op& prototype);
  // Inserts missing keys, several lists of them.
  template <typename Op>
  Status InsertMissing(BoundedCall* call, const std::vector<std::vector<uint32_t>>& missing,
                       const Op& prototype);
  // Inserts missing keys of these stripes, of equal ones the first and those chained to it.
  template <typename Op>
  Status InsertList(std::vector<uint32_t>* keys, StripeSet stripes, const Insertion<Op>& insertion);
  // Adds the evicted rows to the call's report, if the call wants a report.
  Status ReportEvicted(const BoundedCall& call, std::vector<Evicted>* evicted) const;
  // REQUIRES, for the rest: the mutexes of the keys' stripes; of all, in an exact table.

  // Writes to the keys that are there, and adds the numbers of the others to `missing`.
  template <typename Op>
  Status UpdateKeys(const BoundedCall& call, const uint32_t* order, size_t count, Op* op,
                    Tally* tally, std::vector<uint32_t>* missing) const;
  // Inserts those of the keys that are not there, each with those chained to it.
  template <typename Op>
  Status InsertKeys(const uint32_t* keys, size_t count, Insertion<Op> insertion);
  // UpdateRow, and renews the score.
  template <typename Op>
  void UpdateEntry(const BoundedCall& call, const BucketArray& array, size_t i, Stripe::Entry entry,
                   std::byte* row, Op* op, Tally* tally) const;
  // Inserts key i and those chained to it, or rejects them.
  template <typename Op>
  Status InsertChain(uint32_t i, Insertion<Op>* insertion);
  // Inserts key i with its score. No entry: it was rejected.
  template <typename Op>
  Status InsertScored(size_t i, uint64_t score, uint32_t seen, Insertion<Op>* insertion,
                      Stripe::Entry* entry);
  // Whom a new key of this hash would evict.
  template <typename Op>
  Candidate LowestCandidate(uint64_t hash, const Insertion<Op>& insertion) const;
  // Takes an entry out of a full table. Its row is another key's, or to be dropped.
  template <typename Op>
  uint32_t Evict(const Candidate& candidate, Insertion<Op>* insertion);

  // --- table_scores.cc

  // Calls visit(stripe number, entry, score) for every key, a stripe at a time, with its mutex.
  template <typename Visit>
  Status VisitScores(Visit&& visit);

  // --- table_scan.cc

  // What of a stripe is still to be exported: keys whose position under `seed` is at least `begin`,
  // and whose position in the current array is at least `from`. `reordered`: the current array has
  // another seed.
  struct ExportRange {
    uint64_t from;
    uint64_t begin;
    uint64_t seed;
    bool reordered;
  };
  // Adds the rows of a range whose search starts in one bucket of a stripe. Returns false, with
  // some of them added, if another thread interfered. Rows in the file are put on a list, to be
  // filled in later.
  bool ExportBucket(const Stripe& stripe, const BucketArray& array, uint64_t home,
                    const ExportRange& range, ExportBatch* batch, std::vector<SlowRow>* slow) const;
  void AppendRow(uint64_t key_bits, const std::byte* row, ExportBatch* batch) const;
  // What the index has of an entry besides.
  void AppendColumns(const BucketArray& array, const Bucket* bucket, uint32_t index,
                     ExportBatch* batch) const;
  // The row of an entry. REQUIRES: the stripe's mutex, and that a ReadGuard stays until the rows
  // on the list are filled in.
  void AppendEntry(uint64_t key_bits, uint32_t row_id, ExportBatch* batch,
                   std::vector<SlowRow>* slow) const;
  void Truncate(size_t rows, ExportBatch* batch) const;

  // --- table_export.cc

  // Copies the rows of a stripe to the places [begin, end), says how many, and adds those there is
  // no room for to `rest`. Returns false if the stripe grew meanwhile: then nothing is complete.
  bool ExportStripe(const Stripe& stripe, const RowArrays& arrays, size_t begin, size_t end,
                    size_t* rows, ExportBatch* rest) const;
  // The same for one bucket, from `at` on. Returns false, with nothing added, if another thread
  // interfered.
  bool ExportBucketInto(const BucketArray& array, const Bucket* bucket, const RowArrays& arrays,
                        size_t end, size_t* at, ExportBatch* rest) const;

  // --- table_restrict.cc

  // Finds the boundary among `size` numbers. sample(array, bucket number, list) adds those of a
  // bucket to a list; look(stripe, part) tells a search what those of a stripe are like.
  template <typename Sample, typename Look>
  void FindBoundary(RankSearch* search, uint64_t size, Sample&& sample, Look&& look);

  // --- table_visit.h

  // Calls visit(entry, row) for every row of a stripe, with its mutex. `row_bytes` from
  // `row_offset` on are prefetched. Rows in the file come last; the mutex is given up while they
  // are read.
  template <typename Visit>
  Status VisitStripe(Stripe* stripe, size_t row_offset, size_t row_bytes, Visit&& visit);
  // Does so for rows that were in the file: number k is that of bits[k].
  template <typename Visit>
  Status VisitSlow(Stripe* stripe, const std::vector<uint64_t>& bits, std::vector<SlowRow>* rows,
                   Visit&& visit);
  // Removes the rows for which goes(entry, row) is true, counts them by `counter`, and says how
  // many. Takes the mutexes of the stripes, one after the other.
  template <typename Goes>
  Status RemoveRows(size_t row_offset, size_t row_bytes, uint64_t Tally::* counter, uint64_t* total,
                    Goes&& goes);
  // The rest touches no rows.

  // REQUIRES: the mutex of the entry's stripe.
  RowMetadata MetadataOf(Stripe::Entry entry) const {
    return ArrayFor(entry.key_bits())->MetadataOf(entry.bucket, entry.index);
  }
  // Calls visit(stripe number, entry, metadata) for every row, a stripe at a time, with its mutex.
  template <typename Visit>
  void VisitMetadata(Visit&& visit);
  // Removes the rows that going(array, bucket number) says, as a bit mask, counts them by
  // `counter`, and returns how many. The mask may have places without an entry.
  template <typename Going>
  uint64_t RemoveEntriesOf(uint64_t Tally::* counter, Going&& going);
  // Removes those for which goes(metadata) is true.
  template <typename Goes>
  uint64_t RemoveByMetadata(uint64_t Tally::* counter, Goes&& goes);
};

}  // namespace tfra
