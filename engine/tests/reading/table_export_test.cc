// Exports into arrays of the caller.
#include <algorithm>
#include <functional>

#include "concurrency_helpers.h"
#include "reading/batch_rows.h"
#include "whole_rows.h"

namespace tfra::test {
namespace {

// A spec without a bound and tiers, also if other tests run with these.
TableSpec PlainSpec(ValueType type, int64_t dim) {
  TableSpec spec = SpecOf(KeyType::kInt64, type, dim);
  spec.bound = {};
  spec.tiers = {};
  return spec;
}

// Memory for `room` rows of a table, `shift` bytes after the start of a cache line.
class Arrays {
 public:
  Arrays(const Table& table, size_t room, size_t shift = 0)
      : table_(table),
        keys_(room),
        values_(room * ValueBytes(table) + kSlack),
        slots_(room * SlotBytes(table) + kSlack),
        metadata_(table.spec().metadata ? room : 0),
        scores_(table.spec().bound.max_capacity > 0 ? room : 0) {
    const auto aligned = [&](std::vector<std::byte>* bytes) {
      void* start = bytes->data();
      size_t space = bytes->size();
      return static_cast<std::byte*>(std::align(kCacheLine, 0, start, space)) + shift;
    };
    const auto given = [](auto* array) { return array->empty() ? nullptr : array->data(); };
    arrays_ = {room,           keys_.data(), aligned(&values_), aligned(&slots_), given(&metadata_),
               given(&scores_)};
  }

  const RowArrays& arrays() const { return arrays_; }

  // A batch of the first `rows` rows of the arrays, followed by `rest`.
  ExportBatch Batch(size_t rows, ExportBatch rest) const {
    ExportBatch batch;
    batch.size = rows;
    const auto take = [&](auto* to, const auto* from, size_t elements) {
      if (from != nullptr) to->assign(from, from + rows * elements);
    };
    take(&batch.int_keys, arrays_.keys, 1);
    take(&batch.values, arrays_.values, ValueBytes(table_));
    take(&batch.slots, arrays_.slots, SlotBytes(table_));
    take(&batch.metadata, arrays_.metadata, 1);
    take(&batch.scores, arrays_.scores, 1);
    batch.Append(std::move(rest));
    return batch;
  }

 private:
  static constexpr size_t kSlack = 2 * kCacheLine;

