#include "tfra/trained_table.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "rows/row_layout.h"

namespace tfra {
namespace {

// All tables of the process. A table stays listed until its destructor has begun, when its weak
// pointer has expired already: fork needs the plain pointer, too.
struct Registry {
  struct Entry {
    std::weak_ptr<TrainedTable> shared;
    TrainedTable* table;
  };
  std::mutex mutex;
  // Guarded by mutex.
  std::map<uint64_t, Entry> tables;  // By handle, the order in which fork locks them.
  uint64_t last_handle = 0;
};

Registry& TheRegistry() {
  static Registry* registry = new Registry;  // Tables may go while the process ends.
  return *registry;
}

uint64_t NewHandle() {
  const std::lock_guard lock(TheRegistry().mutex);
  return ++TheRegistry().last_handle;
}

// The tables that this thread is in calls of, one entry for each call. Calls beyond `kRoom` are not
// noted: then a call inside of another waits for a rule change that waits for the outer one. There
// is no destructor, because tables are used while threads and the process end.
class CallsOfThread {
 public:
  void Add(const TrainedTable* table) {
    if (size_ < kRoom) tables_[size_++] = table;
  }
  void Remove(const TrainedTable* table) {
    for (size_t i = size_; i-- > 0;) {
      if (tables_[i] != table) continue;
      tables_[i] = tables_[--size_];
      return;
    }
  }
  uint32_t Count(const TrainedTable* table) const {
    return static_cast<uint32_t>(std::count(tables_, tables_ + size_, table));
  }

