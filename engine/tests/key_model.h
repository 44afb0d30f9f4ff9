// A model of the keys of a table, their metadata, the waiting keys and the counters, made of
// std::map.
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
    // If this call is a part of another call: the positions of its keys there.
    std::vector<size_t> places = {};
  };

  uint32_t min_count;  // The min_count of admission, or 0 without admission.
  uint32_t now = 1000;
  MetadataMap rows = {}, waiting = {};
  TableStats counters = {};

  // Applies a call to keys, metadata and counters. updates(i): whether the call changes key i if it
  // is in the table. inserts(i): whether the call inserts key i if it is missing. dropped: the
  // counter of keys that may not enter. Returns the part of the call that had an effect.
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
        // With kAdmit, Accumulate does not count the insertion, because an update follows that is
        // counted.
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
