// Which keys may enter a table: what is known of keys that are not in it.
//
// All state is by stripe of the table, and guarded by the stripes' mutexes.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "index/stripe.h"
#include "tfra/table.h"

namespace tfra {

Status ValidateAdmission(const AdmissionSpec& spec);

// The counters of a Bloom filter: how many, of how many bits, and how many of them each key has.
struct FilterShape {
  uint64_t counters;  // In each stripe.
  uint32_t bits;      // 4, 8 or 16.
  uint32_t hashes;

  static FilterShape For(const AdmissionSpec& spec);

  uint64_t StripeBytes() const { return counters * bits / 8; }
};

class Admission {
 public:
  // Null for AdmissionKind::kAll. REQUIRES: the spec is valid.
  static std::unique_ptr<Admission> Create(const AdmissionSpec& spec, bool bits_are_hashes);
  virtual ~Admission() = default;

  // Notes that a key which is not in the table was seen, and returns whether it may enter. seen:
  // how often it was seen, as far as that is known. Throws std::bad_alloc. REQUIRES: the stripe's
  // mutex.
  virtual bool Admit(uint32_t stripe, uint64_t key_bits, std::string_view bytes, uint32_t now,
                     uint32_t* seen) = 0;
  // A key has entered, whether Admit was asked or not: forgets the key. REQUIRES: the stripe's
  // mutex.
  virtual void Forget(uint32_t stripe, uint64_t key_bits, std::string_view bytes);
  // Forgets keys last seen before a time. REQUIRES: the stripe's mutex.
  virtual void Expire(uint32_t stripe, uint32_t before);

  // Any thread.
  virtual uint64_t waiting() const { return 0; }
  virtual uint64_t bytes() const = 0;

  // The rest REQUIRES all mutexes.
  virtual std::unique_ptr<Admission> Clone() const = 0;
  // Frees memory that is not needed.
  virtual void Shrink();
  virtual void Clear() = 0;
  virtual void Save(AdmissionState* state) const = 0;
  // Fails unless a saved state, of one table or of several, is one of this kind of admission.
  virtual Status Check(const AdmissionState& state) const = 0;
  // Replaces what is known by a saved state. If there are as many filters as `partitions`, only
  // that of `partition` is used. Throws std::bad_alloc. REQUIRES: Check.
  virtual void Load(const AdmissionState& state, uint32_t partition, uint32_t partitions) = 0;
};

}  // namespace tfra
