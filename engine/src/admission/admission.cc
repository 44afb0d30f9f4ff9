#include "admission/admission.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "admission/waiting_keys.h"
#include "keys/keys.h"

namespace tfra {
namespace {

Status OtherRule(const char* expected) {
  return Status::InvalidArgument(std::string("expected the state of admission by ") + expected +
                                 ", received that of another rule, or one that an earlier "
                                 "version made of string keys");
}

// What the states of filters begin with, to tell them apart.
struct StateHeader {
  uint32_t kind;
  uint32_t shape;
  uint64_t bytes;  // That follow.

  bool operator==(const StateHeader&) const = default;
};

void SaveState(const StateHeader& header, AdmissionState* state) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&header);
  state->filter.insert(state->filter.end(), bytes, bytes + sizeof(header));
}

// Whether a state is a sequence of filters of the rule that `header` describes.
bool HasFiltersOf(const StateHeader& header, const AdmissionState& state) {
  const size_t one = sizeof(header) + header.bytes;
  if (!state.seen.empty() || state.filter.size() % one != 0) return false;
  for (size_t i = 0; i < state.filter.size(); i += one) {
    StateHeader there;
    std::memcpy(&there, state.filter.data() + i, sizeof(there));
    if (!(there == header)) return false;
  }
  return true;
}

// Calls load(bytes) for saved filters: only for that of `partition` if there are as many filters as
// partitions, otherwise for all. REQUIRES: HasFiltersOf.
template <typename LoadOne>
void LoadFilters(const StateHeader& header, const AdmissionState& state, uint32_t partition,
                 uint32_t partitions, LoadOne&& load) {
  const size_t one = sizeof(header) + header.bytes;
  const size_t count = state.filter.size() / one;
  const bool own = partitions > 1 && count == partitions;
  for (size_t i = own ? partition : 0; i < (own ? partition + 1 : count); ++i) {
    load(state.filter.data() + i * one + sizeof(header));
  }
}

// Exact counts.
class MinCountAdmission final : public Admission {
 public:
  MinCountAdmission(uint32_t min_count, bool bits_are_hashes)
      : min_count_(min_count),
        bits_are_hashes_(bits_are_hashes),
        waiting_(MakeWaiting(bits_are_hashes)) {}

  bool Admit(uint32_t stripe, uint64_t key_bits, std::string_view bytes, uint32_t now,
             uint32_t* seen) override {
    *seen = 1;
    if (min_count_ == 1) return true;
    WaitingKeys& keys = *waiting_[stripe];
    *seen = keys.Add(key_bits, bytes, now, 1);
    // It waits until it has entered: a full table may reject it.
    return *seen >= min_count_;
  }

  void Forget(uint32_t stripe, uint64_t key_bits, std::string_view bytes) override {
    waiting_[stripe]->Remove(key_bits, bytes);
  }
  void Expire(uint32_t stripe, uint32_t before) override {
    waiting_[stripe]->RemoveBefore(before);
    waiting_[stripe]->Shrink();
  }
  void Shrink() override {
    for (const auto& keys : waiting_) keys->Shrink();
  }

  uint64_t waiting() const override {
    uint64_t size = 0;
    for (const auto& keys : waiting_) size += keys->size();
    return size;
  }
  uint64_t bytes() const override {
    uint64_t bytes = 0;
    for (const auto& keys : waiting_) bytes += keys->bytes();
    return bytes;
  }

  std::unique_ptr<Admission> Clone() const override {
    auto copy = std::make_unique<MinCountAdmission>(min_count_, bits_are_hashes_);
    for (uint32_t s = 0; s < kStripes; ++s) copy->waiting_[s]->CopyFrom(*waiting_[s]);
    return copy;
  }

  void Clear() override {
    for (auto& keys : waiting_) keys->Clear();
  }

