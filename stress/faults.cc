// Lets calls of the engine to the operating system and to the allocator fail. `faults.py` builds
// this as a library that is loaded before all others (LD_PRELOAD), so that its functions take the
// place of those of libc and libstdc++. Only calls from the code of the engine fail; Python, NumPy
// and TensorFlow get what they ask for.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

extern "C" void* __libc_malloc(size_t bytes);
extern "C" void* __libc_memalign(size_t alignment, size_t bytes);

namespace {

// The engine does not promise to survive when even small allocations by operator new fail.
constexpr size_t kSmall = 1024;

// The kinds of faults, as `faults.py` numbers them.
enum Kind : int { kNone, kAllocation, kRead, kWrite, kGrowth };

std::atomic<int> kind{kNone};
std::atomic<int64_t> successes_left{0}, failures_left{0}, fired{0};
std::atomic<uintptr_t> engine_begin{0}, engine_end{0};

int FindEngine(dl_phdr_info* library, size_t, void*) {
  if (std::strstr(library->dlpi_name, "libtfra_engine.so") == nullptr) return 0;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const auto& part = library->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || !(part.p_flags & PF_X)) continue;
    engine_begin = library->dlpi_addr + part.p_vaddr;
    engine_end = library->dlpi_addr + part.p_vaddr + part.p_memsz;
  }
  return 1;
}

bool Fails(Kind asked, const void* caller) {
  if (kind.load(std::memory_order_relaxed) != asked) return false;
  const auto address = reinterpret_cast<uintptr_t>(caller);
  if (address < engine_begin || address >= engine_end) return false;
  if (successes_left.fetch_sub(1) > 0) return false;
  if (failures_left.fetch_sub(1) <= 0) return false;
  fired.fetch_add(1);
  return true;
}

}  // namespace

extern "C" {

// From now on, `failures` calls of this kind fail, after `successes` more of them. Returns whether
// the engine was found in this process.
__attribute__((visibility("default"))) int stress_set_fault(int new_kind, int64_t successes,
                                                            int64_t failures) {
  kind = kNone;
  if (engine_begin == 0) dl_iterate_phdr(FindEngine, nullptr);
  successes_left = successes;
  failures_left = failures;
  kind = new_kind;
  return engine_begin != 0;
}

// How many calls have failed so far.
__attribute__((visibility("default"))) int64_t stress_faults_fired() { return fired; }

__attribute__((visibility("default"))) void* malloc(size_t bytes) {
  if (Fails(kAllocation, __builtin_return_address(0))) {
    errno = ENOMEM;
    return nullptr;
  }
  return __libc_malloc(bytes);
}

__attribute__((visibility("default"))) void* aligned_alloc(size_t alignment, size_t bytes) {
  if (Fails(kAllocation, __builtin_return_address(0))) {
    errno = ENOMEM;
    return nullptr;
  }
  return __libc_memalign(alignment, bytes);
}

__attribute__((visibility("default"))) void* mmap(void* address, size_t bytes, int protection,
                                                  int flags, int file, off_t offset) noexcept {
  if (Fails(kAllocation, __builtin_return_address(0))) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(
      syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}

__attribute__((visibility("default"))) ssize_t pread(int file, void* to, size_t bytes,
                                                     off_t offset) {
  if (Fails(kRead, __builtin_return_address(0))) {
    errno = EIO;
    return -1;
  }
  return syscall(SYS_pread64, file, to, bytes, offset);
}

// Every other write that fails has written a part of the bytes before: the next one then fails.
__attribute__((visibility("default"))) ssize_t pwrite(int file, const void* from, size_t bytes,
                                                      off_t offset) {
  if (Fails(kWrite, __builtin_return_address(0))) {
    errno = ENOSPC;
    if (fired % 2 == 0 || bytes < 2) return -1;
    failures_left.fetch_add(1);
    bytes /= 2;
  }
  return syscall(SYS_pwrite64, file, from, bytes, offset);
}

__attribute__((visibility("default"))) int fallocate(int file, int mode, off_t offset,
                                                     off_t bytes) {
  if (Fails(kGrowth, __builtin_return_address(0))) {
    errno = ENOSPC;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fallocate, file, mode, offset, bytes));
}

}  // extern "C"

__attribute__((visibility("default"))) void* operator new(size_t bytes) {
  if (bytes >= kSmall && Fails(kAllocation, __builtin_return_address(0))) throw std::bad_alloc();
  if (void* memory = __libc_malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}

__attribute__((visibility("default"))) void* operator new[](size_t bytes) {
  if (bytes >= kSmall && Fails(kAllocation, __builtin_return_address(0))) throw std::bad_alloc();
  if (void* memory = __libc_malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
