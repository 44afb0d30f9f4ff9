#include "arguments.h"

#include <string>
#include <typeinfo>

namespace tfra::python {
namespace {

// Python has checked the value. A mistake there shows as an error that names the field.
template <typename T>
T Field(const nb::dict& fields, const char* name) {
  try {
    return nb::cast<T>(fields[name]);
  } catch (const std::bad_cast&) {
    const std::string value = nb::cast<std::string>(nb::repr(fields[name]));
    throw nb::value_error(("`" + std::string(name) + "` is out of range: " + value).c_str());
  }
}

// The place of `name` in the list of names of an enumeration.
template <typename Enum, size_t kCount>
Enum EnumOf(const std::string_view (&names)[kCount], const std::string& name, const char* what) {
  for (uint8_t i = 0; i < kCount; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  throw nb::value_error(("unknown " + std::string(what) + " " + name).c_str());
}

}  // namespace

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

KeyType KeyTypeOf(std::string_view name) {
  return name == "string" ? KeyType::kString : KeyType::kInt64;
}

InitializerSpec InitializerOf(const nb::dict& fields) {
  static constexpr std::string_view kKinds[] = {"zeros",   "ones",   "constant",
                                                "uniform", "normal", "truncated_normal"};
  InitializerSpec spec;
  spec.kind = EnumOf<InitializerKind>(kKinds, Field<std::string>(fields, "kind"), "initializer");
  spec.seed = Field<uint64_t>(fields, "seed");
  spec.low = Field<double>(fields, "low");
  spec.high = Field<double>(fields, "high");
  spec.mean = Field<double>(fields, "mean");
  spec.stddev = Field<double>(fields, "stddev");
  if (spec.kind != InitializerKind::kConstant) return spec;
  if (nb::isinstance<nb::list>(fields["row"])) {
    for (std::string_view text : ViewsOf(nb::list(fields["row"]), "the initial strings")) {
      spec.string_row.emplace_back(text);
    }
  } else {
    const auto bytes = nb::cast<nb::bytes>(fields["row"]);
    const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
    spec.row.assign(begin, begin + bytes.size());
  }
  return spec;
}

AdmissionSpec AdmissionOf(const nb::dict& fields) {
  static constexpr std::string_view kKinds[] = {"all", "min_count", "bloom_filter", "probability"};
  AdmissionSpec spec;
  spec.kind = EnumOf<AdmissionKind>(kKinds, Field<std::string>(fields, "kind"), "admission");
  if (spec.kind == AdmissionKind::kProbability) {
    spec.probability = Field<double>(fields, "probability");
    spec.seed = Field<uint64_t>(fields, "seed");
  } else if (spec.kind != AdmissionKind::kAll) {
    spec.min_count = Field<uint32_t>(fields, "min_count");
  }
  if (spec.kind == AdmissionKind::kBloomFilter) {
    spec.filter_keys = Field<int64_t>(fields, "capacity");
    spec.filter_error = Field<double>(fields, "error_rate");
  }
  return spec;
}

RuleSpec RuleOf(const nb::dict& fields) {
  static constexpr std::string_view kKinds[] = {"none",    "sgd",      "adagrad", "rowwise_adagrad",
                                                "adam",    "adamw",    "adamax",  "nadam",
                                                "rmsprop", "adadelta", "ftrl",    "lion"};
  RuleSpec rule;
  rule.kind = EnumOf<RuleKind>(kKinds, Field<std::string>(fields, "kind"), "optimizer");
  if (rule.kind == RuleKind::kNone) return rule;
  rule.momentum = Field<bool>(fields, "momentum");
  rule.nesterov = Field<bool>(fields, "nesterov");
  rule.amsgrad = Field<bool>(fields, "amsgrad");
  rule.centered = Field<bool>(fields, "centered");
  rule.initial_accumulator = Field<double>(fields, "initial_accumulator");
  return rule;
}

Bound BoundOf(const nb::dict& fields) {
  static constexpr std::string_view kStrategies[] = {"lru", "lfu", "epochlru", "epochlfu",
                                                     "customized"};
  Bound bound;
  bound.max_capacity = Field<int64_t>(fields, "max_capacity");
  bound.strategy =
      EnumOf<EvictStrategy>(kStrategies, Field<std::string>(fields, "evict_strategy"), "strategy");
  bound.remember_counts = Field<bool>(fields, "remember_counts");
  return bound;
}

Tiers TiersOf(const nb::dict& fields) {
  return {Field<uint64_t>(fields, "fast_bytes"), Field<std::string>(fields, "directory")};
}

UpdateParams ParamsOf(const nb::dict& fields) {
  UpdateParams params;
  params.step = Field<int64_t>(fields, "step");
  params.learning_rate = Field<double>(fields, "learning_rate");
  params.momentum = Field<double>(fields, "momentum");
  params.beta_1 = Field<double>(fields, "beta_1");
  params.beta_2 = Field<double>(fields, "beta_2");
  params.rho = Field<double>(fields, "rho");
  params.epsilon = Field<double>(fields, "epsilon");
  params.l1 = Field<double>(fields, "l1");
  params.l2 = Field<double>(fields, "l2");
  params.l2_shrinkage = Field<double>(fields, "l2_shrinkage");
  params.learning_rate_power = Field<double>(fields, "learning_rate_power");
  params.beta = Field<double>(fields, "beta");
  params.weight_decay = Field<double>(fields, "weight_decay");
  params.clipnorm = Field<double>(fields, "clipnorm");
  params.clipvalue = Field<double>(fields, "clipvalue");
  return params;
}

}  // namespace tfra::python
