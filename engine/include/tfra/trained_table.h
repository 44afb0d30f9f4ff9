// A table together with the optimizer that trains it: which optimizer is bound to it, how many
// steps were taken, and which slots its rows have. Every framework of a process uses tables through
// this class, and finds the same table by its handle.
//
// Rules: a table is made before its optimizer is known. The rule comes with the first step, and
// rows then get its slots: the table is copied once into rows of the other layout (UseRule). Calls
// of other threads wait for that copy; it waits for the calls that are under way. It is the same
// when rows get metadata (KeepMetadata), and when a restored table takes the place of this one
// (NewReplacement).
//
// Binding: rows have the slots of one optimizer. An optimizer binds itself before each step (Bind).
// A new optimizer takes the place of the one before it, and its first step starts the slots anew.
// If that step fails before it changes rows, nothing is lost: the one before may go on. Otherwise
// it is refused, until it starts again with step 1. After a restore no optimizer is bound: the next
// one to bind goes on with the restored slots, unless it takes step 1.
//
// Threads: any thread may call anything at any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "tfra/table.h"

namespace tfra {

// Epochs that optimizer steps reach. Frameworks without unsigned integers show scores, whose high
// halves are epochs, as int64.
inline constexpr uint32_t kMaxEpoch = INT32_MAX;

// An optimizer, as the tables that it trains know it.
struct OptimizerName {
  std::string name;    // Workers that train a table together give their optimizers one name.
  std::string unique;  // No other optimizer has this name.
  std::string worker;  // The process that the optimizer is in.
};

// What an optimizer keeps in a table: nothing, slots in the rows, or the rows (sums of gradients).
enum class OptimizerKeeps : uint8_t { kNothing, kSlots, kRows };

class TrainedTable {
 public:
  static Status Create(const TableSpec& spec, std::shared_ptr<TrainedTable>* table);
  ~TrainedTable();
  TrainedTable(const TrainedTable&) = delete;
  TrainedTable& operator=(const TrainedTable&) = delete;

  // A number that names the table in this process, never 0, and never given to another table.
  uint64_t handle() const { return handle_; }
  // Null if the table is gone.
  static std::shared_ptr<TrainedTable> Find(uint64_t handle);

  // Types that no rule changes.
  KeyType key_type() const { return key_type_; }
  ValueType value_type() const { return value_type_; }
  int64_t dim() const { return dim_; }
  bool is_scalar() const { return is_scalar_; }

  // A writer of a content that takes the place of all that is in the table, or of nothing if any of
  // its calls fails: it fills a new table, which Finish puts in the place of this one. Until then
  // both are in memory, and calls see the content before; what they write is gone afterwards. The
  // optimizer is unbound. Finish fails with kFailedPrecondition if the thread is in a call of this
  // table. options.mode is not used. REQUIRES: this table outlives the writer.
  Status NewReplacement(const WriteOptions& options, std::unique_ptr<ContentWriter>* writer);
  // Keeps a replacement that lacks nothing but Finish, so that several tables are filled before the
  // first one changes. One that was kept before is dropped. REQUIRES: this table's NewReplacement
  // made it.
  Status KeepReplacement(std::unique_ptr<ContentWriter> writer);
  // Returns the replacement that is kept, and keeps it no longer; or null.
  std::unique_ptr<ContentWriter> TakeReplacement();
  // Finishes the replacements that are kept in some tables: all or none, one after the other.
  // kFailedPrecondition: no replacement is kept in one of them, or the thread is in a call of one.
  static Status FinishReplacements(const std::vector<std::shared_ptr<TrainedTable>>& tables);

  // Gives the rows metadata, unless they have some, as if all had been written now for the first
  // time. kFailedPrecondition: as for UseRule.
  Status KeepMetadata();

  // A call under way. The layout of the rows does not change until the last one ends. A thread may
  // be in several calls of a table, one inside the other. REQUIRES: a Use ends on the thread that
  // began it.
  class Use {
   public:
    explicit Use(std::shared_ptr<TrainedTable> table);
    // Nothing, instead of waiting for a rule change.
    static std::optional<Use> Try(const std::shared_ptr<TrainedTable>& table);
    ~Use();
    Use(Use&& other) noexcept : table_(std::move(other.table_)) {}
    Use& operator=(Use&&) = delete;

    Table& operator*() const { return *table_->table_; }
    Table* operator->() const { return table_->table_.get(); }
    TrainedTable& trained() const { return *table_; }

    // Whether rows have the slots of this rule, and the next step goes on with them.
    bool HasSlotsOf(const RuleSpec& rule) const {
      return table_->table_->spec().rule == rule && !table_->slots_start_anew_;
    }
    // Gives the rows the slots of this rule, if they have others. Other calls may run in between:
    // check whatever else the call brings before. kFailedPrecondition: the thread is in another
    // call of this table, such as one that a signal handler interrupted.
    Status UseRule(const RuleSpec& rule);
    // Like UseRule, for the bound optimizer, which is about to change rows: from here on, an
    // optimizer whose place it took is refused.
    Status BeginStep(const RuleSpec& rule);

