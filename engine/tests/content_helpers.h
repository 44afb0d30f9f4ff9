// Trained tables, and the content of a table in a form that is easy to compare.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "table_helpers.h"
#include "tfra/trained_table.h"

namespace tfra::test {

inline std::shared_ptr<TrainedTable> MakeTrained(const TableSpec& spec) {
  std::shared_ptr<TrainedTable> table;
  CHECK_OK(TrainedTable::Create(spec, &table));
  return table;
}

// All columns of a table: one line for each key, sorted by key.
inline std::map<std::string, std::string> LinesOf(Table& table) {
  ExportBatch batch;
  CHECK_OK(table.ExportAll(&batch));
  ContentsMap contents;
  AddBatch(table.spec(), batch, &contents);
  std::map<std::string, std::string> lines;
  const size_t slot_bytes = batch.size == 0 ? 0 : batch.slots.size() / batch.size;
  for (size_t i = 0; i < batch.size; ++i) {
    const std::string name = table.spec().key_type == KeyType::kString
                                 ? std::string(batch.string_keys[i])
                                 : std::to_string(batch.int_keys[i]);
    std::string line;
    for (const int number : contents[name]) line += std::to_string(number) + " ";
    line.append(reinterpret_cast<const char*>(batch.slots.data()) + i * slot_bytes, slot_bytes);
    if (table.spec().metadata) {
      line += " at " + std::to_string(batch.metadata[i].time) + " count " +
              std::to_string(batch.metadata[i].count);
    }
    if (!batch.scores.empty()) line += " score " + std::to_string(batch.scores[i]);
    lines[name] = line;
  }
  return lines;
}

}  // namespace tfra::test
