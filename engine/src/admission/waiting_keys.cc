#include "admission/waiting_keys.h"

#include <new>

#include "base/hash.h"
#include "index/stripe.h"

namespace tfra {
namespace {

constexpr size_t kMinPlaces = 16;
constexpr uint64_t kRecentSearches = 4096;

}  // namespace

size_t WaitingKeys::HomeOf(uint64_t key_bits) const {
  // The top bits are the same for all keys of a stripe.
  const uint64_t hash = bits_are_hashes_ ? key_bits : MixInt64(key_bits);
  const uint64_t order = seed_ == 0 ? hash << kStripeBits : SeededOrder(hash, seed_);
  return static_cast<size_t>((static_cast<unsigned __int128>(order) * places_.size()) >> 64);
}

size_t WaitingKeys::Find(uint64_t key_bits, std::string_view bytes) {
  size_t place = HomeOf(key_bits);
  uint64_t probes = 1;
  while (places_[place].seen.count != 0 && (places_[place].key_bits != key_bits ||
                                            (bits_are_hashes_ && keys_[place]->view() != bytes))) {
    if (++place == places_.size()) place = 0;
    ++probes;
  }
  probes_ += probes;
  if (recent_searches_ == kRecentSearches) recent_searches_ = recent_probes_ = 0;
  ++recent_searches_;
  recent_probes_ += probes;
  return place;
}

bool WaitingKeys::SearchesAreTooLong() const {
  // Three quarters full, a search for a missing key looks at 8.5 places.
  return recent_probes_ > 12 * recent_searches_ + 1024;
}

uint32_t WaitingKeys::Add(uint64_t key_bits, std::string_view bytes, uint32_t now, uint32_t times) {
  if (size() >= places_.size() * 3 / 4) {
    Resize(std::max<size_t>(kMinPlaces, places_.size() * 3 / 2), seed_);
  }
  if (SearchesAreTooLong()) {
    try {
      Resize(places_.size(), RandomSeed());
    } catch (const std::bad_alloc&) {
      // Searches stay long but correct. Do not try again for the next key.
      recent_searches_ = recent_probes_ = 0;
    }
  }
  const size_t place = Find(key_bits, bytes);
  RowMetadata& seen = places_[place].seen;
  if (seen.count == 0) {
    if (bits_are_hashes_) {
      Blob* key = Blob::Make(bytes);
      if (key == nullptr) throw std::bad_alloc();
      keys_[place] = key;
      key_bytes_ += key->allocated_bytes();
    }
    places_[place].key_bits = key_bits;
    NoteSize(size() + 1);
  }
  seen.time = now;
  seen.count = seen.count > UINT32_MAX - times ? UINT32_MAX : seen.count + times;
  return seen.count;
}

void WaitingKeys::Remove(uint64_t key_bits, std::string_view bytes) {
  if (size() == 0) return;
  const size_t place = Find(key_bits, bytes);
  if (places_[place].seen.count != 0) RemoveAt(place);
}

void WaitingKeys::RemoveAt(size_t place) {
  if (bits_are_hashes_) {
    key_bytes_ -= keys_[place]->allocated_bytes();
    std::free(keys_[place]);
  }
  NoteSize(size() - 1);
  const size_t count = places_.size();
  for (size_t next = place;;) {
    if (++next == count) next = 0;
    if (places_[next].seen.count == 0) break;
    // An entry may move up if its search passes the free place.
    const size_t from_home = (next + count - HomeOf(places_[next].key_bits)) % count;
    if (from_home < (next + count - place) % count) continue;
    places_[place] = places_[next];
    if (bits_are_hashes_) keys_[place] = keys_[next];
    place = next;
  }
  places_[place].seen = RowMetadata{};
  if (bits_are_hashes_) keys_[place] = nullptr;
}

void WaitingKeys::RemoveBefore(uint32_t time) {
  // Removing moves later ones up, also round the end: start behind a free place.
  size_t start = 0;
  while (start < places_.size() && places_[start].seen.count != 0) ++start;
  for (size_t k = 1; k < places_.size(); ++k) {
    const size_t place = (start + k) % places_.size();
    while (places_[place].seen.count != 0 && places_[place].seen.time < time) RemoveAt(place);
  }
}

void WaitingKeys::Clear() {
  for (Blob* key : keys_) std::free(key);
  std::vector<Place>().swap(places_);
  std::vector<Blob*>().swap(keys_);
  key_bytes_ = 0;
  NoteSize(0);
}

void WaitingKeys::CopyFrom(const WaitingKeys& other) {
  Clear();
  places_ = other.places_;
  seed_ = other.seed_;
  keys_.resize(other.keys_.size());
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (other.keys_[i] == nullptr) continue;
    keys_[i] = Blob::Make(other.keys_[i]->view());
    if (keys_[i] == nullptr) throw std::bad_alloc();
  }
  key_bytes_ = other.key_bytes_;
  NoteSize(other.size());
}

void WaitingKeys::Swap(WaitingKeys* other) {
  places_.swap(other->places_);
  keys_.swap(other->keys_);
  std::swap(seed_, other->seed_);
  recent_searches_ = recent_probes_ = 0;
  std::swap(key_bytes_, other->key_bytes_);
  const uint64_t mine = size();
  NoteSize(other->size());
  other->NoteSize(mine);
}

void WaitingKeys::NoteSize(uint64_t size) {
  size_.store(size, std::memory_order_relaxed);
  bytes_.store(places_.capacity() * sizeof(Place) + keys_.capacity() * sizeof(Blob*) + key_bytes_,
               std::memory_order_relaxed);
}

void WaitingKeys::Shrink() {
  if (size() == 0) {
    Clear();
    return;
  }
  const size_t enough = std::max<size_t>(kMinPlaces, size() * 3 / 2);
  if (places_.size() <= 2 * enough) return;
  try {
    Resize(enough, seed_);
  } catch (const std::bad_alloc&) {
    return;  // The keys stay where they are.
  }
  NoteSize(size());
}

void WaitingKeys::Resize(size_t count, uint64_t seed) {
  std::vector<Place> places(count);
  std::vector<Blob*> keys(bits_are_hashes_ ? count : 0);
  seed_ = seed;
  recent_searches_ = recent_probes_ = 0;
  places.swap(places_);
  keys.swap(keys_);
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].seen.count == 0) continue;
    size_t place = HomeOf(places[i].key_bits);
    while (places_[place].seen.count != 0) {
      if (++place == count) place = 0;
    }
    places_[place] = places[i];
    if (bits_are_hashes_) keys_[place] = keys[i];
  }
}

}  // namespace tfra
