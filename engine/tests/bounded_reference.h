// What "Bounded tables" in tfra/table.h says, as a program: a table in which all keys are
// candidates.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "table_helpers.h"

namespace tfra::test {

struct Item {
  std::vector<int> row;
  uint64_t score = 0;
  bool operator==(const Item&) const = default;
};
using Items = std::map<std::string, Item>;

inline Items ItemsOf(const TableSpec& spec, const ExportBatch& batch) {
  ContentsMap contents;
  AddBatch(spec, batch, &contents);
  CHECK_EQ(batch.scores.size(), batch.size);
  Items items;
  for (size_t i = 0; i < batch.size; ++i) {
    const std::string name = spec.key_type == KeyType::kString ? std::string(batch.string_keys[i])
                                                               : std::to_string(batch.int_keys[i]);
    items[name] = {contents[name], batch.scores[i]};
  }
  return items;
}

inline std::multiset<uint64_t> ScoresOf(const Items& items) {
  std::multiset<uint64_t> scores;
  for (const auto& [name, item] : items) scores.insert(item.score);
  return scores;
}

inline uint64_t SaturatingSum(uint64_t a, uint64_t b, uint64_t most) {
  return static_cast<uint64_t>(std::min<unsigned __int128>(static_cast<unsigned __int128>(a) + b,
                                                           static_cast<unsigned __int128>(most)));
}

// What one call does to a row: `found` as it is, or none. Returns what it is afterwards; none, if
// the key is left alone.
using Change =
    std::function<std::optional<std::vector<int>>(size_t i, const std::vector<int>* found)>;

class Reference {
 public:
  explicit Reference(const Bound& bound) : bound_(bound) {}

  Items items;    // In the table.
  Items evicted;  // By the last call.
  std::set<std::string> rejected;
  uint64_t evictions = 0, score_too_low = 0;

  void SetEpoch(uint32_t epoch) {
    if (epoch == epoch_) return;
    epoch_ = epoch;
    calls_ = 0;
  }

  void AdvancePast(const std::vector<uint64_t>& scores) {
    for (uint64_t score : scores) {
      if (score < uint64_t{1} << 63) clock_ = std::max(clock_, score);
      if (score >> 32 == epoch_) calls_ = std::max(calls_, static_cast<uint32_t>(score));
    }
  }

  void Write(const TestKeys& keys, const Scores& given, const Change& change) {
    evicted.clear();
    rejected.clear();
    if (given.kind == Scores::kExact) {
      AdvancePast({given.values, given.values + keys.size()});
    } else {
      calls_ = static_cast<uint32_t>(SaturatingSum(calls_, 1, UINT32_MAX));
    }
    std::vector<std::string> missing;
    std::map<std::string, std::vector<size_t>> places;
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::string name = keys.Name(i);
      if (const auto found = items.find(name); found != items.end()) {
        Item& item = found->second;
        if (const auto row = change(i, &item.row)) {
          item = {*row, Score(given, item.score, i, Count(given, i))};
        }
      } else {
        if (places[name].empty()) missing.push_back(name);
        places[name].push_back(i);
      }
    }
    for (const std::string& name : missing) Insert(name, places[name], given, change);
    if (given.kind != Scores::kExact) clock_ += keys.size();
  }

 private:
  static uint64_t Count(const Scores& given, size_t i) {
    return given.kind == Scores::kCounts ? given.values[i] : 1;
  }

  uint64_t Score(const Scores& given, uint64_t before, size_t last, uint64_t count) const {
    const uint64_t high = uint64_t{epoch_} << 32;
    if (given.kind == Scores::kExact) return std::min(given.values[last], kMaxScore);
    switch (bound_.strategy) {
      case EvictStrategy::kLru:
        return clock_ + 1 + last;
      case EvictStrategy::kLfu:
        return SaturatingSum(before, count, kMaxScore);
      case EvictStrategy::kEpochLru:
        return std::min(high + calls_, kMaxScore);
      case EvictStrategy::kEpochLfu:
        return std::min(high + SaturatingSum(before & UINT32_MAX, count, UINT32_MAX), kMaxScore);
      case EvictStrategy::kCustomized:
        return before;
    }
    return 0;
  }

  void Insert(const std::string& name, const std::vector<size_t>& places, const Scores& given,
              const Change& change) {
    std::optional<std::vector<int>> row;
    uint64_t count = 0, would_insert = 0;
    size_t last = 0;
    for (size_t i : places) {
      would_insert += change(i, nullptr).has_value();
      const auto next = change(i, row ? &*row : nullptr);
      if (!next) continue;
      row = next;
      count = SaturatingSum(count, Count(given, i), kMaxScore);
      last = i;
    }
    if (!row) return;
    const uint64_t score = Score(given, 0, last, count);
    if (items.size() == static_cast<size_t>(bound_.max_capacity)) {
      const auto lowest = std::min_element(items.begin(), items.end(), [](auto& a, auto& b) {
        return a.second.score < b.second.score;
      });
      if (score < lowest->second.score) {
        rejected.insert(name);
        score_too_low += would_insert;
        return;
      }
      ++evictions;
      evicted.insert(*lowest);
      items.erase(lowest);
    }
    items[name] = {*row, score};
  }

  const Bound bound_;
  uint64_t clock_ = 0;
  uint32_t epoch_ = 0, calls_ = 0;
};

}  // namespace tfra::test
