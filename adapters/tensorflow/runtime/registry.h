// Finds the tables of this process by TensorFlow's resource handles.
//
// A table lives as long as its lifetime handles. A lifetime handle is a tensor, the value of the
// TensorFlow variable that the resource handle names. TensorFlow frees that variable when its last
// Python object is deleted, its Session is closed, or its server ends. The table is then freed too.
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

// A table that an op uses. Its rows keep their layout until the op ends.
using TableUse = TrainedTable::Use;

// Returns TensorFlow's type for the keys of a table.
TF_DataType KeyDtypeOf(const TrainedTable& table);

// Threads: any thread may call anything at any time.
class Registry {
 public:
  static Registry& Get();

  // Returns the table with this key (ResourceKey), or null.
  std::shared_ptr<TrainedTable> Find(const std::string& key) const;

  // Keeps a table alive. The table is freed with its last lifetime handle.
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

  // Returns a new lifetime handle of the table with this key. If there is no such table, make()
  // makes it.
  std::unique_ptr<LifetimeHandle> FindOrMake(
      const std::string& key, const std::function<std::shared_ptr<TrainedTable>()>& make);

  // Returns the number of tables.
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
