// What the table tests share: keys and rows of every type, made from small numbers, and a table's
// whole content as a map that can be compared.
//
// The numbers 0 .. 100 are exact in every value type, so one test body serves all of them. A bool
// keeps a number's lowest bit; a string is its digits, and the empty string for 0, which makes 0
// the initial value of every type.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/sync.h"
#include "check.h"
#include "kernels/dispatch.h"
#include "tfra/table.h"
#include "tfra/thread_pool.h"

namespace tfra::test {

// Long tests do a tenth under ThreadSanitizer, which slows them down that much.
#ifdef TFRA_TSAN
inline constexpr int kSlowdown = 10;
#else
inline constexpr int kSlowdown = 1;
#endif

inline constexpr KeyType kKeyTypes[] = {KeyType::kInt64, KeyType::kString};
inline constexpr ValueType kValueTypes[] = {
    ValueType::kFloat32, ValueType::kFloat16, ValueType::kBfloat16,
    ValueType::kFloat64, ValueType::kInt8,    ValueType::kInt32,
    ValueType::kInt64,   ValueType::kBool,    ValueType::kString};

// Restores the number of threads that the other tests run with.
class ScopedNumThreads {
 public:
  explicit ScopedNumThreads(int threads) : before_(NumThreads()) { SetNumThreads(threads); }
  ~ScopedNumThreads() { SetNumThreads(before_); }

 private:
  const int before_;
};

// The bound of tables that SpecOf makes; none, but where a test runs others for bounded tables.
inline Bound& BoundOfTests() {
  static Bound bound;
  return bound;
}

// The same for tiers. String values are in memory only.
inline Tiers& TiersOfTests() {
  static Tiers tiers;
  return tiers;
}

// Runs the tests whose names begin with one of these, for tables with a bound, or tiers, of theirs.
inline void RunTestsWith(const Bound& bound, const Tiers& tiers,
                         const std::vector<std::string>& names) {
  BoundOfTests() = bound;
  TiersOfTests() = tiers;
  for (const std::string& name : names) {
    size_t found = 0;
    for (const TestCase& test : std::vector<TestCase>(AllTests())) {
      if (test.name.rfind(name, 0) != 0) continue;
      const int before = FailureCount();
      test.body();
      if (FailureCount() != before) std::printf("  failed so: %s\n", test.name.c_str());
      ++found;
    }
    CHECK(found > 0);
  }
  BoundOfTests() = Bound();
  TiersOfTests() = Tiers();
}

inline TableSpec SpecOf(KeyType key_type, ValueType value_type, int64_t dim) {
  TableSpec spec;
  spec.key_type = key_type;
  spec.value_type = value_type;
  spec.dim = dim;
  spec.bound = BoundOfTests();
  if (value_type != ValueType::kString) spec.tiers = TiersOfTests();
  return spec;
}

inline std::unique_ptr<Table> MakeTable(const TableSpec& spec) {
  std::unique_ptr<Table> table;
  CHECK_OK(Table::Create(spec, &table));
  return table;
}

// Keys of one call and their memory.
class TestKeys {
 public:
  // Keys of either type from numbers.
  TestKeys(KeyType type, const std::vector<int64_t>& numbers) : type_(type), ints_(numbers) {
    if (type == KeyType::kInt64) return;
    for (int64_t number : numbers) strings_.push_back("key " + std::to_string(number));
    ints_.clear();
  }
  explicit TestKeys(std::vector<std::string> strings)
      : type_(KeyType::kString), strings_(std::move(strings)) {}

  static TestKeys Range(KeyType type, int64_t begin, int64_t end) {
    std::vector<int64_t> numbers;
    for (int64_t i = begin; i < end; ++i) numbers.push_back(i);
    return TestKeys(type, numbers);
  }

  size_t size() const { return type_ == KeyType::kInt64 ? ints_.size() : strings_.size(); }
  KeyBatch batch() const {
    if (type_ == KeyType::kInt64) return KeyBatch(ints_.data(), ints_.size());
    views_.assign(strings_.begin(), strings_.end());
    return KeyBatch(views_.data(), views_.size());
  }
  // How Contents names key i.
  std::string Name(size_t i) const {
    return type_ == KeyType::kInt64 ? std::to_string(ints_[i]) : strings_[i];
  }

 private:
  KeyType type_;
  std::vector<int64_t> ints_;
  std::vector<std::string> strings_;
  mutable std::vector<std::string_view> views_;
};

// What the value type keeps of a number.
inline int Kept(ValueType type, int number) {
  return type == ValueType::kBool ? number & 1 : number;
}

// n rows of dim elements and their memory.
class TestRows {
 public:
  TestRows(ValueType type, size_t n, size_t dim) : type_(type), n_(n), dim_(dim) {
    if (type == ValueType::kString) {
      strings_.resize(n * dim);
    } else {
      bytes_.resize(n * dim * SizeOf(type));
    }
  }

