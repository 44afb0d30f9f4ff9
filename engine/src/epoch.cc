#include "epoch.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <iterator>
#include <mutex>

namespace tfra {
namespace {

constexpr uint64_t kIdle = 0;

struct alignas(64) Slot {
  std::atomic<uint64_t> epoch{kIdle};  // The epoch its thread entered in, or kIdle.
  std::atomic<bool> taken{true};
  Slot* next = nullptr;  // Constant once the slot is in the list.
};

struct Bag {
  uint64_t epoch;
  std::vector<Retired> garbage;
};

// Never destroyed: threads may outlive static destructors.
struct Domain {
  std::atomic<uint64_t> epoch{1};
  std::atomic<Slot*> slots{nullptr};  // Grows only; a slot left by its thread is taken by another.
  std::mutex mutex;
  std::deque<Bag> bags;  // Guarded by mutex, oldest first.
};

Domain& TheDomain() {
  static Domain* domain = new Domain;
  return *domain;
}

Slot* TakeSlot() {
  Domain& domain = TheDomain();
  for (Slot* slot = domain.slots.load(); slot != nullptr; slot = slot->next) {
    bool free = false;
    if (slot->taken.compare_exchange_strong(free, true)) return slot;
  }
  Slot* slot = new Slot;
  slot->next = domain.slots.load();
  while (!domain.slots.compare_exchange_weak(slot->next, slot)) {
  }
  return slot;
}

struct ThreadState {
  Slot* slot = TakeSlot();
  int depth = 0;

  ~ThreadState() { slot->taken.store(false); }
};

ThreadState& ThisThread() {
  thread_local ThreadState state;
  return state;
}

uint64_t OldestActiveEpoch() {
  uint64_t oldest = UINT64_MAX;
  for (Slot* slot = TheDomain().slots.load(); slot != nullptr; slot = slot->next) {
    const uint64_t epoch = slot->epoch.load();
    if (epoch != kIdle && epoch < oldest) oldest = epoch;
  }
  return oldest;
}

}  // namespace

EpochGuard::EpochGuard() {
  ThreadState& thread = ThisThread();
  // Sequentially consistent, as is the scan in OldestActiveEpoch: either the scan sees this store,
  // or the loads that follow see what was unlinked before the scan.
  if (thread.depth++ == 0) thread.slot->epoch.store(TheDomain().epoch.load());
}

EpochGuard::~EpochGuard() {
  ThreadState& thread = ThisThread();
  if (--thread.depth == 0) thread.slot->epoch.store(kIdle, std::memory_order_release);
}

void Retire(std::vector<Retired> garbage) {
  Domain& domain = TheDomain();
  std::vector<Bag> safe;
  {
    std::lock_guard lock(domain.mutex);
    if (!garbage.empty()) domain.bags.push_back({domain.epoch.fetch_add(1), std::move(garbage)});
    const uint64_t oldest = OldestActiveEpoch();
    auto end = domain.bags.begin();
    while (end != domain.bags.end() && end->epoch < oldest) ++end;
    safe.assign(std::make_move_iterator(domain.bags.begin()), std::make_move_iterator(end));
    domain.bags.erase(domain.bags.begin(), end);
  }
  for (const Bag& bag : safe) {
    for (const Retired& item : bag.garbage) item.free(item.pointer, item.bytes);
  }
}

}  // namespace tfra
