// Engine calls from Python, and what they return, as Python objects.
#pragma once

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "arguments.h"

namespace tfra::python {

// While one of these lives, its thread is without the GIL. REQUIRES: the thread had it before.
//
// While the interpreter ends, Python before 3.14 ends threads that ask for the GIL by pthread_exit,
// which unwinds their stack: through C++ functions that must not throw, which ends the process, and
// through destructors of what others still use. Here such a thread sleeps instead until the process
// is gone, as it does in later versions.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { TakeGil(); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void TakeGil() noexcept {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // No exception: the end of this thread, which must not go on from here.
      for (;;) pause();
    }
  }

  PyThreadState* state_;
};

// Runs an engine call without the GIL and raises what it returns.
template <typename Call>
void Run(Call&& call) {
  Status status;
  {
    const WithoutGil without;
    status = call();
  }
  Raise(status);
}

inline nb::list BytesList(const std::vector<std::string>& texts) {
  nb::list list;
  for (const std::string& text : texts) list.append(nb::bytes(text.data(), text.size()));
  return list;
}

// An array that owns the vector's memory.
template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> ArrayOf(std::vector<T> vector) {
  auto* owned = new std::vector<T>(std::move(vector));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner);
}

inline nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> ArrayOf(std::vector<std::byte> vector) {
  auto* owned = new std::vector<std::byte>(std::move(vector));
  nb::capsule owner(owned,
                    [](void* p) noexcept { delete static_cast<std::vector<std::byte>*>(p); });
  return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(owned->data(), {owned->size()}, owner);
}

// The keys of an export, which it loses.
inline nb::object KeysOf(const Table& table, ExportBatch* batch) {
  return table.options().key_type == KeyType::kString
             ? nb::object(BytesList(batch->string_keys))
             : nb::cast(ArrayOf(std::move(batch->int_keys)));
}

// Its values.
inline nb::object ValuesOf(const Table& table, ExportBatch* batch) {
  return table.options().value_type == ValueType::kString
             ? nb::object(BytesList(batch->string_values))
             : nb::cast(ArrayOf(std::move(batch->values)));
}

}  // namespace tfra::python
