#include "registry.h"

namespace tfra::tf {

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
  auto token = std::make_unique<Token>();
  token->key = key;
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(key);
  if (found != entries_.end()) {
    token->table = found->second.table;
    ++found->second.tokens;
  } else {
    token->table = make();
    entries_.emplace(key, Entry{token->table, 1});
  }
  return token;
}

void Registry::Release(std::unique_ptr<Token> token) {
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(token->key);
  if (found != entries_.end() && found->second.table == token->table &&
      --found->second.tokens == 0) {
    entries_.erase(found);
  }
  lock.unlock();
  token.reset();  // Frees the table, if it was the last, without the lock.
}

size_t Registry::size() const {
  std::shared_lock lock(mutex_);
  return entries_.size();
}

}  // namespace tfra::tf
