#include <cstring>

#include "check.h"

int main(int argc, char** argv) {
  const char* filter = argc > 1 ? argv[1] : "";
  int failed = 0, run = 0;
  for (const auto& test : tfra::test::AllTests()) {
    if (test.name.find(filter) == std::string::npos) continue;
    const int before = tfra::test::FailureCount();
    test.body();
    const bool passed = tfra::test::FailureCount() == before;
    std::printf("%s %s\n", passed ? "ok    " : "FAILED", test.name.c_str());
    std::fflush(stdout);
    failed += !passed;
    ++run;
  }
  std::printf("%d tests, %d failed\n", run, failed);
  return failed || !run;
}
