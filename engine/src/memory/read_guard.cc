#include "memory/read_guard.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>

namespace tfra {
namespace {

constexpr uint64_t kIdle = 0;

struct alignas(64) Slot {
  std::atomic<uint64_t> epoch{kIdle};  // The epoch when its thread entered a guard, or kIdle.
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
  std::atomic<Slot*> slots{nullptr};  // Only grows. When a thread ends, another takes its slot.
  std::mutex mutex;
  std::deque<Bag> bags;            // Guarded by mutex, oldest first.
  std::atomic<size_t> waiting{0};  // The number of bags.
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

void LockRetired() { TheDomain().mutex.lock(); }

void UnlockRetired() { TheDomain().mutex.unlock(); }

void ForgetOtherThreads() {
  Slot* const own = ThisThread().slot;
  for (Slot* slot = TheDomain().slots.load(); slot != nullptr; slot = slot->next) {
    if (slot == own) continue;
    slot->epoch.store(kIdle);
    slot->taken.store(false);
  }
}

ReadGuard::ReadGuard() {
  ThreadState& thread = ThisThread();
  // This store and the scan in OldestActiveEpoch are sequentially consistent. So either the scan
  // sees this store, or later loads of this thread see that the memory was unlinked.
  if (thread.depth++ == 0) thread.slot->epoch.store(TheDomain().epoch.load());
}

ReadGuard::~ReadGuard() {
  ThreadState& thread = ThisThread();
  if (--thread.depth > 0) return;
  thread.slot->epoch.store(kIdle);
  // Perhaps only this guard prevented memory from being freed: try again.
  if (TheDomain().waiting.load(std::memory_order_relaxed) > 0) Retire({});
}

void Retire(std::vector<Retired> garbage) {
  Domain& domain = TheDomain();
  std::deque<Bag> safe;
  {
    std::lock_guard lock(domain.mutex);
    if (!garbage.empty()) {
      domain.bags.push_back({0, std::move(garbage)});
      domain.bags.back().epoch = domain.epoch.fetch_add(1);
    }
    const uint64_t oldest = OldestActiveEpoch();
    while (!domain.bags.empty() && domain.bags.front().epoch < oldest) {
      safe.push_back(std::move(domain.bags.front()));
      domain.bags.pop_front();
    }
    domain.waiting.store(domain.bags.size(), std::memory_order_relaxed);
  }
  for (const Bag& bag : safe) {
    for (const Retired& item : bag.garbage) item.free(item.pointer, item.bytes);
  }
}

}  // namespace tfra
