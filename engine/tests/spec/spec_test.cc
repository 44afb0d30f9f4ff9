// The JSON form of a TableSpec: text that was printed is read again as the same spec, and any other
// text is refused with a message that names the wrong field.
#include "tfra/spec.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "check.h"
#include "tfra/table.h"

namespace tfra::test {
namespace {

constexpr char kShort[] = R"({"version":1,"key_type":"int64","value_type":"float32","dim":4%s})";

// The shortest text of a spec, with more fields.
std::string With(const std::string& more) {
  std::string text = kShort;
  return text.replace(text.find("%s"), 2, more.empty() ? "" : "," + more);
}

TableSpec Parsed(const std::string& text) {
  TableSpec spec;
  CHECK_OK(ParseTableSpec(text, &spec));
  return spec;
}

// Parses a text that must be refused, and returns the message. The output must not change.
std::string Refused(const std::string& text) {
  TableSpec spec;
  spec.dim = 77;
  const Status status = ParseTableSpec(text, &spec);
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK_EQ(spec.dim, 77);
  return status.message();
}

bool Has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::printf("  expected \"%s\" in \"%s\"\n", part.c_str(), text.c_str());
  return false;
}

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& row) {
  std::vector<std::byte> bytes(row.size() * sizeof(T));
  std::memcpy(bytes.data(), row.data(), bytes.size());
  return bytes;
}

TEST(SpecsOfDefaultsAreShort) {
  const TableSpec spec = Parsed(With(""));
  CHECK_EQ(spec.dim, 4);
  CHECK(spec.key_type == KeyType::kInt64);
  CHECK(spec.initializer.kind == InitializerKind::kZeros);
  CHECK(spec.rule == RuleSpec());
  CHECK_EQ(PrintTableSpec(spec),
           std::string(R"({"version":1,"key_type":"int64","value_type":"float32","dim":4,)"
                       R"("initializer":{"kind":"zeros","seed":0},"rule":{"kind":"none"},)"
                       R"("metadata":false})"));
}

// The text of a spec with every field is pinned, because saved files contain it.
TEST(SpecsHaveOneGoldenText) {
  TableSpec spec;
  spec.key_type = KeyType::kString;
  spec.value_type = ValueType::kBfloat16;
  spec.dim = 3;
  spec.initializer.kind = InitializerKind::kTruncatedNormal;
  spec.initializer.seed = UINT64_MAX;
  spec.initializer.mean = -0.0;
  spec.initializer.stddev = 0.1;
  spec.rule.kind = RuleKind::kCustom;
  spec.rule.slots = {{"m", false, 0.0},
                     {"one", true, std::numeric_limits<double>::quiet_NaN()},
                     {std::string("\xff\x00", 2), false, -std::numeric_limits<double>::infinity()}};
  spec.metadata = true;
  spec.admission = {.kind = AdmissionKind::kBloomFilter, .min_count = 3, .filter_keys = 1000};
  spec.initial_capacity = 9;
  spec.bound = {.max_capacity = 100,
                .strategy = EvictStrategy::kEpochLfu,
                .remember_counts = false,
                .steps_per_epoch = 5};
  spec.tiers = {.fast_bytes = uint64_t{1} << 63, .directory = "/d\xc3\xa4"};
  const std::string text = PrintTableSpec(spec);
  CHECK_EQ(text, std::string(
                     R"({"version":1,"key_type":"string","value_type":"bfloat16","dim":3,)"
                     R"("initializer":{"kind":"truncated_normal","mean":-0.0,"stddev":0.1,)"
                     R"("seed":18446744073709551615},"rule":{"kind":"custom","slots":[)"
                     R"({"name":"m","scalar":false,"initial":0.0},)"
                     R"({"name":"one","scalar":true,"initial":"nan"},)"
                     R"({"name":{"hex":"ff00"},"scalar":false,"initial":"-inf"}]},"metadata":true,)"
                     R"("admission":{"kind":"bloom_filter","min_count":3,"filter_keys":1000,)"
                     R"("filter_error":0.01},"initial_capacity":9,"bound":{"max_capacity":100,)"
                     R"("strategy":"epochlfu","remember_counts":false,"steps_per_epoch":5},)"
                     R"("tiers":{"fast_bytes":9223372036854775808,"directory":"/d)"
                     "\xc3\xa4"
                     R"("}})"));
  const TableSpec again = Parsed(text);
  CHECK(again.rule == spec.rule);
  CHECK(again.admission == spec.admission);
  CHECK_EQ(again.initializer.seed, UINT64_MAX);
  CHECK(std::signbit(again.initializer.mean));
  CHECK_EQ(again.tiers.fast_bytes, uint64_t{1} << 63);
  CHECK_EQ(PrintTableSpec(again), text);
}

