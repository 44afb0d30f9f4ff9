#include "runtime/registry.h"

namespace tfra::tf {

TF_DataType KeyDtypeOf(const TrainedTable& table) {
  switch (table.key_type()) {
    case KeyType::kInt32:
      return TF_INT32;
    case KeyType::kInt64:
      return TF_INT64;
    case KeyType::kString:
      return TF_STRING;
  }
  return TF_INT64;
}

Registry& Registry::Get() {
  // Never deleted: TensorFlow may release lifetime handles at exit.
  static Registry* registry = new Registry;
  return *registry;
}

std::shared_ptr<TrainedTable> Registry::Find(const std::string& key) const {
  std::shared_lock lock(mutex_);
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : found->second.table;
}

std::unique_ptr<Registry::LifetimeHandle> Registry::FindOrMake(
    const std::string& key, const std::function<std::shared_ptr<TrainedTable>()>& make) {
  std::unique_lock lock(mutex_);
  auto found = entries_.find(key);
  if (found == entries_.end()) found = entries_.emplace(key, Entry{make()}).first;
  ++found->second.lifetime_handles;
  return std::make_unique<LifetimeHandle>(key, found->second.table);
}

void Registry::Release(const std::string& key, const std::shared_ptr<TrainedTable>& table) {
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.table != table) return;
  // The caller still holds the table, and frees it after the lock is released.
  if (--found->second.lifetime_handles == 0) entries_.erase(found);
}

size_t Registry::size() const {
  std::shared_lock lock(mutex_);
  return entries_.size();
}

}  // namespace tfra::tf