  template <typename NumberAt>
  static TestRows Make(ValueType type, size_t n, size_t dim, NumberAt&& number_at) {
    TestRows rows(type, n, dim);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < dim; ++j) rows.Set(i * dim + j, number_at(i, j));
    }
    return rows;
  }

  // As an argument, and as the place of a result.
  const void* in() const {
    if (type_ != ValueType::kString) return bytes_.data();
    views_.assign(strings_.begin(), strings_.end());
    return views_.data();
  }
  void* out() {
    return type_ == ValueType::kString ? static_cast<void*>(strings_.data()) : bytes_.data();
  }

  std::vector<int> Row(size_t i) const {
    std::vector<int> row(dim_);
    for (size_t j = 0; j < dim_; ++j) row[j] = Get(i * dim_ + j);
    return row;
  }

  static TestRows Of(ValueType type, size_t dim, const ExportBatch& batch) {
    TestRows rows(type, 0, dim);
    rows.n_ = batch.size;
    rows.bytes_ = batch.values;
    const std::vector<std::string_view> strings = batch.string_values.views();
    rows.strings_.assign(strings.begin(), strings.end());
    return rows;
  }

 private:
  void Set(size_t place, int number) {
    if (type_ == ValueType::kString) {
      strings_[place] = number == 0 ? "" : std::to_string(number);
      return;
    }
    DispatchNumeric(type_, [&](auto* null) {
      using T = std::remove_pointer_t<decltype(null)>;
      T element;
      if constexpr (std::is_same_v<T, bool>) {
        element = (number & 1) != 0;
      } else if constexpr (std::is_arithmetic_v<T>) {
        element = static_cast<T>(number);
      } else {
        element = T(static_cast<float>(number));
      }
      std::memcpy(bytes_.data() + place * sizeof(T), &element, sizeof(T));
    });
  }

  int Get(size_t place) const {
    if (type_ == ValueType::kString) {
      return strings_[place].empty() ? 0 : std::stoi(strings_[place]);
    }
    return DispatchNumeric(type_, [&](auto* null) {
      using T = std::remove_pointer_t<decltype(null)>;
      T element;
      std::memcpy(&element, bytes_.data() + place * sizeof(T), sizeof(T));
      if constexpr (std::is_arithmetic_v<T>) {
        return static_cast<int>(element);
      } else {
        return static_cast<int>(static_cast<float>(element));
      }
    });
  }

  ValueType type_;
  size_t n_, dim_;
  std::vector<std::byte> bytes_;
  std::vector<std::string> strings_;
  mutable std::vector<std::string_view> views_;
};

using ContentsMap = std::map<std::string, std::vector<int>>;

// Adds a batch to `contents`; a key that is already there is an error.
inline void AddBatch(const TableSpec& spec, const ExportBatch& batch, ContentsMap* contents) {
  const size_t dim = static_cast<size_t>(spec.dim);
  const TestRows rows = TestRows::Of(spec.value_type, dim, batch);
  const bool strings = spec.key_type == KeyType::kString;
  CHECK_EQ(strings ? batch.string_keys.size() : batch.int_keys.size(), batch.size);
  CHECK_EQ(strings ? batch.int_keys.size() : batch.string_keys.size(), 0u);
  for (size_t i = 0; i < batch.size; ++i) {
    const std::string name =
        strings ? std::string(batch.string_keys[i]) : std::to_string(batch.int_keys[i]);
    CHECK(contents->emplace(name, rows.Row(i)).second);
  }
}

inline ContentsMap Contents(Table& table) {
  ExportBatch batch;
  CHECK_OK(table.ExportAll(&batch));
  ContentsMap contents;
  AddBatch(table.spec(), batch, &contents);
  CHECK_EQ(contents.size(), table.size());
  return contents;
}

// Assigns to each key the row that number_at(i, j) describes.
template <typename NumberAt>
void AssignNumbers(Table& table, const TestKeys& keys, NumberAt&& number_at) {
  const TableSpec& spec = table.spec();
  const size_t dim = static_cast<size_t>(spec.dim);
  const TestRows rows = TestRows::Make(spec.value_type, keys.size(), dim, number_at);
  CHECK_OK(table.Assign(keys.batch(), rows.in()));
}

// bool[n], which std::vector<bool> is not.
class Flags {
 public:
  explicit Flags(size_t n, bool value = false) : flags_(n, value) {}
  bool* data() { return reinterpret_cast<bool*>(flags_.data()); }
  bool operator[](size_t i) const { return flags_[i] != 0; }
  void Set(size_t i, bool value) { flags_[i] = value; }
  size_t Count() const {
    size_t count = 0;
    for (char flag : flags_) count += flag != 0;
    return count;
  }

 private:
  std::vector<char> flags_;
};

}  // namespace tfra::test
