// How much memory there is left, from the files of Linux. What can't be read does not limit.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

#include "tfra/memory.h"

namespace tfra {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

uint64_t Minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// The number after a name, in a file of such pairs; `otherwise` if it is not there.
uint64_t NumberAfter(const std::string& path, const std::string& name, uint64_t otherwise) {
  std::ifstream file(path);
  std::string word;
  uint64_t number;
  while (file >> word) {
    if (word == name && file >> number) return number;
  }
  return otherwise;
}

// The only number in a file; `otherwise` if there is none, or the word "max".
uint64_t NumberIn(const std::string& path, uint64_t otherwise) {
  std::ifstream file(path);
  uint64_t number;
  return file >> number ? number : otherwise;
}

uint64_t FreeInMachine() {
  const std::string file = "/proc/meminfo";
  const uint64_t available = NumberAfter(file, "MemAvailable:", kNoLimit / 2048);
  return (available + NumberAfter(file, "SwapFree:", 0)) * 1024;
}

// The least that a control group or one above it has left. Pages of files that nobody has used for
// a while are free: the system drops them first.
uint64_t FreeInGroups(std::string group, const std::string& root, const std::string& limit,
                      const std::string& usage, const std::string& inactive) {
  uint64_t least = kNoLimit;
  for (;;) {
    const std::string folder = root + group + "/";
    const uint64_t most = NumberIn(folder + limit, kNoLimit);
    if (most != kNoLimit) {
      const uint64_t used =
          Minus(NumberIn(folder + usage, 0), NumberAfter(folder + "memory.stat", inactive, 0));
      least = std::min(least, Minus(most, used));
    }
    if (group.empty() || group == "/") return least;
    group.resize(group.find_last_of('/'));
  }
}

uint64_t FreeInControlGroups() {
  uint64_t least = kNoLimit;
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    // "number:controllers:/group", without controllers in version 2.
    const size_t controllers = line.find(':') + 1;
    const size_t group = line.find(':', controllers) + 1;
    if (controllers == 0 || group == 0 || line.compare(group, 1, "/") != 0) continue;
    const std::string of = "," + line.substr(controllers, group - 1 - controllers) + ",";
    const std::string name = line.substr(group);
    if (of == ",,") {
      least = std::min(least, FreeInGroups(name, "/sys/fs/cgroup", "memory.max", "memory.current",
                                           "inactive_file"));
    } else if (of.find(",memory,") != std::string::npos) {
      least = std::min(least, FreeInGroups(name, "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                           "memory.usage_in_bytes", "total_inactive_file"));
    }
  }
  return least;
}

uint64_t FreeAddresses() {
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoLimit;
  const uint64_t pages = NumberIn("/proc/self/statm", 0);
  return Minus(limit.rlim_cur, pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
}

}  // namespace

uint64_t AvailableMemory() {
  return std::min({FreeInMachine(), FreeInControlGroups(), FreeAddresses()});
}

}  // namespace tfra
