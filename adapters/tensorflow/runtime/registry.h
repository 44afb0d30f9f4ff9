// The tables of this process that TensorFlow's resource handles name.
//
// A table lives as long as its tokens: values that are kept in TensorFlow's variable behind the
// handle, so that a table goes when TensorFlow drops that variable (its last Python object is gone,
// its Session closes, its server ends).
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "runtime/tf_c_api.h"
#include "tfra/table.h"

namespace tfra::tf {

// TensorFlow sees scores as int64, so that epochs, their high halves, have 31 bits.
inline constexpr uint32_t kMaxEpoch = INT32_MAX;

// Whose slots the rows of a table carry.
struct Owner {
  // What the workers that train the table together call their optimizer, and which one it is in
  // each. None: it is not known, so that the next one to come has the slots.
  std::string name;
  std::map<std::string, std::string> optimizers;
  std::unordered_set<std::string> former;  // Others, whose slots are gone.

  bool is_known() const { return !optimizers.empty(); }
  // They are nobody's, or the next one's.
  void Retire() {
    for (const auto& [worker, optimizer] : optimizers) former.insert(optimizer);
    optimizers.clear();
  }
};

// A table as TensorFlow sees it.
struct NamedTable {
  TF_DataType key_dtype;
  bool scalars;                // Values have the shape of the keys; the table's dim is 1.
  int64_t step_per_epoch = 0;  // 0: the epoch stays until it is set.
  mutable std::atomic<int64_t> steps{0};  // See TableUse::CountStep.
  mutable std::shared_mutex mutex;
  // Guarded by mutex.
  std::unique_ptr<Table> table;  // Replaced when another rule comes.

  mutable std::mutex owner_mutex;
  mutable Owner owner;  // Guarded by owner_mutex.
  // Whether the slots are another optimizer's, and the next update starts them anew.
  mutable std::atomic<bool> slots_start_anew{false};
};

// A table in use: none other takes its place meanwhile.
class TableUse {
 public:
  explicit TableUse(std::shared_ptr<NamedTable> named)
      : named_(std::move(named)), lock_(named_->mutex) {}

  // Gives the table the slots of this rule, if it has those of another one. Other ops may use the
  // table meanwhile. Whatever else the call brings has to be checked before.
  void TakeRule(const RuleSpec& rule);

  const NamedTable& named() const { return *named_; }
  Table& operator*() const { return *named_->table; }
  Table* operator->() const { return named_->table.get(); }

  // Whose slots these are is not known any more: they were restored.
  void ForgetOwner() const;

  // Notes one call that inserted, or one optimizer step. The epoch of the scores goes on after
  // every step_per_epoch of them.
  void CountStep() const;

 private:
  std::shared_ptr<NamedTable> named_;
  std::shared_lock<std::shared_mutex> lock_;
};

class Registry {
 public:
  static Registry& Get();

  // Null if there is none.
  std::shared_ptr<NamedTable> Find(const std::string& key) const;

  // Keeps a table alive. The last token of a table takes it along.
  class Token {
   public:
    Token(std::string key, std::shared_ptr<NamedTable> table)
        : key_(std::move(key)), table_(std::move(table)) {}
    ~Token() { Registry::Get().Release(key_, table_); }
    Token(const Token&) = delete;
    Token& operator=(const Token&) = delete;
    const NamedTable& table() const { return *table_; }

   private:
    const std::string key_;
    const std::shared_ptr<NamedTable> table_;
  };

  // A token for the table of that name, made by make() if there is none yet.
  std::unique_ptr<Token> FindOrMake(const std::string& key,
                                    const std::function<std::shared_ptr<NamedTable>()>& make);

  size_t size() const;

 private:
  void Release(const std::string& key, const std::shared_ptr<NamedTable>& table);

  struct Entry {
    std::shared_ptr<NamedTable> table;
    size_t tokens = 0;
  };

  mutable std::shared_mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;  // Guarded by mutex_.
};

}  // namespace tfra::tf
