// What calls do to the keys of a table, their metadata, the keys that wait to enter, and counters:
// the contract in bits of std::map.
#pragma once

#include <set>

#include "whole_rows.h"

namespace tfra::test {

struct KeyModel {
  static constexpr size_t kDim = 2;

  struct Call {
    std::vector<int64_t> numbers;
    std::vector<int> elements;  // (n, kDim)
    NewKeys new_keys = NewKeys::kInsert;
    std::vector<size_t> places = {};  // Of a part of another call: where its keys are in that.
  };

  uint32_t min_count;  // Of admission; 0 for none.
  uint32_t now = 1000;
  MetadataMap rows = {}, waiting = {};
  TableStats counters = {};

  // What a call does to keys, metadata and counters. updates(i), inserts(i): what it does with a
  // key that is there, and with one that is not. dropped: how keys that may not enter are counted.
  // Returns what of the call gets through.
  template <typename Updates, typename Inserts>
  Call Write(const Call& call, bool distinct, const RowMetadata* metadata,
             uint64_t TableStats::* dropped, Updates&& updates, Inserts&& inserts) {
    std::set<int64_t> met, refused;
    for (size_t i = 0; i < call.numbers.size(); ++i) {
      const int64_t key = call.numbers[i];
      if (!met.insert(key).second && distinct) continue;
      auto row = rows.find(key);
      if (row == rows.end()) {
        if (!inserts(i)) {
          ++counters.exists_mismatch;
          continue;
        }
        uint32_t seen = 0;
        if (refused.contains(key) || !Enters(key, call.new_keys, &seen)) {
          refused.insert(key);
          ++(counters.*dropped);
          continue;
        }
        ++counters.inserts;
        // Accumulate makes rows ready for an update that follows, which counts.
        const bool ready =
            dropped == &TableStats::exists_mismatch && call.new_keys == NewKeys::kAdmit;
        row = rows.emplace(key, std::pair(now, ready ? seen - 2 : seen - 1)).first;
      } else if (!updates(i)) {
        ++counters.exists_mismatch;
        continue;
      } else {
        ++counters.updates;
      }
      row->second = {now, row->second.second + 1};
      if (metadata != nullptr) row->second = {metadata[i].time, metadata[i].count};
    }
    Call through;
    for (size_t i = 0; i < call.numbers.size(); ++i) {
      if (refused.contains(call.numbers[i])) continue;
      through.numbers.push_back(call.numbers[i]);
      for (size_t j = 0; j < kDim; ++j) through.elements.push_back(call.elements[i * kDim + j]);
      through.places.push_back(i);
    }
    return through;
  }
  Call Write(const Call& call, bool distinct, const RowMetadata* metadata = nullptr) {
    const auto always = [](size_t) { return true; };
    return Write(call, distinct, metadata, &TableStats::not_admitted, always, always);
  }

  // seen: how often the key was seen, if it enters.
  bool Enters(int64_t key, NewKeys new_keys, uint32_t* seen) {
    *seen = 1;
    if (new_keys == NewKeys::kDrop) return false;
    if (new_keys == NewKeys::kAdmit && min_count > 0) {
      auto& sights = waiting[key];
      sights = {now, sights.second + 1};
      *seen = sights.second;
      if (*seen < min_count) return false;
    }
    waiting.erase(key);
    return true;
  }
};

}  // namespace tfra::test