  void Save(AdmissionState* state) const override {
    for (const auto& keys : waiting_) {
      keys->ForEach([&](uint64_t key_bits, std::string_view bytes, const RowMetadata& seen) {
        if (bits_are_hashes_) {
          state->string_keys.Append(bytes);
        } else {
          state->int_keys.push_back(static_cast<int64_t>(key_bits));
        }
        state->seen.push_back(seen);
      });
    }
  }

  Status Check(const AdmissionState& state) const override {
    if (!state.filter.empty()) return OtherRule("exact counts");
    const size_t n = bits_are_hashes_ ? state.string_keys.size() : state.int_keys.size();
    if (n == state.seen.size()) return Status::Ok();
    return Status::InvalidArgument("expected a count for each of " + std::to_string(n) +
                                   " keys that wait to enter, received " +
                                   std::to_string(state.seen.size()));
  }

  void Load(const AdmissionState& state, uint32_t, uint32_t) override {
    const size_t n = state.seen.size();
    Waiting loaded = MakeWaiting(bits_are_hashes_);
    for (size_t i = 0; i < n; ++i) {
      const std::string_view bytes = bits_are_hashes_ ? state.string_keys[i] : std::string_view();
      const uint64_t key_bits = bits_are_hashes_ ? HashBytes(bytes.data(), bytes.size())
                                                 : static_cast<uint64_t>(state.int_keys[i]);
      const uint32_t stripe = StripeOf(bits_are_hashes_ ? key_bits : MixInt64(key_bits));
      const RowMetadata& seen = state.seen[i];
      if (seen.count > 0) loaded[stripe]->Add(key_bits, bytes, seen.time, seen.count);
    }
    for (uint32_t s = 0; s < kStripes; ++s) waiting_[s]->Swap(loaded[s].get());
  }

 private:
  using Waiting = std::array<std::unique_ptr<WaitingKeys>, kStripes>;

  static Waiting MakeWaiting(bool bits_are_hashes) {
    Waiting waiting;
    for (auto& keys : waiting) keys = std::make_unique<WaitingKeys>(bits_are_hashes);
    return waiting;
  }

  const uint32_t min_count_;
  const bool bits_are_hashes_;
  const Waiting waiting_;
};

// Counts in a counting Bloom filter: a key's count is the smallest of its counters, and only those
// that have the smallest value are advanced, so that others are disturbed as little as can be.
class BloomAdmission final : public Admission {
 public:
  BloomAdmission(const AdmissionSpec& spec, bool bits_are_hashes)
      : min_count_(spec.min_count),
        bits_are_hashes_(bits_are_hashes),
        shape_(FilterShape::For(spec)) {
    for (auto& filter : filters_) filter.resize(shape_.StripeBytes());
  }

  bool Admit(uint32_t stripe, uint64_t key_bits, std::string_view, uint32_t,
             uint32_t* seen) override {
    const uint64_t hash = bits_are_hashes_ ? key_bits : MixInt64(key_bits);
    std::byte* filter = filters_[stripe].data();
    uint64_t places[kMaxHashes];
    // Two hashes make any number of them (Kirsch and Mitzenmacher).
    uint64_t place_hash = MixInt64(hash ^ 0xA5A3564E5B3A7C19u);
    const uint64_t step = MixInt64(hash + 0x9E3779B97F4A7C15u) | 1;
    uint32_t count = UINT32_MAX;
    for (uint32_t k = 0; k < shape_.hashes; ++k, place_hash += step) {
      places[k] = static_cast<uint64_t>(
          (static_cast<unsigned __int128>(place_hash) * shape_.counters) >> 64);
      count = std::min(count, Get(filter, places[k]));
    }
    *seen = count + 1;
    // The counters stay as they are then: they are others' too.
    if (*seen >= min_count_) return true;
    for (uint32_t k = 0; k < shape_.hashes; ++k) {
      if (Get(filter, places[k]) == count) Set(filter, places[k], count + 1);
    }
    return false;
  }

  uint64_t bytes() const override { return shape_.StripeBytes() * kStripes; }

  std::unique_ptr<Admission> Clone() const override {
    return std::make_unique<BloomAdmission>(*this);
  }