TEST(SpecsKeepConstantRowsOfEveryType) {
  TableSpec spec;
  spec.dim = 3;
  spec.initializer.kind = InitializerKind::kConstant;
  const auto check = [&](ValueType type, std::vector<std::byte> row, const std::string& text) {
    spec.value_type = type;
    spec.initializer.row = std::move(row);
    const std::string printed = PrintTableSpec(spec);
    CHECK(Has(printed, "\"row\":" + text));
    CHECK(Parsed(printed).initializer.row == spec.initializer.row);
  };
  const float infinity = std::numeric_limits<float>::infinity();
  check(ValueType::kFloat32, BytesOf<float>({0.1f, infinity, std::nanf("")}),
        R"([0.10000000149011612,"inf","nan"])");
  check(ValueType::kFloat32, BytesOf<float>({-0.0f, -0.0f, -0.0f}), "[-0.0]");
  check(ValueType::kFloat32, BytesOf<float>({0.0f, -0.0f, 0.0f}), "[0.0,-0.0,0.0]");
  check(ValueType::kFloat64, BytesOf<double>({0.1, 1e300, -5e-324}), "[0.1,1e+300,-5e-324]");
  check(ValueType::kFloat16, BytesOf<uint16_t>({0x3c00, 0x0001, 0xfbff}),
        "[1.0,5.960464477539063e-08,-65504.0]");
  check(ValueType::kBfloat16, BytesOf<uint16_t>({0x3f80, 0x3dcd, 0x0001}), "[1.0,0.10009765625,");
  check(ValueType::kInt8, BytesOf<int8_t>({-128, 127, 0}), "[-128,127,0]");
  check(ValueType::kInt32, BytesOf<int32_t>({INT32_MIN, INT32_MAX, 0}), "[-2147483648,");
  check(ValueType::kInt64, BytesOf<int64_t>({INT64_MIN, INT64_MAX, (int64_t{1} << 53) + 1}),
        "[-9223372036854775808,9223372036854775807,9007199254740993]");
  check(ValueType::kBool, BytesOf<uint8_t>({1, 0, 1}), "[true,false,true]");
  spec.value_type = ValueType::kString;
  spec.initializer.row.clear();
  for (const auto& row : std::vector<std::vector<std::string>>{
           {"a", "", "\xff"}, {"x", "x", "x"}, {std::string("\0\"\\", 3), "\xe2\x82", "b"}}) {
    spec.initializer.string_row = row;
    CHECK(Parsed(PrintTableSpec(spec)).initializer.string_row == row);
  }
}

// Random rules of all kinds that a table can have.
TEST(SpecsKeepRandomRules) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 2000; ++i) {
    RuleSpec rule;
    rule.kind = static_cast<RuleKind>(random() % (static_cast<int>(RuleKind::kCustom) + 1));
    switch (rule.kind) {
      case RuleKind::kSgd:
        rule.momentum = random() % 2, rule.nesterov = rule.momentum && random() % 2;
        break;
      case RuleKind::kRmsprop:
        rule.momentum = random() % 2, rule.centered = random() % 2;
        break;
      case RuleKind::kAdam:
      case RuleKind::kAdamW:
        rule.amsgrad = random() % 2;
        break;
      case RuleKind::kAdagrad:
      case RuleKind::kRowwiseAdagrad:
      case RuleKind::kFtrl:
        rule.initial_accumulator = std::bit_cast<double>(random());
        if (std::isnan(rule.initial_accumulator)) rule.initial_accumulator = 0.5;
        break;
      case RuleKind::kCustom:
        for (uint64_t slots = random() % 4; slots > 0; --slots) {
          std::string name;
          for (uint64_t n = random() % 5; n > 0; --n) name += static_cast<char>(random());
          double initial = std::bit_cast<double>(random());
          if (std::isnan(initial)) initial = std::numeric_limits<double>::quiet_NaN();
          rule.slots.push_back({name, random() % 2 == 0, initial});
        }
        break;
      default:
        break;
    }
    RuleSpec again;
    CHECK_OK(ParseRuleSpec(PrintRuleSpec(rule), &again));
    CHECK(again == rule);
  }
}

