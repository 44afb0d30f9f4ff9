#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "kernels/dispatch.h"
#include "tfra/spec.h"

namespace tfra {
namespace {

using Json = nlohmann::ordered_json;  // Prints fields in the order in which they were added.

// No object has so many fields, and no field is nested so deep: a hostile text is refused early.
constexpr size_t kMaxFields = 64;
constexpr int kMaxDepth = 5;

constexpr int64_t kVersion = 1;

// Names by the value of the enum.
constexpr const char* kKeyTypes[] = {"int64", "string", "int32"};
constexpr const char* kInitializers[] = {
    "zeros", "ones", "constant", "uniform", "normal", "truncated_normal", "external"};
constexpr const char* kRules[] = {"none",  "sgd",    "adagrad", "rowwise_adagrad", "adam",
                                  "adamw", "adamax", "nadam",   "rmsprop",         "adadelta",
                                  "ftrl",  "lion",   "custom"};
constexpr const char* kAdmissions[] = {"all", "min_count", "bloom_filter", "probability"};
constexpr const char* kStrategies[] = {"lru", "lfu", "epochlru", "epochlfu", "customized"};
constexpr size_t kValueTypes = static_cast<size_t>(ValueType::kString) + 1;

template <size_t kCount, typename Enum>
const char* NameIn(const char* const (&names)[kCount], Enum value) {
  const auto place = static_cast<size_t>(value);
  return place < kCount ? names[place] : "unknown";
}

// Fields that belong to one rule only.
struct RuleSwitch {
  const char* name;
  bool RuleSpec::* field;
  std::initializer_list<RuleKind> rules;
};
const RuleSwitch kSwitches[] = {
    {"momentum", &RuleSpec::momentum, {RuleKind::kSgd, RuleKind::kRmsprop}},
    {"nesterov", &RuleSpec::nesterov, {RuleKind::kSgd}},
    {"amsgrad", &RuleSpec::amsgrad, {RuleKind::kAdam, RuleKind::kAdamW}},
    {"centered", &RuleSpec::centered, {RuleKind::kRmsprop}},
};

bool HasAccumulator(RuleKind kind) {
  return kind == RuleKind::kAdagrad || kind == RuleKind::kRowwiseAdagrad || kind == RuleKind::kFtrl;
}

constexpr std::pair<const char*, double UpdateParams::*> kParams[] = {
    {"learning_rate", &UpdateParams::learning_rate},
    {"momentum", &UpdateParams::momentum},
    {"beta_1", &UpdateParams::beta_1},
    {"beta_2", &UpdateParams::beta_2},
    {"rho", &UpdateParams::rho},
    {"epsilon", &UpdateParams::epsilon},
    {"l1", &UpdateParams::l1},
    {"l2", &UpdateParams::l2},
    {"l2_shrinkage", &UpdateParams::l2_shrinkage},
    {"learning_rate_power", &UpdateParams::learning_rate_power},
    {"beta", &UpdateParams::beta},
    {"weight_decay", &UpdateParams::weight_decay},
    {"clipnorm", &UpdateParams::clipnorm},
    {"clipvalue", &UpdateParams::clipvalue},
};

// Thrown while a text is parsed, and turned into a Status before the call returns.
struct ParseError {
  std::string message;
};

std::string Shown(const Json& json) {
  constexpr size_t kMost = 80;
  std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

[[noreturn]] void Refuse(const std::string& path, const std::string& expected, const Json& json) {
  throw ParseError{"`" + path + "`: expected " + expected + ", received " + Shown(json)};
}

// --- Values.

int64_t IntegerOf(const Json& json, const std::string& path, int64_t least, int64_t most) {
  const bool fits = json.is_number_integer() &&
                    (!json.is_number_unsigned() ||
                     json.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits || json.get<int64_t>() < least || json.get<int64_t>() > most) {
    Refuse(path, "an integer from " + std::to_string(least) + " to " + std::to_string(most), json);
  }
  return json.get<int64_t>();
}

uint64_t UnsignedOf(const Json& json, const std::string& path) {
  const bool fits =
      json.is_number_unsigned() || (json.is_number_integer() && json.get<int64_t>() >= 0);
  if (!fits) Refuse(path, "an integer from 0 to 2^64 - 1", json);
  return json.get<uint64_t>();
}

double NumberOf(const Json& json, const std::string& path) {
  if (json.is_number()) return json.get<double>();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (json == "inf") return kInfinity;
  if (json == "-inf") return -kInfinity;
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  Refuse(path, "a number, \"inf\", \"-inf\" or \"nan\"", json);
}

Json JsonOfNumber(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  return number;
}

bool BoolOf(const Json& json, const std::string& path) {
  if (!json.is_boolean()) Refuse(path, "true or false", json);
  return json.get<bool>();
}

int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

std::string BytesOf(const Json& json, const std::string& path) {
  if (json.is_string()) return json.get<std::string>();
  const std::string expected = "a string, or {\"hex\": bytes as two digits of 0-9a-f each}";
  if (!json.is_object() || json.size() != 1 || !json.contains("hex") || !json["hex"].is_string()) {
    Refuse(path, expected, json);
  }
  const auto& digits = json["hex"].get_ref<const std::string&>();
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    const int high = DigitOf(digits[i]), low = DigitOf(digits[i + 1]);
    if (high < 0 || low < 0) Refuse(path, expected, json);
    bytes += static_cast<char>(high << 4 | low);
  }
  if (digits.size() % 2 != 0) Refuse(path, expected, json);
  return bytes;
}

bool IsUtf8(const std::string& bytes) {
  try {
    (void)Json(bytes).dump();
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

Json JsonOfBytes(const std::string& bytes) {
  if (IsUtf8(bytes)) return bytes;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string digits;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    digits += kDigits[byte >> 4];
    digits += kDigits[byte & 15];
  }
  return {{"hex", digits}};
}

// The enum value that NameOf gives this name, of the first `count` ones.
template <typename Enum>
Enum EnumOf(const Json& json, const std::string& path, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) {
    const char* name = NameOf(static_cast<Enum>(i));
    if (json == name) return static_cast<Enum>(i);
    all += (i == 0 ? "\"" : ", \"") + std::string(name) + "\"";
  }
  Refuse(path, "one of " + all, json);
}

// --- Objects.

// The fields of one object. Every field must have been asked for before Finish.
class Fields {
 public:
  Fields(const Json& json, std::string path) : json_(json), path_(std::move(path)) {
    if (!json.is_object()) Refuse(path_.empty() ? "spec" : path_, "an object", json);
  }

