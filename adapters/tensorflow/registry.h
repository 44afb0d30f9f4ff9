// The tables of this process that TensorFlow's resource handles name.
//
// A table lives as long as its tokens: values that are kept in TensorFlow's variable behind the
// handle, so that a table goes when TensorFlow drops that variable (its last Python object is gone,
// its Session closes, its server ends).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "tf_c_api.h"
#include "tfra/table.h"

namespace tfra::tf {

// A table as TensorFlow sees it.
struct NamedTable {
  TF_DataType key_dtype;
  bool scalars;  // Values have the shape of the keys; the table's dim is 1.
  std::unique_ptr<Table> table;
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
