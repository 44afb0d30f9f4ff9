// Rows from a checkpoint, into one table of any number: each picks its own keys, a batch at a time,
// so that restoring takes no copy of the whole.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "arguments.h"
#include "kernels.h"
#include "rule_text.h"

namespace tfra::tf {
namespace {

constexpr size_t kBatch = 16384;
// Of tables with a budget. The rows of one call are in memory together, and rows that were exported
// one after the other are of the same shard.
constexpr size_t kTieredBatch = 1024;

// Rows of fixed size, of which some are picked.
class Picker {
 public:
  Picker(const void* rows, size_t row_bytes)
      : rows_(static_cast<const char*>(rows)), row_bytes_(row_bytes) {}

  void Add(size_t row) {
    if (rows_ == nullptr) return;
    const char* start = rows_ + row * row_bytes_;
    picked_.insert(picked_.end(), start, start + row_bytes_);
  }
  // Null if there are no rows to pick from.
  const void* picked() const { return rows_ == nullptr ? nullptr : picked_.data(); }
  void Clear() { picked_.clear(); }

 private:
  const char* rows_;
  size_t row_bytes_;
  std::vector<char> picked_;
};

Scores ExactScores(const void* scores) {
  if (scores == nullptr) return Scores();
  return Scores{Scores::kExact, static_cast<const uint64_t*>(scores)};
}

// The numbers of rows, those of the highest scores first: if there are more than the table takes,
// the best stay.
std::vector<uint32_t> BestFirst(const uint64_t* scores, size_t n) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  return order;
}

// parts: the part of each key, or null if all of them are of this one. order: of the rows; empty,
// as they are.
template <typename Key>
void RestorePart(Table* table, const Key* keys, const int32_t* parts, int32_t part, size_t n,
                 const std::vector<uint32_t>& order, std::vector<Picker> rows) {
  const size_t batch = table->options().tiers.fast_bytes > 0 ? kTieredBatch : kBatch;
  std::vector<Key> picked;
  const auto flush = [&] {
    Check(table->Assign(KeyBatch(picked.data(), picked.size()), rows[0].picked(), rows[1].picked(),
                        static_cast<const RowMetadata*>(rows[2].picked()),
                        ExactScores(rows[3].picked())));
    picked.clear();
    for (Picker& picker : rows) picker.Clear();
  };
  for (size_t k = 0; k < n; ++k) {
    const size_t i = order.empty() ? k : order[k];
    if (parts != nullptr && parts[i] != part) continue;
    picked.push_back(keys[i]);
    for (Picker& picker : rows) picker.Add(i);
    if (picked.size() == batch) flush();
  }
  flush();
}

}  // namespace

void Restore(void*, TF_OpKernelContext* op) {
  RunKernel(op, [](const OpContext& context) {
    const std::string rule = context.InputString(5);
    // What was trained goes on with its slots, before an optimizer is known here too.
    const TableUse table =
        rule == kNoRule ? UseTable(context, 0) : TableUse(FindTable(context, 0), RuleOf(rule));
    const TableOptions& options = table->options();
    const Keys keys(table.named(), context.Input(1));
    const Values values(table.named(), context.Input(2), "values");
    const auto n = static_cast<int64_t>(keys.size());
    if (values.dims() != Dims{n, options.dim}) {
      InvalidArgument("expected values of shape " + ToString({n, options.dim}) +
                      ", received shape " + ToString(values.dims()));
    }
    const Tensor slots = context.Input(3), metadata = context.Input(4), parts = context.Input(6);
    const int32_t part = *context.Input(7).data<const int32_t>();
    const int32_t part_count = *context.Input(8).data<const int32_t>();
    const auto* part_of = part_count > 1 ? parts.data<const int32_t>() : nullptr;
    if (part_count > 1) {
      if (parts.elements() != n) {
        InvalidArgument("expected the part of each of " + std::to_string(n) + " keys, received " +
                        std::to_string(parts.elements()) + " parts");
      }
      for (int64_t i = 0; i < n; ++i) {
        if (part_of[i] >= 0 && part_of[i] < part_count) continue;
        InvalidArgument("expected parts of keys in [0, " + std::to_string(part_count) +
                        "), received " + std::to_string(part_of[i]));
      }
    }
    const Tensor scores = context.Input(9), epoch = context.Input(10);
    // Everything is checked: now the table may change.
    Check(table->Clear());
    table.ForgetOwner();
    if (IsBounded(*table) && epoch.elements() >= 2) {
      // Before the rows come: their scores belong to it.
      table->SetEpoch(static_cast<uint32_t>(epoch.data<const int64_t>()[0]));
      table.named().steps = epoch.data<const int64_t>()[1];
    }
    // What was saved without slots, metadata or scores, or for another optimizer, is restored with
    // initial ones.
    const auto slot_elements = static_cast<int64_t>(table->slot_elements());
    const ValueType slot_type = ComputeType(options.value_type);
    const bool has_slots = slot_elements > 0 && slots.dims() == Dims{n, slot_elements} &&
                           slots.type() == DataTypeOf(slot_type);
    const bool has_metadata = options.metadata && metadata.dims() == Dims{n, 2};
    const void* slot_rows = has_slots ? slots.data<void>() : nullptr;
    const void* metadata_rows = has_metadata ? metadata.data<void>() : nullptr;
    const bool has_scores = IsBounded(*table) && scores.dims() == Dims{n};
    const void* score_rows = has_scores ? scores.data<void>() : nullptr;
    std::vector<uint32_t> order;
    if (has_scores && n > options.bound.max_capacity) {
      order = BestFirst(scores.data<const uint64_t>(), static_cast<size_t>(n));
    }
    const bool at_once = options.tiers.fast_bytes == 0 && order.empty();
    if (part_count <= 1 && at_once) {
      Check(table->Assign(keys.batch(), values.data(), slot_rows,
                          static_cast<const RowMetadata*>(metadata_rows), ExactScores(score_rows)));
      return;
    }
    const size_t element = options.value_type == ValueType::kString ? sizeof(std::string_view)
                                                                    : SizeOf(options.value_type);
    const std::vector<Picker> rows = {
        Picker(values.data(), static_cast<size_t>(options.dim) * element),
        Picker(slot_rows, static_cast<size_t>(slot_elements) * SizeOf(slot_type)),
        Picker(metadata_rows, sizeof(RowMetadata)), Picker(score_rows, sizeof(uint64_t))};
    if (keys.batch().type == KeyType::kString) {
      RestorePart(&*table, keys.batch().strings, part_of, part, keys.size(), order, rows);
    } else {
      RestorePart(&*table, keys.batch().ints, part_of, part, keys.size(), order, rows);
    }
  });
}

}  // namespace tfra::tf
