#include "keys/keys.h"

#include <string>

#include "base/batch.h"

namespace tfra {

const uint64_t kScrambleSeed = RandomSeed();

KeyBits::KeyBits(const KeyBatch& keys)
    : size_(keys.size),
      bits_(reinterpret_cast<const uint64_t*>(keys.ints)),
      strings_(keys.strings) {
  if (keys.type != KeyType::kString) return;
  own_.reset(new uint64_t[size_]);
  bits_ = own_.get();
  ForEachPart(size_, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      own_[i] = HashBytes(strings_[i].data(), strings_[i].size());
    }
  });
}

KeyBits::KeyBits(size_t n, uint64_t** bits) : size_(n), own_(new uint64_t[n]) {
  bits_ = *bits = own_.get();
}

Status CheckBatchSize(const KeyBatch& keys) {
  constexpr size_t kMaxBatch = UINT32_MAX - 1;
  if (keys.size <= kMaxBatch) return Status::Ok();
  return Status::InvalidArgument("expected at most " + std::to_string(kMaxBatch) +
                                 " keys in a call, received " + std::to_string(keys.size));
}

}  // namespace tfra
