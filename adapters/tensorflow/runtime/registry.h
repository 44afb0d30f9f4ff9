// The tables of this process that TensorFlow's resource handles name.
//
// A table lives as long as its lifetime handles: tensors that are kept in TensorFlow's variable
// behind the handle, so that a table goes when TensorFlow drops that variable (its last Python
// object is gone, its Session closes, its server ends).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "runtime/tf_c_api.h"
#include "tfra/trained_table.h"

namespace tfra::tf {

// A table in use by an op.
using TableUse = TrainedTable::Use;

// The type of the keys, as TensorFlow names it.
TF_DataType KeyDtypeOf(const TrainedTable& table);

class Registry {
 public:
  static Registry& Get();

  // Null if there is none.
  std::shared_ptr<TrainedTable> Find(const std::string& key) const;

  // Keeps a table alive: a table is freed with its last lifetime handle.
  class LifetimeHandle {
   public:
    LifetimeHandle(std::string key, std::shared_ptr<TrainedTable> table)
        : key_(std::move(key)), table_(std::move(table)) {}
    ~LifetimeHandle() { Registry::Get().Release(key_, table_); }
    LifetimeHandle(const LifetimeHandle&) = delete;
    LifetimeHandle& operator=(const LifetimeHandle&) = delete;
    const std::shared_ptr<TrainedTable>& table() const { return table_; }

   private:
    const std::string key_;
    const std::shared_ptr<TrainedTable> table_;
  };

  // A lifetime handle of the table of that name, made by make() if there is none yet.
  std::unique_ptr<LifetimeHandle> FindOrMake(
      const std::string& key, const std::function<std::shared_ptr<TrainedTable>()>& make);

  size_t size() const;

 private:
  void Release(const std::string& key, const std::shared_ptr<TrainedTable>& table);

  struct Entry {
    std::shared_ptr<TrainedTable> table;
    size_t lifetime_handles = 0;
  };

  mutable std::shared_mutex mutex_;
  std::unordered_map<std::string, Entry> entries_;  // Guarded by mutex_.
};

}  // namespace tfra::tf
