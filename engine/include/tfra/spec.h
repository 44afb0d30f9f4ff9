// TableSpec, the one description of a table, and its form as JSON.
//
// Adapters, checkpoints and snapshots carry the JSON form. Its fields are those of the structs
// below, under the same names; fields that have their default value may be left out, but for
// `version`, `key_type`, `value_type` and `dim`:
//
//   {"version": 1, "key_type": "int64", "value_type": "float32", "dim": 16,
//    "initializer": {"kind": "normal", "seed": 7, "mean": 0.0, "stddev": 0.05},
//    "rule": {"kind": "adam", "amsgrad": false}, "metadata": true}
//
// Parsing is strict: a field that is unknown, given twice, of a wrong type or out of range is
// refused by its name, and so is a byte order mark. 64-bit integers are exact. Infinite numbers and
// NaN are the strings "inf", "-inf" and "nan"; bytes that are not UTF-8 are an object
// {"hex": "00ff"}. A constant row is a list of `dim` elements, or of one element that all of them
// are equal to. Numbers that a single optimizer step is told (UpdateParams) are not part of a
// TableSpec.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tfra/status.h"
#include "tfra/types.h"

namespace tfra {

// The largest sizes. A call that is given a larger one returns kInvalidArgument and allocates
// nothing.
inline constexpr int64_t kMaxDim = int64_t{1} << 24;
// Row numbers have 32 bits. Some stay unused, so that sums of a few row counts do not overflow.
inline constexpr int64_t kMaxKeys = (int64_t{1} << 32) - (int64_t{1} << 20);
inline constexpr int64_t kMaxFilterKeys = int64_t{1} << 40;  // AdmissionSpec::filter_keys.
inline constexpr uint32_t kMaxFilterCount = UINT16_MAX;      // min_count of a Bloom filter.

enum class InitializerKind : uint8_t {
  kZeros,
  kOnes,
  kConstant,
  kUniform,
  kNormal,
  kTruncatedNormal,
  kExternal,  // The caller computes initial rows; for the engine they are zeros.
};

// The value of a row that was never written: a pure function of (seed, key), the same on every
// platform and in every order.
struct InitializerSpec {
  InitializerKind kind = InitializerKind::kZeros;
  uint64_t seed = 0;
  // kUniform: [low, high). kNormal and kTruncatedNormal (cut at two standard deviations): mean,
  // stddev.
  double low = -0.05, high = 0.05;
  double mean = 0.0, stddev = 0.05;
  // kConstant: the row itself, dim elements of the value type, or dim strings.
  std::vector<std::byte> row;
  std::vector<std::string> string_row;
};

enum class RuleKind : uint8_t {
  kNone,
  kSgd,
  kAdagrad,
  kRowwiseAdagrad,
  kAdam,
  kAdamW,
  kAdamax,
  kNadam,
  kRmsprop,
  kAdadelta,
  kFtrl,
  kLion,
  kCustom,  // The arithmetic is the caller's: rows carry its slots.
};

// Numbers that a row carries for an optimizer: dim of them or one, of ComputeType(value_type).
struct SlotSpec {
  std::string name;
  bool scalar = false;  // One element per row instead of dim.
  double initial = 0.0;

  // By the bits of the initial value, which may be NaN.
  bool operator==(const SlotSpec& other) const {
    return name == other.name && scalar == other.scalar &&
           std::bit_cast<uint64_t>(initial) == std::bit_cast<uint64_t>(other.initial);
  }
};

// An update rule and the switches that decide which slots a row carries.
struct RuleSpec {
  RuleKind kind = RuleKind::kNone;
  bool momentum = false;             // kSgd, kRmsprop: the row has a momentum slot.
  bool nesterov = false;             // kSgd, needs momentum.
  bool amsgrad = false;              // kAdam, kAdamW.
  bool centered = false;             // kRmsprop.
  double initial_accumulator = 0.1;  // kAdagrad, kRowwiseAdagrad, kFtrl.
  std::vector<SlotSpec> slots = {};  // kCustom.