  const Table& table_;
  std::vector<int64_t> keys_;
  std::vector<std::byte> values_, slots_;
  std::vector<RowMetadata> metadata_;
  std::vector<uint64_t> scores_;
  RowArrays arrays_;
};

ExportBatch ExportedInto(Table& table, size_t room, size_t shift = 0) {
  const Arrays arrays(table, room, shift);
  size_t rows = 0;
  ExportBatch rest;
  CHECK_OK(table.ExportInto(arrays.arrays(), &rows, &rest));
  CHECK_EQ(rows, std::min<size_t>(room, table.size()));
  return arrays.Batch(rows, std::move(rest));
}

// Exports the table batch by batch, which uses other code.
ExportBatch ExportedByCursor(Table& table) {
  ExportBatch all, batch;
  for (ExportCursor cursor; !cursor.done;) {
    CHECK_OK(table.Export(777, &cursor, &batch));
    all.Append(std::move(batch));
  }
  return all;
}

// All exported data of each key, as bytes.
std::map<int64_t, std::string> ByKey(const Table& table, const ExportBatch& batch) {
  std::map<int64_t, std::string> rows;
  CHECK_EQ(batch.int_keys.size(), batch.size);
  for (size_t i = 0; i < batch.size; ++i) {
    std::string row;
    const auto add = [&](const auto& array, size_t elements) {
      CHECK(array.empty() || array.size() == batch.size * elements);
      if (array.empty()) return;
      row.append(reinterpret_cast<const char*>(array.data() + i * elements),
                 elements * sizeof(array[0]));
    };
    add(batch.values, ValueBytes(table));
    add(batch.slots, SlotBytes(table));
    add(batch.metadata, 1);
    add(batch.scores, 1);
    CHECK(rows.emplace(batch.int_keys[i], row).second);
  }
  return rows;
}

// Calls body with tables whose rows have many sizes; some are whole cache lines.
void ForEveryPlainTable(const std::function<void(Table&)>& body) {
  for (ValueType type : kValueTypes) {
    if (type == ValueType::kString) continue;
    for (int64_t dim : {1, 5, 16, 64}) {
      for (bool bounded : {false, true}) {
        TableSpec spec = PlainSpec(type, dim);
        if (bounded) spec.bound = {.max_capacity = 2000};
        spec.metadata = dim != 5;
        if (type == ValueType::kFloat32 || type == ValueType::kFloat16) {
          spec.rule.kind = RuleKind::kAdam;
        }
        std::unique_ptr<Table> table = MakeTable(spec);
        table->upkeep().SetClock(7);
        for (int begin = 0; begin < 3000; begin += 1000) {
          AssignNumbers(*table, TestKeys::Range(KeyType::kInt64, begin, begin + 1000),
                        [&](size_t i, size_t j) { return static_cast<int>((i + j) % 100); });
        }
        size_t removed;
        CHECK_OK(table->Remove(TestKeys::Range(KeyType::kInt64, 2500, 2700).batch(), &removed));
        body(*table);
      }
    }
  }
}

TEST(ExportIntoExportsAllRows) {
  ForEveryPlainTable([](Table& table) {
    const auto whole = ByKey(table, ExportedByCursor(table));
    CHECK(ByKey(table, Exported(table)) == whole);
    CHECK(whole.size() > 1000);
    for (size_t room : {whole.size(), whole.size() + 100, whole.size() / 2, size_t{1}, size_t{0}}) {
      for (size_t shift : {0, 8}) {
        CHECK(ByKey(table, ExportedInto(table, room, shift)) == whole);
      }
    }
  });
}

TEST(ExportIntoLeavesOutWhatIsNotWanted) {
  std::unique_ptr<Table> table = MakeTable(PlainSpec(ValueType::kInt32, 16));
  AssignNumbers(*table, TestKeys::Range(KeyType::kInt64, 0, 100), [](size_t, size_t) { return 3; });
  std::vector<int64_t> keys(100);
  size_t rows = 0;
  ExportBatch rest;
  CHECK_OK(table->ExportInto({.room = 100, .keys = keys.data()}, &rows, &rest));
  CHECK_EQ(rows, 100u);
  std::sort(keys.begin(), keys.end());
  std::vector<int64_t> expected = ExportedByCursor(*table).int_keys;
  std::sort(expected.begin(), expected.end());
  CHECK(keys == expected);
}

TEST(ExportIntoHasOneOrder) {
  std::unique_ptr<Table> table = MakeTable(PlainSpec(ValueType::kFloat32, 4));
  AssignNumbers(*table, TestKeys::Range(KeyType::kInt64, 0, 50000),
                [](size_t i, size_t) { return static_cast<int>(i % 100); });
  const ScopedNumThreads one(1);
  const std::vector<int64_t> keys = ExportedInto(*table, table->size()).int_keys;
  for (int threads : {1, 2, 4, 4, 4, 4}) {
    SetNumThreads(threads);
    CHECK(ExportedInto(*table, table->size()).int_keys == keys);
  }
}

TEST(ExportIntoRefusesOtherTables) {
  const auto refused = [](const TableSpec& spec, const RowArrays& arrays = {}) {
    std::unique_ptr<Table> table = MakeTable(spec);
    size_t rows = 0;
    ExportBatch rest;
    CHECK(table->ExportInto(arrays, &rows, &rest).code() == StatusCode::kInvalidArgument);
  };
  refused(SpecOf(KeyType::kString, ValueType::kFloat32, 4));
  refused(SpecOf(KeyType::kInt64, ValueType::kString, 4));
  TableSpec tiered = PlainSpec(ValueType::kFloat32, 4);
  tiered.tiers.fast_bytes = 1 << 20;
  refused(tiered);
  // Columns that the table does not have.
  RowMetadata metadata;
  uint64_t score;
  refused(PlainSpec(ValueType::kFloat32, 4), {.room = 1, .metadata = &metadata});
  refused(PlainSpec(ValueType::kFloat32, 4), {.room = 1, .scores = &score});
}

// The first keys stay and change. Other keys are inserted and removed, so that their rows are
// reused, and stripes grow and shrink all the time.
TEST(ConcurrentExportIntoSeesWholeRowsOnce) {
  constexpr size_t kDim = 16;
  constexpr int64_t kStay = 2000, kAll = 8000;
  const int scale = 5 * kScale;
  std::unique_ptr<Table> table = MakeTable(PlainSpec(ValueType::kInt32, kDim));
  Errors errors{0};
  const auto write = [&](int64_t begin, int64_t end, int version) {
    std::vector<int64_t> keys;
    std::vector<int32_t> rows;
    for (int64_t key = begin; key < end; ++key) {
      keys.push_back(key);
      rows.insert(rows.end(), kDim, static_cast<int32_t>(version * 10000 + key));
    }
    errors += !table->Assign(KeyBatch(keys.data(), keys.size()), rows.data()).ok();
    return keys;
  };
  const auto churn = [&] {
    for (int round = 0; round < 10 * scale; ++round) {
      const std::vector<int64_t> keys = write(kStay, kStay + 600 * (round % 10 + 1), 1);
      size_t removed;
      errors += !table->Remove(KeyBatch(keys.data(), keys.size()), &removed).ok();
    }
  };
  const auto rebuild = [&] {
    for (int round = 0; round < 40 * scale; ++round) {
      errors += !table->Reserve(4 * kAll).ok();
      errors += !table->Shrink().ok();
    }
  };
  const auto update = [&] {
    for (int version = 2; version < 10 * scale; ++version) write(0, kStay, version);
  };
  const auto exporting = [&](size_t room) {
    return [&, room] {
      const Arrays arrays(*table, room);
      size_t count = 0;
      ExportBatch rest;
      errors += !table->ExportInto(arrays.arrays(), &count, &rest).ok();
      errors += count > room;
      const ExportBatch batch = arrays.Batch(count, std::move(rest));
      std::vector<int> seen(kAll);
      const auto* rows = reinterpret_cast<const int32_t*>(batch.values.data());
      for (size_t i = 0; i < batch.size; ++i, rows += kDim) {
        errors += std::count(rows, rows + kDim, rows[0]) != int64_t{kDim};
        errors += rows[0] % 10000 != batch.int_keys[i];
        ++seen[static_cast<size_t>(batch.int_keys[i])];
      }
      for (size_t key = 0; key < kStay; ++key) errors += seen[key] != 1;
    };
  };
  write(0, kStay, 1);
  Run({churn, update, rebuild}, {exporting(kAll), exporting(2500), exporting(50)});
  CHECK_EQ(errors.load(), 0);
}

}  // namespace
}  // namespace tfra::test
