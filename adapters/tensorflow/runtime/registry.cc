#include "runtime/registry.h"

#include "runtime/op_context.h"

namespace tfra::tf {

void TableUse::TakeRule(const RuleSpec& rule) {
  const auto fits = [&] { return named_->table->spec().rule == rule && !named_->slots_start_anew; };
  while (!fits()) {
    lock_.unlock();
    {
      std::unique_lock alone(named_->mutex);
      if (!fits()) {
        std::unique_ptr<Table> table;
        Check(named_->table->CopyWithRule(rule, !named_->slots_start_anew, &table));
        named_->table = std::move(table);
        named_->slots_start_anew = false;
      }
    }
    lock_.lock();
  }
}

void TableUse::ForgetOwner() const {
  const std::lock_guard lock(named_->owner_mutex);
  named_->owner.Retire();
  named_->slots_start_anew = false;
}

void TableUse::CountStep() const {
  if (named_->step_per_epoch == 0) return;
  if ((named_->steps.fetch_add(1) + 1) % named_->step_per_epoch != 0) return;
  const uint32_t epoch = named_->table->epoch();
  if (epoch < kMaxEpoch) named_->table->SetEpoch(epoch + 1);
}

Registry& Registry::Get() {
  static Registry* registry = new Registry;  // Tokens may be released while the process ends.
  return *registry;
}

std::shared_ptr<NamedTable> Registry::Find(const std::string& key) const {
  std::shared_lock lock(mutex_);
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : found->second.table;
}

std::unique_ptr<Registry::Token> Registry::FindOrMake(
    const std::string& key, const std::function<std::shared_ptr<NamedTable>()>& make) {
  std::unique_lock lock(mutex_);
  auto found = entries_.find(key);
  if (found == entries_.end()) found = entries_.emplace(key, Entry{make()}).first;
  ++found->second.tokens;
  return std::make_unique<Token>(key, found->second.table);
}

void Registry::Release(const std::string& key, const std::shared_ptr<NamedTable>& table) {
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.table != table) return;
  // The caller still holds the table, and frees it without the lock.
  if (--found->second.tokens == 0) entries_.erase(found);
}

size_t Registry::size() const {
  std::shared_lock lock(mutex_);
  return entries_.size();
}

}  // namespace tfra::tf
