#include "fork.h"

#include <pthread.h>

#include <mutex>
#include <unordered_set>

#include "table_base.h"
#include "update_kernels.h"

namespace tfra {
namespace {

struct TableList {
  std::mutex mutex;
  std::unordered_set<TableBase*> tables;  // Guarded by mutex.
};

// Never destroyed: tables may be destroyed while the process ends.
TableList& TheTables() {
  static TableList* list = new TableList;
  return *list;
}

using Level = TableBase::ForkLevel;

void Prepare() {
  TheTables().mutex.lock();
  for (const Level level : {Level::kDemoting, Level::kShards, Level::kArena}) {
    for (TableBase* table : TheTables().tables) table->LockForFork(level);
  }
  LockRetired();
  LockPagePool();
}

void Unlock() {
  UnlockPagePool();
  UnlockRetired();
  for (const Level level : {Level::kArena, Level::kShards, Level::kDemoting}) {
    for (TableBase* table : TheTables().tables) table->UnlockForFork(level);
  }
  TheTables().mutex.unlock();
}

void StartChild() {
  ForgetOtherThreads();
  StartThreadPool();
  CountFork();
  Unlock();
}

// When the library is loaded.
[[gnu::constructor]] void Load() {
  (void)TheTables();
  LockRetired();
  UnlockRetired();
  LockPagePool();
  UnlockPagePool();
  StartThreadPool();
  (void)KernelsFor(BestIsa());
  // Fails only without memory for it. Then forks are as they would be without this file.
  (void)pthread_atfork(Prepare, Unlock, StartChild);
}

}  // namespace

void EnterTable(TableBase* table) {
  TableList& list = TheTables();
  std::lock_guard lock(list.mutex);
  list.tables.insert(table);
}

void LeaveTable(TableBase* table) noexcept {
  TableList& list = TheTables();
  std::lock_guard lock(list.mutex);
  list.tables.erase(table);
}

}  // namespace tfra
