// What the engine does around fork(). Nothing includes this file: it registers itself with the C
// library when the engine is loaded.
//
// The child of a fork has one thread and a copy of the memory at that moment. If another thread
// held a lock then, the lock stays locked in the child for ever, and the data that the thread was
// changing stay half changed. So the thread that forks first takes the locks below, which waits
// until no thread is in the middle of a change. The parent and the child then release them. In the
// child every table is consistent: if another thread was in the middle of a call, each row is as
// before that call or as after it.
//
// The lock order. A thread that holds a lock takes only locks that come later in this list:
//
//   1. the list of trained tables      (trained_table.cc)
//   2. TrainedTable::changing_          in ascending order of handles
//   3. TrainedTable::binding_
//   4. the list of tables              (table_state.cc)
//   5. RowTiers::StripeTier::demoting   in ascending order of stripes
//   6. Stripe::mutex                    in ascending order of stripes
//   7. RowTiers::covering_
//   8. RowArena::mutex_
//   9. RowRecords::reserving_
//  10. RowRecords::mutex_
//  11. CountMemory::mutex_
//  12. the mutex of retired memory     (read_guard.cc)
//  13. PagePool::mutex_
//  14. the mutex of the thread pool    (thread_pool.cc)
//
// No thread holds locks of the levels 5 to 9 of two tables. Level 10 is different: a thread that
// holds a stripe of one table may free retired records of another. Therefore fork takes the locks
// level by level, and not table by table. Mutexes that live in the memory of one call come last of
// all, and a forked child never sees them again.
//
// fork takes the levels 1 to 6, 8, 12 and 13. The others need not be taken:
//   - 7, 9 and 11 are held only by threads that hold a lock of level 5 or 6.
//   - 10: a child never takes it, since it cannot use the file of its parent (row_records.cc).
//   - 14: the child has a new thread pool.
//
// A new mutex of the engine gets a place in this list. Variables inside of functions whose
// initialization runs code (static, std::call_once) hold a lock meanwhile: this file initializes
// them when the library is loaded.
//
// If a call holds all stripes of a table for long, as Clear and Shrink do, fork waits for it.
// Memory that other threads had allocated for their calls, or were about to free, leaks in the
// child. Its counters, such as TableStats::string_bytes, lack what these calls would have added at
// their end.

#include <pthread.h>

#include "kernels/update_kernels.h"
#include "memory/pages.h"
#include "memory/read_guard.h"
#include "state/table_state.h"
#include "storage/row_file.h"
#include "tfra/thread_pool.h"
#include "tfra/trained_table.h"

namespace tfra {
namespace {

void Prepare() {
  TrainedTable::LockAllForFork();
  TableState::LockAllForFork();
  LockRetired();
  LockPagePool();
}

void Unlock(bool in_child) {
  UnlockPagePool();
  UnlockRetired();
  TableState::UnlockAllAfterFork();
  TrainedTable::UnlockAllAfterFork(in_child);
}

void GoOnInParent() { Unlock(false); }

void GoOnInChild() {
  ForgetOtherThreads();
  StartThreadPool();
  CountFork();
  Unlock(true);
}

// Runs when the library is loaded. Calls everything whose first call initializes something.
[[gnu::constructor]] void Load() {
  Prepare();
  GoOnInParent();
  StartThreadPool();
  (void)KernelsFor(BestIsa());
  // Fails only if memory runs out. Forks then behave as if this file did not exist.
  (void)pthread_atfork(Prepare, GoOnInParent, GoOnInChild);
}

}  // namespace
}  // namespace tfra