  bool operator==(const RuleSpec&) const = default;
};

// The slots that a row carries with a rule, in their order in memory. Their names are listed
// nowhere else.
std::vector<SlotSpec> SlotLayout(const RuleSpec& rule);

// Numbers of one optimizer step. Each rule reads those its Keras 3 namesake has.
struct UpdateParams {
  int64_t step = 1;  // Counts from 1.
  double learning_rate = 0.001;
  double momentum = 0.0;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double rho = 0.9;
  double epsilon = 1e-7;
  double l1 = 0.0;
  double l2 = 0.0;
  double l2_shrinkage = 0.0;
  double learning_rate_power = -0.5;
  double beta = 0.0;
  double weight_decay = 0.0;  // Decoupled, before the rule; 0 is none.
  double clipnorm = 0.0;      // L2 norm of the row's gradient; 0 is none.
  double clipvalue = 0.0;     // Each element of the gradient; 0 is none.
};

// What the score of a key is, by which a full table decides whom to evict: the lowest one goes.
// Only writes change scores. Each is a number of 64 bits.
enum class EvictStrategy : uint8_t {
  kLru,       // A clock that counts the keys of all writing calls: later writes are higher.
  kLfu,       // How often the key was written to.
  kEpochLru,  // High 32 bits: TableScores::epoch(). Low: a clock that counts the writing calls of
              // an epoch.
  kEpochLfu,  // High 32 bits: TableScores::epoch() of the last write. Low: how often it was written
              // to.
  kCustomized,  // What the caller says.
};

// How many keys a table may hold.
struct Bound {
  int64_t max_capacity = 0;  // 0: any number.
  EvictStrategy strategy = EvictStrategy::kLru;
  // kLfu and kEpochLfu. True: keys that were evicted or rejected go on from their former count when
  // they come again. Counts of keys outside the table are approximate (they may be another key's,
  // and fade with time) and take some eight bytes for each of max_capacity keys. False: such keys
  // start from nothing, so a table whose keys have all come twice takes no key that comes once.
  bool remember_counts = true;
  // kEpochLru and kEpochLfu: the epoch is one higher after so many optimizer steps and inserting
  // calls of a TrainedTable. 0: only SetEpoch changes it.
  int64_t steps_per_epoch = 0;
};

// Where rows are kept. With fast_bytes, rows take no more than about so much memory: the others are
// in a file. See "Tiered tables" in table.h.
struct Tiers {
  uint64_t fast_bytes = 0;  // 0: all rows are in memory.
  std::string directory;    // Of the file. Empty: $TMPDIR, or /tmp.
};

enum class AdmissionKind : uint8_t { kAll, kMinCount, kBloomFilter, kProbability };

// Which keys that are not in the table may enter it. A key is seen once by each call that would
// insert it. Until it enters, what the call brings for it is dropped, and counted as refused.
struct AdmissionSpec {
  AdmissionKind kind = AdmissionKind::kAll;
  // kMinCount, kBloomFilter: it enters when it is seen for this time. kMinCount counts exactly, in
  // memory that grows with the keys that wait. kBloomFilter counts in memory of a fixed size: a key
  // may enter early, since other keys share its counters, but never late.
  uint32_t min_count = 1;
  // kBloomFilter: after so many keys were seen, a new one is taken for one of them with this
  // probability.
  int64_t filter_keys = 0;
  double filter_error = 0.01;
  // kProbability: each time it is seen, it enters with this probability.
  double probability = 1.0;
  uint64_t seed = 0;

  bool operator==(const AdmissionSpec&) const = default;
};

struct TableSpec {
  KeyType key_type = KeyType::kInt64;
  ValueType value_type = ValueType::kFloat32;
  int64_t dim = 1;
  // Adapters give values the shape of their keys, without a dimension for the row. Needs dim 1.
  bool scalar = false;
  InitializerSpec initializer;
  RuleSpec rule;
  // Each key also has a RowMetadata (8 bytes, in the index), kept up to date by every write.
  bool metadata = false;
  AdmissionSpec admission;
  // Room for so many keys before the index first grows.
  int64_t initial_capacity = 0;
  // See "Bounded tables" in table.h.
  Bound bound;
  // See "Tiered tables" in table.h.
  Tiers tiers;
};

// The names that the JSON form uses.
const char* NameOf(KeyType type);
const char* NameOf(InitializerKind kind);
const char* NameOf(RuleKind kind);
const char* NameOf(AdmissionKind kind);
const char* NameOf(EvictStrategy strategy);

// From and to JSON. Parsing returns kInvalidArgument for any text that is not a whole description,
// and then leaves the output as it was; it does not check what Table::Create does, for example
// whether the rule fits the value type.
Status ParseTableSpec(std::string_view json, TableSpec* spec);
std::string PrintTableSpec(const TableSpec& spec);
Status ParseRuleSpec(std::string_view json, RuleSpec* rule);
std::string PrintRuleSpec(const RuleSpec& rule);
Status ParseUpdateParams(std::string_view json, UpdateParams* params);

}  // namespace tfra
