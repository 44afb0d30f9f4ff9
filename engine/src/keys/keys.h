// The two kinds of keys, as the index sees them: each key has 64 bits (key_bits), and these have a
// hash.
//
// The bits of an int64 key are the key itself. The bits of a string are a hash of its bytes: two
// strings may have the same bits, so their bytes must be compared too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/hash.h"
#include "tfra/table.h"

namespace tfra {

struct IntKeys {
  static constexpr bool kStrings = false;
  [[gnu::always_inline]] static uint64_t Hash(uint64_t key_bits) { return MixInt64(key_bits); }
};

struct StringKeys {
  static constexpr bool kStrings = true;
  static uint64_t Hash(uint64_t key_bits) { return key_bits; }
};

// A hash for tables that exist only during one call, and whose order has no effect. The seed is
// random and drawn once for the process, so nobody can choose keys that collide.
extern const uint64_t kScrambleSeed;
[[gnu::always_inline]] inline uint64_t Scramble(uint64_t key_bits, uint64_t seed) {
  return FoldMultiply(key_bits ^ seed, std::rotl(seed, 32) | 1);
}

// Checks that positions in the batch fit into 32 bits, with one value to spare.
Status CheckBatchSize(const KeyBatch& keys);

// The keys of one call with their bits. Points to the strings of the KeyBatch it was made from.
class KeyBits {
 public:
  KeyBits() = default;
  // Reads int64 keys from the caller's array at each access. Other threads may write to that array
  // meanwhile: calls that change the table use KeyGroups::Split, which reads each key once.
  explicit KeyBits(const KeyBatch& keys);
  // Allocates memory for n int64 keys, which the caller fills through `bits` before any other use.
  KeyBits(size_t n, uint64_t** bits);

  size_t size() const { return size_; }
  uint64_t operator[](size_t i) const { return bits_[i]; }
  const uint64_t* data() const { return bits_; }
  // The bytes of key i; empty for int64 keys.
  std::string_view bytes(size_t i) const {
    return strings_ == nullptr ? std::string_view() : strings_[i];
  }

  // The keys [begin, end), with positions from 0 on. Must not outlive this object.
  KeyBits Part(size_t begin, size_t end) const {
    return KeyBits(end - begin, bits_ + begin, strings_ == nullptr ? nullptr : strings_ + begin);
  }

  bool Equal(size_t i, size_t j) const {
    return bits_[i] == bits_[j] && (strings_ == nullptr || strings_[i] == strings_[j]);
  }

 private:
  KeyBits(size_t size, const uint64_t* bits, const std::string_view* strings)
      : size_(size), bits_(bits), strings_(strings) {}

  size_t size_ = 0;
  const uint64_t* bits_ = nullptr;
  const std::string_view* strings_ = nullptr;
  std::unique_ptr<uint64_t[]> own_;
};

}  // namespace tfra