TEST(SpecsNameTheFieldThatIsWrong) {
  const std::pair<const char*, const char*> wrong[] = {
      {R"("colour":"red")", "`colour`: expected no such field, received \"red\""},
      {R"("initializer":{"kind":"zeros","mean":1.0})",
       "`initializer.mean`: expected no such field"},
      {R"("initializer":{"kind":"gauss"})", "`initializer.kind`: expected one of \"zeros\""},
      {R"("initializer":{"seed":1})", "`initializer.kind`: expected this field"},
      {R"("initializer":{"kind":"normal","mean":"big"})", "`initializer.mean`: expected a number"},
      {R"("initializer":{"kind":"normal","seed":-1})", "`initializer.seed`: expected an integer"},
      {R"("initializer":{"kind":"normal","seed":18446744073709551616})", "`initializer.seed`"},
      {R"("initializer":{"kind":"constant"})", "`initializer.row`: expected this field"},
      {R"("initializer":{"kind":"constant","row":[1,2]})", "a list of 1 or 4 elements"},
      {R"("initializer":{"kind":"constant","row":["x"]})", "`initializer.row`: expected a number"},
      {R"("initializer":"zeros")", "`initializer`: expected an object, received \"zeros\""},
      {R"("rule":{"kind":"adam","nesterov":true})", "`rule.nesterov`: expected no such field"},
      {R"("rule":{"kind":"adam","amsgrad":1})", "`rule.amsgrad`: expected true or false"},
      {R"("rule":{"kind":"custom"})", "`rule.slots`: expected this field"},
      {R"("rule":{"kind":"custom","slots":[{"scalar":true}]})", "`rule.slots[0].name`"},
      {R"("rule":{"kind":"custom","slots":[{"name":{"hex":"abc"}}]})", "`rule.slots[0].name`"},
      {R"("rule":{"kind":"custom","slots":[{"name":{"hex":"zz"}}]})", "two digits"},
      {R"("metadata":1)", "`metadata`: expected true or false, received 1"},
      {R"("admission":{"kind":"min_count","min_count":0})", "`admission.min_count`"},
      {R"("admission":{"kind":"bloom_filter","filter_keys":1e3})", "`admission.filter_keys`"},
      {R"("initial_capacity":-1)", "`initial_capacity`: expected an integer from 0"},
      {R"("initial_capacity":1e99)", "`initial_capacity`"},
      {R"("bound":{"strategy":"lru"})", "`bound.max_capacity`: expected this field"},
      {R"("bound":{"max_capacity":0})", "`bound.max_capacity`"},
      {R"("bound":{"max_capacity":9,"strategy":"fifo"})", "`bound.strategy`: expected one of"},
      {R"("tiers":{"fast_bytes":-5})", "`tiers.fast_bytes`"},
      {R"("tiers":{"fast_bytes":5,"directory":7})", "`tiers.directory`: expected a string"},
      {R"("scalar":true)", "`dim`: expected 1, since `scalar` is true, received 4"},
      {R"("dim":5)", "`dim`: expected once, received twice"},
      {R"("rule":{"kind":"sgd","kind":"adam"})", "`kind`: expected once, received twice"},
  };
  for (const auto& [more, message] : wrong) CHECK(Has(Refused(With(more)), message));
  CHECK(Has(Refused(R"({"key_type":"int64"})"), "`version`: expected this field"));
  CHECK(Has(Refused(R"({"version":2})"), "`version`: expected 1"));
  CHECK(Has(Refused(R"({"version":1.0})"), "`version`: expected 1"));
  CHECK(Has(Refused(R"({"version":1,"key_type":"int16"})"), "`key_type`"));
  CHECK(Has(Refused(R"({"version":1,"key_type":"int64","value_type":"float32","dim":16777217})"),
            "`dim`: expected an integer from 1 to 16777216, received 16777217"));
}

TEST(SpecsRefuseTextsThatAreNoSpecs) {
  for (const std::string& text :
       {std::string(), std::string("x"), std::string("{"), std::string("[]"), std::string("null"),
        std::string("{}{}"), With("") + "x", std::string("\xff\xfe"), std::string(1000, '['),
        std::string("{\"a\":") + std::string(100000, '['), std::string("\"adam\"")}) {
    CHECK(!Refused(text).empty());
  }
  CHECK(Has(Refused("\xEF\xBB\xBF" + With("")), "byte order mark"));
  // A text of many fields is refused before all of them are stored.
  std::string many = "{";
  for (int i = 0; i < 100000; ++i) many += "\"f" + std::to_string(i) + "\":0,";
  CHECK(Has(Refused(many + "\"version\":1}"), "at most"));
  // Every text that is cut short is refused.
  const std::string whole = With(R"("rule":{"kind":"adam"},"bound":{"max_capacity":7})");
  for (size_t size = 0; size < whole.size(); ++size) Refused(whole.substr(0, size));
}

TEST(SpecsOfTablesAreTheirOwn) {
  TableSpec spec = Parsed(With(R"("rule":{"kind":"adam"},"initializer":{"kind":"external"})"));
  std::unique_ptr<Table> table;
  CHECK_OK(Table::Create(spec, &table));
  CHECK_EQ(PrintTableSpec(table->spec()), PrintTableSpec(spec));
  // If the caller computes initial rows, those of the engine are zeros.
  const int64_t key = 5;
  float row[4] = {1, 1, 1, 1};
  CHECK_OK(table->Lookup(KeyBatch(&key, 1), {}, row, nullptr));
  for (float value : row) CHECK_EQ(value, 0.0f);
}

TEST(UpdateParamsAreReadFromJson) {
  UpdateParams params;
  CHECK_OK(ParseUpdateParams(R"({"step":9223372036854775807,"beta_1":0.5,"clipnorm":2})", &params));
  CHECK_EQ(params.step, INT64_MAX);
  CHECK_EQ(params.beta_1, 0.5);
  CHECK_EQ(params.clipnorm, 2.0);
  CHECK_EQ(params.beta_2, UpdateParams().beta_2);
  for (const char* text : {R"({"step":0})", R"({"beta_3":0.5})", R"({"beta_1":true})", "7", ""}) {
    CHECK(ParseUpdateParams(text, &params).code() == StatusCode::kInvalidArgument);
  }
  CHECK_EQ(params.beta_1, 0.5);
}

}  // namespace
}  // namespace tfra::test