 private:
  static constexpr size_t kRoom = 256;
  const TrainedTable* tables_[kRoom] = {};
  size_t size_ = 0;
};

constinit thread_local CallsOfThread calls_of_thread;

}  // namespace

TrainedTable::TrainedTable(const TableSpec& spec, std::unique_ptr<Table> table)
    : handle_(NewHandle()),
      key_type_(spec.key_type),
      value_type_(spec.value_type),
      dim_(spec.dim),
      is_scalar_(spec.scalar),
      steps_per_epoch_(spec.bound.steps_per_epoch),
      table_(std::move(table)) {}

Status TrainedTable::Create(const TableSpec& spec, std::shared_ptr<TrainedTable>* table) try {
  std::unique_ptr<Table> made;
  TFRA_RETURN_IF_ERROR(Table::Create(spec, &made));
  std::shared_ptr<TrainedTable> trained(new TrainedTable(spec, std::move(made)));
  {
    const std::lock_guard lock(TheRegistry().mutex);
    TheRegistry().tables[trained->handle_] = {trained, trained.get()};
  }
  *table = std::move(trained);
  return Status::Ok();
} catch (const std::bad_alloc&) {
  return Status::OutOfMemory("could not allocate a table");
}

TrainedTable::~TrainedTable() {
  const std::lock_guard lock(TheRegistry().mutex);
  TheRegistry().tables.erase(handle_);
}

std::shared_ptr<TrainedTable> TrainedTable::Find(uint64_t handle) {
  const std::lock_guard lock(TheRegistry().mutex);
  const auto found = TheRegistry().tables.find(handle);
  return found == TheRegistry().tables.end() ? nullptr : found->second.shared.lock();
}

// --- Calls and rule changes.

bool TrainedTable::TryEnter() {
  // A rule change waits for the outer call of this thread, and so for this one.
  if (!(calls_.fetch_add(1) & kChanging) || calls_of_thread.Count(this) > 0) {
    calls_of_thread.Add(this);
    return true;
  }
  // The last call wakes a rule change.
  calls_.fetch_sub(1);
  calls_.notify_all();
  return false;
}

void TrainedTable::Enter() {
  while (!TryEnter()) {
    const uint32_t now = calls_.load();
    if (now & kChanging) calls_.wait(now);
  }
}

void TrainedTable::Leave() {
  calls_of_thread.Remove(this);
  // The last call wakes a rule change; calls that wait for its end look again.
  if (calls_.fetch_sub(1) & kChanging) calls_.notify_all();
}

TrainedTable::Use::Use(std::shared_ptr<TrainedTable> table) : table_(std::move(table)) {
  table_->Enter();
}

std::optional<TrainedTable::Use> TrainedTable::Use::Try(
    const std::shared_ptr<TrainedTable>& table) {
  if (!table->TryEnter()) return std::nullopt;
  return Use(table, Entered());
}

TrainedTable::Use::~Use() {
  if (table_ != nullptr) table_->Leave();
}

Status TrainedTable::RequireNoCall() const {
  if (calls_of_thread.Count(this) == 0) return Status::Ok();
  return Status::FailedPrecondition(
      "a table gets other slots, metadata or a restored content between its calls. Expected the "
      "first step of an optimizer, a policy or a restore while this thread is in no other call of "
      "the table. Received one inside of such a call, as from the handler of a signal");
}

Status TrainedTable::ChangeAlone(const std::function<Status()>& change) {
  TFRA_RETURN_IF_ERROR(RequireNoCall());
  // One thread changes the table at a time.
  while (calls_.fetch_or(kChanging) & kChanging) {
    const uint32_t now = calls_.load();
    if (now & kChanging) calls_.wait(now);
  }
  for (uint32_t now; (now = calls_.load()) != kChanging;) calls_.wait(now);
  Status status;
  {
    // Not before, since fork() takes this mutex, too: the calls under way may need what the thread
    // that forks holds, such as the GIL.
    const std::lock_guard alone(changing_);
    status = CatchBadAlloc(change);
  }
  calls_.fetch_and(~kChanging);
  calls_.notify_all();
  return status;
}

Status TrainedTable::Use::UseRule(const RuleSpec& rule) {
  TrainedTable& trained = *table_;
  while (!HasSlotsOf(rule)) {
    std::unique_ptr<Table> former;  // Freed after the others go on.
    trained.Leave();
    const Status status = trained.ChangeAlone([&] {
      if (HasSlotsOf(rule)) return Status::Ok();
      std::unique_ptr<Table> copy;
      TFRA_RETURN_IF_ERROR(trained.table_->CopyWithRule(rule, !trained.slots_start_anew_, &copy));
      former = std::exchange(trained.table_, std::move(copy));
      trained.slots_start_anew_ = false;
      return Status::Ok();
    });
    trained.Enter();
    TFRA_RETURN_IF_ERROR(status);
  }
  return Status::Ok();
}

Status TrainedTable::KeepMetadata() {
  Enter();
  const bool has_metadata = table_->spec().metadata;
  Leave();
  if (has_metadata) return Status::Ok();
  std::unique_ptr<Table> former;  // Freed after the others go on.
  return ChangeAlone([&] {
    if (table_->spec().metadata) return Status::Ok();
    std::unique_ptr<Table> copy;
    TFRA_RETURN_IF_ERROR(table_->CopyWithMetadata(&copy));
    former = std::exchange(table_, std::move(copy));
    return Status::Ok();
  });
}

// --- Steps.

Status TrainedTable::Use::BeginStep(const RuleSpec& rule) {
  TFRA_RETURN_IF_ERROR(UseRule(rule));
  table_->CommitBinding();
  return Status::Ok();
}

Status TrainedTable::Use::LookupForStep(const KeyBatch& keys, const RuleSpec& rule, void* values,
                                        void* slots) {
  TrainedTable& trained = *table_;
  if (!trained.slots_start_anew_) {
    TFRA_RETURN_IF_ERROR(UseRule(rule));
    return trained.table_->Lookup(keys, {}, values, nullptr, slots);
  }
  TableSpec spec = trained.table_->spec();
  spec.rule = rule;
  const std::vector<std::byte> initial = RowLayout(spec).initial_slots;
  auto* out = static_cast<std::byte*>(slots);
  for (size_t i = 0; i < keys.size; ++i) {
    out = std::copy(initial.begin(), initial.end(), out);
  }
  return trained.table_->Lookup(keys, {}, values, nullptr);
}

Status TrainedTable::Use::ApplyGradients(const KeyBatch& keys, const void* gradients,
                                         ValueType gradient_type, const RuleSpec& rule,
                                         UpdateParams params, bool has_step, const Scores& scores,
                                         NewKeys new_keys) {
  TrainedTable& trained = *table_;
  TFRA_RETURN_IF_ERROR(CheckStep(rule, params, trained.value_type_, gradient_type));
  TFRA_RETURN_IF_ERROR(BeginStep(rule));
  // Two threads never take the same step. A failed step is undone, unless another thread has taken
  // one since.
  const int64_t before =
      has_step ? trained.step_.exchange(params.step) : trained.step_.fetch_add(1);
  if (!has_step) params.step = before + 1;
  const Status status = trained.table_->training().ApplyGradients(keys, gradients, gradient_type,
                                                                  params, scores, new_keys);
  if (!status.ok()) {
    int64_t taken = params.step;
    trained.step_.compare_exchange_strong(taken, before);
    return status;
  }
  CountStep();
  return Status::Ok();
}

void TrainedTable::Use::CountStep() const {
  if (table_->steps_per_epoch_ == 0) return;
  if ((table_->epoch_steps_.fetch_add(1) + 1) % table_->steps_per_epoch_ != 0) return;
  const uint32_t epoch = table_->table_->scores().epoch();
  if (epoch < kMaxEpoch) table_->table_->scores().SetEpoch(epoch + 1);
}

// --- Binding.

Status TrainedTable::Use::Bind(const OptimizerName& optimizer, OptimizerKeeps keeps, int64_t step,
                               const std::string& table_name) const {
  TrainedTable& table = *table_;
  const std::lock_guard lock(table.binding_);
  auto& bound = table.bound_optimizers_;
  auto& former = table.former_optimizers_;
  const auto of_worker = bound.find(optimizer.worker);
  if (of_worker != bound.end() && of_worker->second == optimizer.unique) return Status::Ok();
  if (table.replaced_) {
    const auto replaced = table.replaced_->optimizers.find(optimizer.worker);
    if (replaced != table.replaced_->optimizers.end() && replaced->second == optimizer.unique) {
      // The optimizer that took its place has changed no row.
      for (const auto& [worker, unique] : table.replaced_->optimizers) former.erase(unique);
      table.bound_name_ = std::move(table.replaced_->name);
      bound = std::move(table.replaced_->optimizers);
      table.replaced_.reset();
      table.slots_start_anew_ = false;
      return Status::Ok();
    }
  }
  const bool others_bound = !bound.empty();
  const bool was_bound = former.count(optimizer.unique) != 0;
  if (others_bound && of_worker == bound.end() && table.bound_name_ == optimizer.name &&
      !was_bound) {
    // Another worker of the same program.
    bound[optimizer.worker] = optimizer.unique;
    return Status::Ok();
  }
  if (others_bound && was_bound && step != 1) {
    return Status::FailedPrecondition(
        "a table has the slots of one optimizer. Expected a step of '" + bound.begin()->second +
        "', which trains the table '" + table_name +
        "' now, or the first step of a new optimizer. Received a step of '" + optimizer.unique +
        "', which trained it before that one took its place.");
  }
  // Optimizers without slots may take turns.
  if (others_bound && (keeps != OptimizerKeeps::kNothing || table.table_->slot_elements() > 0)) {
    // If they have changed no row, rows have the slots of those before them.
    if (!table.replaced_) {
      for (const auto& [worker, unique] : bound) former.insert(unique);
      table.replaced_ = Replaced{table.bound_name_, bound};
    }
  }
  former.erase(optimizer.unique);
  table.bound_name_ = optimizer.name;
  bound = {{optimizer.worker, optimizer.unique}};
  // Without a number, a step goes on with what was restored, but not with what another left.
  if (step > 1 || (step == 0 && !others_bound)) return Status::Ok();
  if (keeps == OptimizerKeeps::kRows) return table.table_->Clear();
  if (table.table_->slot_elements() > 0) table.slots_start_anew_ = true;
  return Status::Ok();
}

Status TrainedTable::Use::BindRule(const RuleSpec& rule, int64_t step) const {
  if (HasSlotsOf(rule)) {
    const std::lock_guard lock(table_->binding_);
    if (!table_->bound_optimizers_.empty()) return Status::Ok();
  }
  const std::string name = "tfra.Table with the rule " + PrintRuleSpec(rule);
  const bool has_slots = !SlotLayout(rule).empty();
  return Bind({name, name, "tfra.Table"},
              has_slots ? OptimizerKeeps::kSlots : OptimizerKeeps::kNothing, step,
              std::to_string(table_->handle_));
}

Status TrainedTable::Use::RequireBound(const std::string& unique_name, const RuleSpec& rule) const {
  TrainedTable& table = *table_;
  const std::lock_guard lock(table.binding_);
  const auto& bound = table.bound_optimizers_;
  const bool is_other = !bound.empty() && std::none_of(bound.begin(), bound.end(), [&](auto& each) {
    return each.second == unique_name;
  });
  if (!is_other && table.table_->spec().rule == rule && !table.slots_start_anew_)
    return Status::Ok();
  return Status::FailedPrecondition(
      "a table has the slots of one optimizer, from its first step on. Expected those of '" +
      unique_name + "', rule " + PrintRuleSpec(rule) + ". Received a table with those of '" +
      (bound.empty() ? "nobody" : bound.begin()->second) + "', rule " +
      PrintRuleSpec(table.table_->spec().rule) + ".");
}

void TrainedTable::Unbind() {
  const std::lock_guard lock(binding_);
  for (const auto& [worker, unique] : bound_optimizers_) former_optimizers_.insert(unique);
  bound_optimizers_.clear();
  replaced_.reset();
  slots_start_anew_ = false;
}

void TrainedTable::CommitBinding() {
  const std::lock_guard lock(binding_);
  replaced_.reset();
}

// --- fork().

void TrainedTable::LockAllForFork() {
  TheRegistry().mutex.lock();
  for (const auto& [handle, entry] : TheRegistry().tables) entry.table->changing_.lock();
  for (const auto& [handle, entry] : TheRegistry().tables) entry.table->binding_.lock();
}

void TrainedTable::UnlockAllAfterFork(bool in_child) {
  for (const auto& [handle, entry] : TheRegistry().tables) {
    // Calls of other threads do not go on there.
    if (in_child) entry.table->calls_ = calls_of_thread.Count(entry.table);
    entry.table->binding_.unlock();
    entry.table->changing_.unlock();
  }
  TheRegistry().mutex.unlock();
}

}  // namespace tfra