  void Clear() override {
    for (auto& filter : filters_) std::fill(filter.begin(), filter.end(), std::byte{0});
  }

  void Save(AdmissionState* state) const override {
    state->filter.reserve(state->filter.size() + sizeof(StateHeader) + bytes());
    SaveState(header(), state);
    for (const auto& filter : filters_) {
      state->filter.insert(state->filter.end(), filter.begin(), filter.end());
    }
  }

  Status Check(const AdmissionState& state) const override {
    if (HasFiltersOf(header(), state)) return Status::Ok();
    return OtherRule(("a Bloom filter of " + std::to_string(bytes()) + " bytes").c_str());
  }

  void Load(const AdmissionState& state, uint32_t partition, uint32_t partitions) override {
    Clear();
    LoadFilters(header(), state, partition, partitions, [&](const std::byte* from) {
      for (auto& filter : filters_) {
        // Of tables that had different keys: the larger counter serves the keys of both.
        for (uint64_t i = 0; i < shape_.counters; ++i) {
          Set(filter.data(), i, std::max(Get(filter.data(), i), Get(from, i)));
        }
        from += filter.size();
      }
    });
  }

  static constexpr uint32_t kMaxHashes = 64;

 private:
  StateHeader header() const {
    // The hash of string keys is not that of the first versions, whose filters had 0 here.
    const uint32_t hash = bits_are_hashes_ ? 1 : 0;
    return {static_cast<uint32_t>(AdmissionKind::kBloomFilter),
            hash << 24 | shape_.bits << 16 | shape_.hashes, bytes()};
  }

  uint32_t Get(const std::byte* filter, uint64_t i) const {
    if (shape_.bits == 4) return std::to_integer<uint32_t>(filter[i / 2] >> (i % 2 * 4)) & 15;
    if (shape_.bits == 8) return std::to_integer<uint32_t>(filter[i]);
    uint16_t count;
    std::memcpy(&count, filter + 2 * i, sizeof(count));
    return count;
  }

  void Set(std::byte* filter, uint64_t i, uint32_t count) const {
    if (shape_.bits == 4) {
      const uint32_t shift = i % 2 * 4;
      filter[i / 2] &= ~(std::byte{15} << shift);
      filter[i / 2] |= static_cast<std::byte>(count << shift);
    } else if (shape_.bits == 8) {
      filter[i] = static_cast<std::byte>(count);
    } else {
      const auto narrow = static_cast<uint16_t>(count);
      std::memcpy(filter + 2 * i, &narrow, sizeof(narrow));
    }
  }

  const uint32_t min_count_;
  const bool bits_are_hashes_;
  const FilterShape shape_;
  std::array<std::vector<std::byte>, kStripes> filters_;
};

// A draw of its own for each time a key is seen. The draws of a stripe are numbered, so that the
// results depend on the order of the calls, not on threads.
class RandomAdmission final : public Admission {
 public:
  RandomAdmission(const AdmissionSpec& spec, bool bits_are_hashes)
      : probability_(spec.probability), seed_(spec.seed), bits_are_hashes_(bits_are_hashes) {}

  bool Admit(uint32_t stripe, uint64_t key_bits, std::string_view, uint32_t,
             uint32_t* seen) override {
    *seen = 1;
    const uint64_t hash = bits_are_hashes_ ? key_bits : MixInt64(key_bits);
    const uint64_t draw = MixInt64(seed_ ^ MixInt64(++draws_[stripe]));
    return static_cast<double>(MixInt64(hash ^ draw) >> 11) * 0x1p-53 < probability_;
  }

  uint64_t bytes() const override { return sizeof(draws_); }
  std::unique_ptr<Admission> Clone() const override {
    return std::make_unique<RandomAdmission>(*this);
  }
  void Clear() override { draws_.fill(0); }

  void Save(AdmissionState* state) const override {
    SaveState(header(), state);
    const auto* bytes = reinterpret_cast<const std::byte*>(draws_.data());
    state->filter.insert(state->filter.end(), bytes, bytes + sizeof(draws_));
  }

