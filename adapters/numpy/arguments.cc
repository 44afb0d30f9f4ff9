#include "arguments.h"

#include <string>

namespace tfra::python {

void Raise(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return;
    case StatusCode::kWrongType:
      throw nb::type_error(status.message().c_str());
    case StatusCode::kInvalidArgument:
      throw nb::value_error(status.message().c_str());
    case StatusCode::kOutOfMemory:
      PyErr_SetString(PyExc_MemoryError, status.message().c_str());
      throw nb::python_error();
    case StatusCode::kFailedPrecondition:
      PyErr_SetString(PyExc_RuntimeError, status.message().c_str());
      throw nb::python_error();
    case StatusCode::kIoError:
    case StatusCode::kStorageFull:
      PyErr_SetString(PyExc_OSError, status.message().c_str());
      throw nb::python_error();
  }
}

std::vector<std::string_view> ViewsOf(const nb::list& list, const char* what) {
  std::vector<std::string_view> views;
  views.reserve(list.size());
  for (nb::handle item : list) {
    if (PyBytes_Check(item.ptr())) {
      char* data;
      Py_ssize_t size;
      if (PyBytes_AsStringAndSize(item.ptr(), &data, &size) != 0) throw nb::python_error();
      views.emplace_back(data, static_cast<size_t>(size));
    } else if (PyUnicode_Check(item.ptr())) {
      Py_ssize_t size;
      const char* data = PyUnicode_AsUTF8AndSize(item.ptr(), &size);
      if (data == nullptr) throw nb::python_error();
      views.emplace_back(data, static_cast<size_t>(size));
    } else {
      const std::string type = nb::cast<std::string>(nb::str(item.type()));
      throw nb::type_error(
          (std::string(what) + " must be bytes or str. Received: " + type).c_str());
    }
  }
  return views;
}

Keys::Keys(const KeysArgument& argument) : batch_(static_cast<const int64_t*>(nullptr), 0) {
  if (const auto* ints = std::get_if<IntArray>(&argument)) {
    batch_ = KeyBatch(ints->data(), ints->size());
  } else {
    views_ = ViewsOf(std::get<nb::list>(argument), "string keys");
    batch_ = KeyBatch(views_.data(), views_.size());
  }
}

Values::Values(const ValuesArgument& argument, ValueType type, size_t count, const char* what) {
  if (const auto* bytes = std::get_if<InBytes>(&argument)) {
    if (type == ValueType::kString) throw nb::type_error("expected a list of strings");
    RequireBytes(bytes->size(), count * SizeOf(type), what);
    data_ = bytes->data();
    return;
  }
  if (type != ValueType::kString) throw nb::type_error("expected an array, received a list");
  views_ = ViewsOf(std::get<nb::list>(argument), what);
  RequireBytes(views_.size(), count, what);
  data_ = views_.data();
}

KeyScores::KeyScores(const Table& table, const ScoresArgument& argument, size_t keys) {
  if (!argument) return;
  RequireBytes(argument->size() * sizeof(uint64_t), keys * sizeof(uint64_t), "scores");
  const EvictStrategy strategy = table.spec().bound.strategy;
  const bool counts = strategy == EvictStrategy::kLfu || strategy == EvictStrategy::kEpochLfu;
  scores_ = Scores{counts ? Scores::kCounts : Scores::kExact, argument->data()};
}

void RequireBytes(size_t received, size_t bytes, const char* what) {
  if (received == bytes) return;
  throw nb::value_error((std::string(what) + ": expected " + std::to_string(bytes) +
                         " bytes, received " + std::to_string(received))
                            .c_str());
}

ValueType ValueTypeOf(std::string_view name) {
  for (uint8_t type = 0; type <= static_cast<uint8_t>(ValueType::kString); ++type) {
    if (name == NameOf(static_cast<ValueType>(type))) return static_cast<ValueType>(type);
  }
  throw nb::type_error(("unknown value type " + std::string(name)).c_str());
}

}  // namespace tfra::python
