#include <algorithm>

#include "check.h"

// Runs the tests whose names contain one of the arguments; without arguments, all tests.
int main(int argc, char** argv) {
  int failed = 0, run = 0;
  for (const auto& test : tfra::test::AllTests()) {
    const bool named = std::any_of(argv + 1, argv + argc, [&](const char* part) {
      return test.name.find(part) != std::string::npos;
    });
    if (argc > 1 && !named) continue;
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
