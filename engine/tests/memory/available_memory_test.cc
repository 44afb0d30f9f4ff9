// How much memory there is left: as much as the machine has, or as a limit allows.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>

#include "check.h"
#include "tfra/memory.h"

namespace tfra::test {

TEST(AvailableMemoryIsThatOfTheMachineOrOfALimit) {
  const uint64_t machine = AvailableMemory();
  CHECK(machine > 0);
  CHECK(machine < uint64_t{1} << 50);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const uint64_t used = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const uint64_t more = uint64_t{256} << 20;
    rlimit limit{};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = used + more;
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    const uint64_t left = AvailableMemory();
    _exit(left <= more && left + (more / 4) >= std::min(more, machine) ? 0 : 1);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK_EQ(status, 0);
}

}  // namespace tfra::test