  Status Check(const AdmissionState& state) const override {
    return HasFiltersOf(header(), state) ? Status::Ok() : OtherRule("chance");
  }

  void Load(const AdmissionState& state, uint32_t partition, uint32_t partitions) override {
    draws_.fill(0);
    LoadFilters(header(), state, partition, partitions, [&](const std::byte* from) {
      std::array<uint64_t, kStripes> draws;
      std::memcpy(draws.data(), from, sizeof(draws));
      for (uint32_t s = 0; s < kStripes; ++s) draws_[s] = std::max(draws_[s], draws[s]);
    });
  }

 private:
  StateHeader header() const {
    return {static_cast<uint32_t>(AdmissionKind::kProbability), 0, sizeof(draws_)};
  }

  const double probability_;
  const uint64_t seed_;
  const bool bits_are_hashes_;
  std::array<uint64_t, kStripes> draws_{};
};

}  // namespace

void Admission::Forget(uint32_t, uint64_t, std::string_view) {}
void Admission::Expire(uint32_t, uint32_t) {}
void Admission::Shrink() {}

FilterShape FilterShape::For(const AdmissionSpec& spec) {
  FilterShape shape;
  const double ln2 = std::log(2.0);
  const double per_key = -std::log(spec.filter_error) / (ln2 * ln2);
  // A stripe may get a few keys more than its share.
  const double keys = static_cast<double>(spec.filter_keys) / kStripes;
  shape.counters = static_cast<uint64_t>(std::ceil((keys + 4 * std::sqrt(keys)) * per_key));
  shape.counters = (shape.counters + 15) / 16 * 16;
  shape.bits = spec.min_count <= 15 ? 4 : spec.min_count <= 255 ? 8 : 16;
  shape.hashes = std::clamp<uint32_t>(static_cast<uint32_t>(std::lround(per_key * ln2)), 1,
                                      BloomAdmission::kMaxHashes);
  return shape;
}

Status ValidateAdmission(const AdmissionSpec& spec) {
  const bool counts =
      spec.kind == AdmissionKind::kMinCount || spec.kind == AdmissionKind::kBloomFilter;
  if (counts && spec.min_count < 1) {
    return Status::InvalidArgument("expected a count of 1 or more for admission, received 0");
  }
  if (spec.kind == AdmissionKind::kBloomFilter) {
    if (spec.min_count > kMaxFilterCount) {
      return Status::InvalidArgument("a Bloom filter counts to at most 65535, received " +
                                     std::to_string(spec.min_count));
    }
    if (spec.filter_keys < 1 || spec.filter_keys > kMaxFilterKeys) {
      return Status::InvalidArgument("expected a Bloom filter for 1 to 2**40 keys, received " +
                                     std::to_string(spec.filter_keys));
    }
    if (!(spec.filter_error >= 1e-15 && spec.filter_error < 1.0)) {
      return Status::InvalidArgument(
          "expected an error rate between 1e-15 and 1 for a Bloom filter, received " +
          std::to_string(spec.filter_error));
    }
  }
  if (spec.kind == AdmissionKind::kProbability &&
      !(spec.probability >= 0.0 && spec.probability <= 1.0)) {
    return Status::InvalidArgument("expected a probability between 0 and 1, received " +
                                   std::to_string(spec.probability));
  }
  return Status::Ok();
}

std::unique_ptr<Admission> Admission::Create(const AdmissionSpec& spec, bool bits_are_hashes) {
  switch (spec.kind) {
    case AdmissionKind::kAll:
      return nullptr;
    case AdmissionKind::kMinCount:
      return std::make_unique<MinCountAdmission>(spec.min_count, bits_are_hashes);
    case AdmissionKind::kBloomFilter:
      return std::make_unique<BloomAdmission>(spec, bits_are_hashes);
    case AdmissionKind::kProbability:
      return std::make_unique<RandomAdmission>(spec, bits_are_hashes);
  }
  return nullptr;
}

}  // namespace tfra
