// The contract of tfra/store.h, through nothing but Store: for every type of keys and values, and
// for every kind of table.
#include "tfra/store.h"

#include <cstddef>
#include <string>
#include <vector>

#include "check.h"
#include "table_helpers.h"

namespace tfra::test {
namespace {

constexpr size_t kDim = 2;

int NumberOf(int64_t key, size_t j) {
  return static_cast<int>((key + static_cast<int64_t>(j)) % 50) + 1;
}

std::vector<int> RowOf(ValueType type, int64_t key) {
  std::vector<int> row(kDim);
  for (size_t j = 0; j < kDim; ++j) row[j] = Kept(type, NumberOf(key, j));
  return row;
}

TestRows RowsOf(ValueType type, int64_t begin, int64_t end) {
  return TestRows::Make(type, static_cast<size_t>(end - begin), kDim, [&](size_t i, size_t j) {
    return NumberOf(begin + static_cast<int64_t>(i), j);
  });
}

// The whole content, by batches of some rows.
ContentsMap ContentOf(Store& store) {
  ContentsMap contents;
  ExportBatch batch;
  for (ExportCursor cursor; !cursor.done;) {
    CHECK_OK(store.Export(7, &cursor, &batch));
    AddBatch(store.spec(), batch, &contents);
  }
  CHECK_EQ(contents.size(), store.size());
  return contents;
}

// REQUIRES: a store without rows.
void CheckRows(Store& store) {
  const KeyType key_type = store.spec().key_type;
  const ValueType value_type = store.spec().value_type;
  const TestKeys keys = TestKeys::Range(key_type, 0, 100);
  CHECK_OK(store.Assign(keys.batch(), RowsOf(value_type, 0, 100).in()));
  CHECK_EQ(store.size(), 100u);

  // Rows that are there, and defaults for the others.
  const TestKeys asked = TestKeys::Range(key_type, 90, 110);
  TestRows values(value_type, asked.size(), kDim);
  Flags exists(asked.size());
  const TestRows one = RowsOf(value_type, 7, 8);
  CHECK_OK(store.Lookup(asked.batch(), {Defaults::kOneRow, one.in()}, values.out(), exists.data()));
  for (size_t i = 0; i < asked.size(); ++i) {
    const int64_t key = 90 + static_cast<int64_t>(i);
    CHECK_EQ(exists[i], key < 100);
    CHECK(values.Row(i) == RowOf(value_type, key < 100 ? key : 7));
  }
  CHECK_OK(store.Lookup(asked.batch(), {}, values.out(), nullptr));
  CHECK(values.Row(15) == std::vector<int>(kDim, 0));
  CHECK_EQ(store.size(), 100u);

  // Of equal keys the last assignment stays.
  const TestKeys twice(key_type, {5, 5});
  CHECK_OK(store.Assign(twice.batch(), RowsOf(value_type, 20, 22).in()));
  TestRows last(value_type, 1, kDim);
  CHECK_OK(store.Lookup(TestKeys(key_type, {5}).batch(), {}, last.out(), nullptr));
  CHECK(last.Row(0) == RowOf(value_type, 21));

  size_t removed = 0;
  CHECK_OK(store.Remove(TestKeys(key_type, {5, 5, 6, 1000}).batch(), &removed));
  CHECK_EQ(removed, 2u);
  CHECK_EQ(store.size(), 98u);
  CHECK_EQ(ContentOf(store).size(), 98u);

  CHECK_OK(store.Clear());
  CHECK_EQ(store.size(), 0u);
  CHECK_EQ(ContentOf(store).size(), 0u);
}

// All batches of one store make the other equal to it.
void CheckImport(Store& from, Store& to) {
  const KeyType key_type = from.spec().key_type;
  const ValueType value_type = from.spec().value_type;
  CHECK_OK(from.Assign(TestKeys::Range(key_type, 0, 300).batch(), RowsOf(value_type, 0, 300).in()));
  ExportBatch batch;
  for (ExportCursor cursor; !cursor.done;) {
    CHECK_OK(from.Export(50, &cursor, &batch));
    CHECK_OK(to.Import(batch));
  }
  CHECK(ContentOf(from) == ContentOf(to));
}

std::vector<TableSpec> SpecsOf(KeyType key_type, ValueType value_type) {
  std::vector<TableSpec> specs(3, SpecOf(key_type, value_type, kDim));
  specs[1].metadata = true;
  specs[1].bound.max_capacity = 5000;
  if (value_type != ValueType::kString) specs[2].tiers.fast_bytes = 1;
  return specs;
}

TEST(StoreContract) {
  for (const KeyType key_type : kKeyTypes) {
    for (const ValueType value_type : kValueTypes) {
      for (const TableSpec& spec : SpecsOf(key_type, value_type)) {
        const auto store = MakeTable(spec), other = MakeTable(spec);
        CheckRows(*store);
        CheckImport(*store, *other);
      }
    }
  }
}

TEST(StoreRowsHaveSlots) {
  for (const KeyType key_type : kKeyTypes) {
    for (TableSpec spec : SpecsOf(key_type, ValueType::kFloat32)) {
      spec.rule.kind = RuleKind::kAdam;  // Two slots of dim elements.
      const auto table = MakeTable(spec), copy = MakeTable(spec);
      Store& store = *table;
      const TestKeys keys(key_type, {1, 2});
      const std::vector<float> given = {1, 2, 3, 4}, slots = {5, 6, 7, 8, 9, 10, 11, 12};
      CHECK_OK(store.Assign(keys.batch(), given.data(), slots.data()));

      // Assigning values alone leaves the slots.
      const TestKeys second(key_type, {2});
      const std::vector<float> row = {30, 40};
      CHECK_OK(store.Assign(second.batch(), row.data()));
      const TestKeys asked(key_type, {2, 3, 1});
      const std::vector<float> default_row = {-1, -2};
      std::vector<float> values(6), found(12);
      Flags exists(3);
      CHECK_OK(store.Lookup(asked.batch(), {Defaults::kOneRow, default_row.data()}, values.data(),
                            exists.data(), found.data()));
      CHECK(values == std::vector<float>({30, 40, -1, -2, 1, 2}));
      CHECK(found == std::vector<float>({9, 10, 11, 12, 0, 0, 0, 0, 5, 6, 7, 8}));
      CHECK(exists[0] && !exists[1] && exists[2]);

      ExportBatch batch;
      ExportCursor cursor;
      CHECK_OK(store.Export(10, &cursor, &batch));
      CHECK_OK(copy->Import(batch));
      std::vector<float> copied(12);
      CHECK_OK(copy->Lookup(asked.batch(), {}, values.data(), nullptr, copied.data()));
      CHECK(copied == found);
    }
  }
}

TEST(StoreOfStringsHasNoSlots) {
  const auto store = MakeTable(SpecOf(KeyType::kInt64, ValueType::kString, 1));
  const TestKeys keys(KeyType::kInt64, {1});
  TestRows values(ValueType::kString, 1, 1);
  float slot = 0;
  CHECK(store->Lookup(keys.batch(), {}, values.out(), nullptr, &slot).code() ==
        StatusCode::kWrongType);
}

}  // namespace
}  // namespace tfra::test
