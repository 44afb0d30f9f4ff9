// Python objects to engine arguments and engine errors to Python exceptions. Whatever a user can
// get wrong has been checked in Python by then; what is checked here keeps the memory safe.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "tfra/spec.h"
#include "tfra/status.h"
#include "tfra/table.h"

namespace tfra::python {

namespace nb = nanobind;

using IntArray = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using InBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// An int64 array, or a list of bytes and str.
using KeysArgument = std::variant<IntArray, nb::list>;
// The raw bytes of an array, or a list of bytes and str.
using ValuesArgument = std::variant<InBytes, nb::list>;

// Raises the exception that belongs to a failure.
void Raise(const Status& status);

// The texts of a list. They live as long as the list does. `what` names them in errors.
std::vector<std::string_view> ViewsOf(const nb::list& list, const char* what);

// Keys of a call, with what they point to.
class Keys {
 public:
  explicit Keys(const KeysArgument& argument);
  const KeyBatch& batch() const { return batch_; }
  size_t size() const { return batch_.size; }
  // The keys from `begin` to `end`.
  KeyBatch part(size_t begin, size_t end) const {
    return batch_.type == KeyType::kString ? KeyBatch(batch_.strings + begin, end - begin)
                                           : KeyBatch(batch_.ints + begin, end - begin);
  }

 private:
  std::vector<std::string_view> views_;
  KeyBatch batch_;
};

// Values of a call. `count` elements of the table's value type are required.
class Values {
 public:
  Values(const ValuesArgument& argument, ValueType type, size_t count, const char* what);
  const void* data() const { return data_; }

 private:
  std::vector<std::string_view> views_;
  const void* data_;
};

// Scores of the keys of a writing call, or None.
using ScoresArgument =
    std::optional<nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;

// Those, as the table's strategy takes them: numbers of times where it counts, else the scores.
class KeyScores {
 public:
  KeyScores(const Table& table, const ScoresArgument& argument, size_t keys);
  const Scores& get() const { return scores_; }

 private:
  Scores scores_;
};

// Raises unless an array has exactly `bytes` bytes.
void RequireBytes(size_t received, size_t bytes, const char* what);

ValueType ValueTypeOf(std::string_view name);

}  // namespace tfra::python