  std::string PathOf(const char* name) const { return path_.empty() ? name : path_ + "." + name; }

  // Null if the field is left out.
  const Json* Find(const char* name) {
    asked_.insert(name);
    const auto found = json_.find(name);
    return found == json_.end() ? nullptr : &*found;
  }
  const Json& Require(const char* name) {
    const Json* field = Find(name);
    if (field == nullptr) throw ParseError{"`" + PathOf(name) + "`: expected this field"};
    return *field;
  }

  void Integer(const char* name, int64_t least, int64_t most, int64_t* out) {
    if (const Json* field = Find(name)) *out = IntegerOf(*field, PathOf(name), least, most);
  }
  void Unsigned(const char* name, uint64_t* out) {
    if (const Json* field = Find(name)) *out = UnsignedOf(*field, PathOf(name));
  }
  void Number(const char* name, double* out) {
    if (const Json* field = Find(name)) *out = NumberOf(*field, PathOf(name));
  }
  void Bool(const char* name, bool* out) {
    if (const Json* field = Find(name)) *out = BoolOf(*field, PathOf(name));
  }
  void Bytes(const char* name, std::string* out) {
    if (const Json* field = Find(name)) *out = BytesOf(*field, PathOf(name));
  }
  template <typename Enum>
  Enum Name(const char* name, size_t count) {
    return EnumOf<Enum>(Require(name), PathOf(name), count);
  }