    // What a step by `rule` starts from: values (n, dim) and slots (n, slot elements of the rule).
    // Slots that the step will start anew are initial ones.
    Status LookupForStep(const KeyBatch& keys, const RuleSpec& rule, void* values, void* slots);

    // One optimizer step with the slots of `rule`. params.step is the number of the step; without
    // `has_step`, the one after step().
    Status ApplyGradients(const KeyBatch& keys, const void* gradients, ValueType gradient_type,
                          const RuleSpec& rule, UpdateParams params, bool has_step,
                          const Scores& scores = {}, NewKeys new_keys = NewKeys::kAdmit);

    // Binds an optimizer that is about to take a step. step: its number, from 1; 0 if the optimizer
    // does not count steps. The first step of a new optimizer (step 1, or 0 if another one was
    // bound) drops what the table has of the one before: the slots when the step begins; with
    // kRows, all rows now. table_name: for the message. kFailedPrecondition: another optimizer has
    // taken its place.
    Status Bind(const OptimizerName& optimizer, OptimizerKeeps keeps, int64_t step,
                const std::string& table_name) const;
    // For callers whose optimizer is nothing but a rule. Their steps go on with slots of the rule,
    // whoever made them. If rows have other slots, or no optimizer is bound, binds one that is
    // named after the rule. step: as for Bind.
    Status BindRule(const RuleSpec& rule, int64_t step) const;
    // kFailedPrecondition unless the rows have the slots of this optimizer and rule.
    Status RequireBound(const std::string& unique_name, const RuleSpec& rule) const;

    // The content of the table (tfra/content.h), to be read or written. REQUIRES: while the reader
    // or writer lives, this object stays where it is, and nobody calls its UseRule.
    std::unique_ptr<ContentReader> NewReader(const ReadOptions& options = {}) const;
    // A content that takes the place of all rows also unbinds the optimizer.
    std::unique_ptr<ContentWriter> NewWriter(const WriteOptions& options = {});

    // Notes one call that inserted, or one step, that did not go through ApplyGradients. The epoch
    // of the scores is one higher after every Bound::steps_per_epoch of them.
    void CountStep() const;

   private:
    struct Entered {};
    Use(std::shared_ptr<TrainedTable> table, Entered) : table_(std::move(table)) {}

    std::shared_ptr<TrainedTable> table_;
  };

  // Unbinds the optimizer and keeps the slots, for tables that were restored. The next one to bind
  // gets them, unless it takes step 1.
  void Unbind();

  // The number of the last step.
  int64_t step() const { return step_.load(); }
  void set_step(int64_t step) { step_.store(step); }
  // Calls and steps that CountStep noted.
  int64_t epoch_steps() const { return epoch_steps_.load(); }
  void set_epoch_steps(int64_t steps) { epoch_steps_.store(steps); }

  // Around fork(), for all tables of the process: see process/fork.cc, the only caller.
  static void LockAllForFork();
  static void UnlockAllAfterFork(bool in_child);

 private:
  class Replacement;

  TrainedTable(const TableSpec& spec, std::unique_ptr<Table> table);

  // Calls that use the table, as a counter, and a change of the whole table, which waits until
  // there are none.
  bool TryEnter();
  void Enter();
  void Leave();
  // kFailedPrecondition: this thread is in a call.
  Status RequireNoCall() const;
  // Returns change(), which runs while no call uses the table. REQUIRES (kFailedPrecondition
  // otherwise): RequireNoCall.
  Status ChangeAlone(const std::function<Status()>& change);
  // The optimizers that the bound one has replaced can't go on any more.
  void CommitBinding();

  const uint64_t handle_;
  const KeyType key_type_;
  const ValueType value_type_;
  const int64_t dim_;
  const bool is_scalar_;
  const int64_t steps_per_epoch_;

  // The number of calls under way, and kChanging while a change of the whole table waits for them
  // or runs.
  static constexpr uint32_t kChanging = uint32_t{1} << 31;
  std::atomic<uint32_t> calls_{0};
  std::mutex changing_;                         // Held by a change of the whole table.
  std::unique_ptr<Table> table_;                // Replaced by such changes.
  std::unique_ptr<ContentWriter> replacement_;  // Guarded by changing_.

  std::mutex binding_;
  // Guarded by binding_.
  std::string bound_name_;
  std::map<std::string, std::string> bound_optimizers_;  // Unique names, by worker.
  std::unordered_set<std::string> former_optimizers_;    // Their slots are gone, or in `replaced_`.
  // The optimizers whose place was taken, until the new one begins a step: rows still have their
  // slots.
  struct Replaced {
    std::string name;
    std::map<std::string, std::string> optimizers;  // As bound_optimizers_.
  };
  std::optional<Replaced> replaced_;
  // Whether the slots are those of another optimizer, and the next step starts them anew.
  std::atomic<bool> slots_start_anew_{false};

  std::atomic<int64_t> step_{0};
  std::atomic<int64_t> epoch_steps_{0};
};

}  // namespace tfra
