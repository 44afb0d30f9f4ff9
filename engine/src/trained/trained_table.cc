#include "tfra/trained_table.h"

#include <algorithm>

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
  if (!(calls_.fetch_add(1) & kChanging)) return true;
  Leave();
  return false;
}

void TrainedTable::Enter() {
  while (!TryEnter()) {
    const uint32_t now = calls_.load();
    if (now & kChanging) calls_.wait(now);
  }
}

void TrainedTable::Leave() {
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

Status TrainedTable::Use::UseRule(const RuleSpec& rule) {
  TrainedTable& trained = *table_;
  while (!HasSlotsOf(rule)) {
    trained.Leave();
    Status status;
    {
      const std::lock_guard alone(trained.changing_);
      uint32_t now = trained.calls_.fetch_or(kChanging) | kChanging;
      for (; now != kChanging; now = trained.calls_.load()) trained.calls_.wait(now);
      if (!HasSlotsOf(rule)) {
        std::unique_ptr<Table> copy;
        status = trained.table_->CopyWithRule(rule, !trained.slots_start_anew_, &copy);
        if (status.ok()) {
          trained.table_ = std::move(copy);
          trained.slots_start_anew_ = false;
        }
      }
      trained.calls_.fetch_and(~kChanging);
      trained.calls_.notify_all();
    }
    trained.Enter();
    TFRA_RETURN_IF_ERROR(status);
  }
  return Status::Ok();
}

// --- Steps.

Status TrainedTable::Use::ApplyGradients(const KeyBatch& keys, const void* gradients,
                                         ValueType gradient_type, const RuleSpec& rule,
                                         UpdateParams params, bool has_step, const Scores& scores,
                                         NewKeys new_keys) {
  TrainedTable& trained = *table_;
  TFRA_RETURN_IF_ERROR(CheckStep(rule, params, trained.value_type_, gradient_type));
  TFRA_RETURN_IF_ERROR(UseRule(rule));
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
    for (const auto& [worker, unique] : bound) former.insert(unique);
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
  slots_start_anew_ = false;
}

// --- fork().

void TrainedTable::LockAllForFork() {
  TheRegistry().mutex.lock();
  for (const auto& [handle, entry] : TheRegistry().tables) entry.table->changing_.lock();
  for (const auto& [handle, entry] : TheRegistry().tables) entry.table->binding_.lock();
}

void TrainedTable::UnlockAllAfterFork(bool in_child) {
  for (const auto& [handle, entry] : TheRegistry().tables) {
    if (in_child) entry.table->calls_ = 0;  // Calls of other threads do not go on there.
    entry.table->binding_.unlock();
    entry.table->changing_.unlock();
  }
  TheRegistry().mutex.unlock();
}

}  // namespace tfra
