// Converts Python objects to arguments of the engine, and errors of the engine to exceptions.
// Python has already checked what users pass. The checks here only keep memory accesses in bounds.
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

// Raises the Python exception for an error; does nothing if the status is OK.
void Raise(const Status& status);

// Returns the bytes of each item of a list. They are valid as long as the list. `what` names the
// items in errors.
std::vector<std::string_view> ViewsOf(const nb::list& list, const char* what);

// The keys of a call. REQUIRES: the argument outlives this object.
class Keys {
 public:
  explicit Keys(const KeysArgument& argument);
  const KeyBatch& batch() const { return batch_; }
  size_t size() const { return batch_.size; }
  // Returns the keys from number `begin` to before `end`.
  KeyBatch part(size_t begin, size_t end) const {
    return batch_.type == KeyType::kString ? KeyBatch(batch_.strings + begin, end - begin)
                                           : KeyBatch(batch_.ints + begin, end - begin);
  }

 private:
  std::vector<std::string_view> views_;
  KeyBatch batch_;
};

// The values of a call. REQUIRES: the argument outlives this object.
class Values {
 public:
  // Raises unless the argument has `count` elements of `type`.
  Values(const ValuesArgument& argument, ValueType type, size_t count, const char* what);
  const void* data() const { return data_; }

 private:
  std::vector<std::string_view> views_;
  const void* data_;
};

// The scores of the keys of a writing call, or None.
using ScoresArgument =
    std::optional<nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;

// Scores in the form that the strategy of the table uses: LFU strategies count, so each score is a
// number of occurrences; other strategies use the scores as they are.
class KeyScores {
 public:
  KeyScores(const Table& table, const ScoresArgument& argument, size_t keys);
  const Scores& get() const { return scores_; }

 private:
  Scores scores_;
};

// Raises unless `received`, the size of an array, is `bytes`. `what` names the array in the error.
void RequireBytes(size_t received, size_t bytes, const char* what);

// Returns the value type with this name, for example "float32". Raises if there is none.
ValueType ValueTypeOf(std::string_view name);

}  // namespace tfra::python