  void Finish() const {
    for (const auto& item : json_.items()) {
      if (asked_.count(item.key()) != 0) continue;
      throw ParseError{"`" + (path_.empty() ? item.key() : path_ + "." + item.key()) +
                       "`: expected no such field, received " + Shown(item.value())};
    }
  }

 private:
  const Json& json_;
  const std::string path_;
  std::set<std::string> asked_;
};

// --- The parts of a TableSpec.

template <typename T>
T ElementOf(const Json& json, const std::string& path) {
  if constexpr (std::is_same_v<T, bool>) {
    return BoolOf(json, path);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(
        IntegerOf(json, path, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  } else {
    return static_cast<T>(static_cast<typename ComputeOf<T>::type>(NumberOf(json, path)));
  }
}

template <typename T>
Json JsonOfElement(T element) {
  if constexpr (std::is_integral_v<T>) {  // bool too
    return element;
  } else {
    return JsonOfNumber(static_cast<typename ComputeOf<T>::type>(element));
  }
}

void ParseRow(const Json& json, const std::string& path, const TableSpec& table,
              InitializerSpec* spec) {
  const auto dim = static_cast<size_t>(table.dim);
  if (!json.is_array() || (json.size() != 1 && json.size() != dim)) {
    Refuse(path, "a list of 1 or " + std::to_string(dim) + " elements", json);
  }
  const auto element = [&](size_t i) -> const Json& { return json[json.size() == 1 ? 0 : i]; };
  if (table.value_type == ValueType::kString) {
    spec->string_row.reserve(dim);
    for (size_t i = 0; i < dim; ++i) spec->string_row.push_back(BytesOf(element(i), path));
    return;
  }
  DispatchNumeric(table.value_type, [&]<typename T>(T*) {
    spec->row.resize(dim * sizeof(T));
    for (size_t i = 0; i < dim; ++i) {
      const T value = ElementOf<T>(element(i), path);
      std::memcpy(spec->row.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
}

Json JsonOfRow(const TableSpec& table) {
  const InitializerSpec& spec = table.initializer;
  const auto dim = static_cast<size_t>(table.dim);
  Json row = Json::array();
  if (table.value_type == ValueType::kString) {
    const auto& strings = spec.string_row;
    const bool same =
        std::adjacent_find(strings.begin(), strings.end(), std::not_equal_to<>()) == strings.end();
    for (size_t i = 0; i < strings.size() && (i == 0 || !same); ++i) {
      row.push_back(JsonOfBytes(strings[i]));
    }
    return row;
  }
  DispatchNumeric(table.value_type, [&]<typename T>(T*) {
    const size_t count = std::min(dim, spec.row.size() / sizeof(T));
    bool same = true;
    for (size_t i = 1; i < count && same; ++i) {
      same = std::memcmp(spec.row.data(), spec.row.data() + i * sizeof(T), sizeof(T)) == 0;
    }
    for (size_t i = 0; i < count && (i == 0 || !same); ++i) {
      T value;
      std::memcpy(&value, spec.row.data() + i * sizeof(T), sizeof(T));
      row.push_back(JsonOfElement(value));
    }
  });
  return row;
}

InitializerSpec InitializerOf(const Json& json, const TableSpec& table) {
  Fields fields(json, "initializer");
  InitializerSpec spec;
  spec.kind = fields.Name<InitializerKind>("kind", std::size(kInitializers));
  switch (spec.kind) {
    case InitializerKind::kConstant:
      ParseRow(fields.Require("row"), fields.PathOf("row"), table, &spec);
      break;
    case InitializerKind::kUniform:
      fields.Number("low", &spec.low);
      fields.Number("high", &spec.high);
      break;
    case InitializerKind::kNormal:
    case InitializerKind::kTruncatedNormal:
      fields.Number("mean", &spec.mean);
      fields.Number("stddev", &spec.stddev);
      break;
    default:
      break;
  }
  fields.Unsigned("seed", &spec.seed);
  fields.Finish();
  return spec;
}

Json JsonOf(const InitializerSpec& spec, const TableSpec& table) {
  Json json = {{"kind", NameOf(spec.kind)}};
  switch (spec.kind) {
    case InitializerKind::kConstant:
      json["row"] = JsonOfRow(table);
      break;
    case InitializerKind::kUniform:
      json["low"] = JsonOfNumber(spec.low);
      json["high"] = JsonOfNumber(spec.high);
      break;
    case InitializerKind::kNormal:
    case InitializerKind::kTruncatedNormal:
      json["mean"] = JsonOfNumber(spec.mean);
      json["stddev"] = JsonOfNumber(spec.stddev);
      break;
    default:
      break;
  }
  json["seed"] = spec.seed;
  return json;
}

RuleSpec RuleOf(const Json& json, const std::string& path) {
  Fields fields(json, path);
  RuleSpec rule;
  rule.kind = fields.Name<RuleKind>("kind", std::size(kRules));
  for (const RuleSwitch& each : kSwitches) {
    const bool has = std::find(each.rules.begin(), each.rules.end(), rule.kind) != each.rules.end();
    if (has) fields.Bool(each.name, &(rule.*each.field));
  }
  if (HasAccumulator(rule.kind)) fields.Number("initial_accumulator", &rule.initial_accumulator);
  if (rule.kind == RuleKind::kCustom) {
    const Json& slots = fields.Require("slots");
    if (!slots.is_array()) Refuse(fields.PathOf("slots"), "a list", slots);
    for (size_t i = 0; i < slots.size(); ++i) {
      Fields slot(slots[i], fields.PathOf("slots") + "[" + std::to_string(i) + "]");
      SlotSpec spec;
      spec.name = BytesOf(slot.Require("name"), slot.PathOf("name"));
      slot.Bool("scalar", &spec.scalar);
      slot.Number("initial", &spec.initial);
      slot.Finish();
      rule.slots.push_back(std::move(spec));
    }
  }
  fields.Finish();
  return rule;
}

Json JsonOf(const RuleSpec& rule) {
  Json json = {{"kind", NameOf(rule.kind)}};
  for (const RuleSwitch& each : kSwitches) {
    if (rule.*each.field) json[each.name] = true;
  }
  if (HasAccumulator(rule.kind)) {
    json["initial_accumulator"] = JsonOfNumber(rule.initial_accumulator);
  }
  if (rule.kind == RuleKind::kCustom) {
    json["slots"] = Json::array();
    for (const SlotSpec& slot : rule.slots) {
      json["slots"].push_back({{"name", JsonOfBytes(slot.name)},
                               {"scalar", slot.scalar},
                               {"initial", JsonOfNumber(slot.initial)}});
    }
  }
  return json;
}

AdmissionSpec AdmissionOf(const Json& json) {
  Fields fields(json, "admission");
  AdmissionSpec spec;
  spec.kind = fields.Name<AdmissionKind>("kind", std::size(kAdmissions));
  if (spec.kind == AdmissionKind::kMinCount || spec.kind == AdmissionKind::kBloomFilter) {
    int64_t count = spec.min_count;
    fields.Integer("min_count", 1, std::numeric_limits<uint32_t>::max(), &count);
    spec.min_count = static_cast<uint32_t>(count);
  }
  if (spec.kind == AdmissionKind::kBloomFilter) {
    fields.Integer("filter_keys", 1, kMaxFilterKeys, &spec.filter_keys);
    fields.Number("filter_error", &spec.filter_error);
  }
  if (spec.kind == AdmissionKind::kProbability) {
    fields.Number("probability", &spec.probability);
    fields.Unsigned("seed", &spec.seed);
  }
  fields.Finish();
  return spec;
}

Json JsonOf(const AdmissionSpec& spec) {
  Json json = {{"kind", NameOf(spec.kind)}};
  if (spec.kind == AdmissionKind::kMinCount || spec.kind == AdmissionKind::kBloomFilter) {
    json["min_count"] = spec.min_count;
  }
  if (spec.kind == AdmissionKind::kBloomFilter) {
    json["filter_keys"] = spec.filter_keys;
    json["filter_error"] = JsonOfNumber(spec.filter_error);
  }
  if (spec.kind == AdmissionKind::kProbability) {
    json["probability"] = JsonOfNumber(spec.probability);
    json["seed"] = spec.seed;
  }
  return json;
}

Bound BoundOf(const Json& json) {
  Fields fields(json, "bound");
  Bound bound;
  bound.max_capacity =
      IntegerOf(fields.Require("max_capacity"), fields.PathOf("max_capacity"), 1, kMaxKeys);
  if (const Json* field = fields.Find("strategy")) {
    bound.strategy =
        EnumOf<EvictStrategy>(*field, fields.PathOf("strategy"), std::size(kStrategies));
  }
  fields.Bool("remember_counts", &bound.remember_counts);
  fields.Integer("steps_per_epoch", 0, std::numeric_limits<int64_t>::max(), &bound.steps_per_epoch);
  fields.Finish();
  return bound;
}

Json JsonOf(const Bound& bound) {
  return {{"max_capacity", bound.max_capacity},
          {"strategy", NameOf(bound.strategy)},
          {"remember_counts", bound.remember_counts},
          {"steps_per_epoch", bound.steps_per_epoch}};
}

Tiers TiersOf(const Json& json) {
  Fields fields(json, "tiers");
  Tiers tiers;
  tiers.fast_bytes = UnsignedOf(fields.Require("fast_bytes"), fields.PathOf("fast_bytes"));
  fields.Bytes("directory", &tiers.directory);
  fields.Finish();
  return tiers;
}

Json JsonOf(const Tiers& tiers) {
  return {{"fast_bytes", tiers.fast_bytes}, {"directory", JsonOfBytes(tiers.directory)}};
}

TableSpec TableSpecOf(const Json& json) {
  Fields fields(json, "");
  const Json& version = fields.Require("version");
  if (!version.is_number_integer() || version != kVersion) {
    Refuse("version", std::to_string(kVersion) + ", the only one that this version of tfra reads",
           version);
  }
  TableSpec spec;
  spec.key_type = fields.Name<KeyType>("key_type", std::size(kKeyTypes));
  spec.value_type = fields.Name<ValueType>("value_type", kValueTypes);
  spec.dim = IntegerOf(fields.Require("dim"), "dim", 1, kMaxDim);
  fields.Bool("scalar", &spec.scalar);
  if (spec.scalar && spec.dim != 1) Refuse("dim", "1, since `scalar` is true", json["dim"]);
  if (const Json* field = fields.Find("initializer")) {
    spec.initializer = InitializerOf(*field, spec);
  }
  if (const Json* field = fields.Find("rule")) spec.rule = RuleOf(*field, "rule");
  fields.Bool("metadata", &spec.metadata);
  if (const Json* field = fields.Find("admission")) spec.admission = AdmissionOf(*field);
  fields.Integer("initial_capacity", 0, kMaxKeys, &spec.initial_capacity);
  if (const Json* field = fields.Find("bound")) spec.bound = BoundOf(*field);
  if (const Json* field = fields.Find("tiers")) spec.tiers = TiersOf(*field);
  fields.Finish();
  return spec;
}

UpdateParams UpdateParamsOf(const Json& json) {
  Fields fields(json, "params");
  UpdateParams params;
  fields.Integer("step", 1, std::numeric_limits<int64_t>::max(), &params.step);
  for (const auto& [name, field] : kParams) fields.Number(name, &(params.*field));
  fields.Finish();
  return params;
}

// --- The whole text.

// Refuses fields that are given twice, of which a parser keeps one.
class DuplicateCheck {
 public:
  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) throw ParseError{"expected fields nested less deep"};
    if (event == Json::parse_event_t::object_start) objects_.emplace_back();
    if (event == Json::parse_event_t::object_end) objects_.pop_back();
    if (event != Json::parse_event_t::key) return true;
    auto& names = objects_.back();
    if (!names.insert(parsed.get<std::string>()).second) {
      throw ParseError{"`" + parsed.get<std::string>() + "`: expected once, received twice"};
    }
    if (names.size() > kMaxFields) {
      throw ParseError{"expected objects of at most " + std::to_string(kMaxFields) + " fields"};
    }
    return true;
  }

 private:
  std::vector<std::set<std::string>> objects_;
};

template <typename Spec, typename Convert>
Status Parse(std::string_view text, const char* what, Spec* spec, Convert&& convert) {
  const std::string context = std::string("the JSON text of ") + what + ": ";
  if (text.starts_with("\xEF\xBB\xBF")) {  // Which the parser would skip.
    return Status::InvalidArgument(context + "expected JSON, received a byte order mark");
  }
  try {
    // By reference: the parser copies its callback.
    DuplicateCheck check;
    const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
      return check(depth, event, parsed);
    };
    *spec = convert(Json::parse(text, callback));
    return Status::Ok();
  } catch (const ParseError& error) {
    return Status::InvalidArgument(context + error.message);
  } catch (const Json::exception& error) {
    const std::string start(text.substr(0, 80));
    return Status::InvalidArgument(context + "expected JSON, received " + Shown(Json(start)));
  } catch (const std::bad_alloc&) {
    return Status::OutOfMemory(context + "no memory to parse it");
  }
}

}  // namespace

const char* NameOf(KeyType type) { return NameIn(kKeyTypes, type); }
const char* NameOf(InitializerKind kind) { return NameIn(kInitializers, kind); }
const char* NameOf(RuleKind kind) { return NameIn(kRules, kind); }
const char* NameOf(AdmissionKind kind) { return NameIn(kAdmissions, kind); }
const char* NameOf(EvictStrategy strategy) { return NameIn(kStrategies, strategy); }

Status ParseTableSpec(std::string_view json, TableSpec* spec) {
  return Parse(json, "a table's spec", spec, TableSpecOf);
}

std::string PrintTableSpec(const TableSpec& spec) {
  Json json = {{"version", kVersion},
               {"key_type", NameOf(spec.key_type)},
               {"value_type", NameOf(spec.value_type)},
               {"dim", spec.dim}};
  if (spec.scalar) json["scalar"] = true;
  json["initializer"] = JsonOf(spec.initializer, spec);
  json["rule"] = JsonOf(spec.rule);
  json["metadata"] = spec.metadata;
  if (spec.admission.kind != AdmissionKind::kAll) json["admission"] = JsonOf(spec.admission);
  if (spec.initial_capacity != 0) json["initial_capacity"] = spec.initial_capacity;
  if (spec.bound.max_capacity != 0) json["bound"] = JsonOf(spec.bound);
  if (spec.tiers.fast_bytes != 0) json["tiers"] = JsonOf(spec.tiers);
  return json.dump();
}

Status ParseRuleSpec(std::string_view json, RuleSpec* rule) {
  return Parse(json, "an optimizer rule", rule,
               [](const Json& parsed) { return RuleOf(parsed, "rule"); });
}

std::string PrintRuleSpec(const RuleSpec& rule) { return JsonOf(rule).dump(); }

Status ParseUpdateParams(std::string_view json, UpdateParams* params) {
  return Parse(json, "the numbers of a step", params, UpdateParamsOf);
}

}  // namespace tfra
