#include "keys.h"

#include "batch.h"

namespace tfra {

Words::Words(const KeyBatch& keys)
    : size_(keys.size),
      words_(reinterpret_cast<const uint64_t*>(keys.ints)),
      strings_(keys.strings) {
  if (keys.type != KeyType::kString) return;
  hashes_.reset(new uint64_t[size_]);
  words_ = hashes_.get();
  ForEachPart(size_, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      hashes_[i] = HashBytes(strings_[i].data(), strings_[i].size());
    }
  });
}

}  // namespace tfra
