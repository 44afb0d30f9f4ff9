// A small test harness: TEST bodies register themselves; CHECK reports a failure and goes on.
// main() is in check_main.cc; with arguments, it runs only the tests whose names contain one.
#pragma once

#include <cmath>
#include <cstdio>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace tfra::test {

struct TestCase {
  std::string name;
  std::function<void()> body;
};

inline std::vector<TestCase>& AllTests() {
  static std::vector<TestCase> tests;
  return tests;
}

inline int& FailureCount() {
  static int count = 0;
  return count;
}

struct Registration {
  Registration(const char* name, std::function<void()> body) {
    AllTests().push_back({name, std::move(body)});
  }
};

inline void Fail(const char* file, int line, const std::string& what) {
  ++FailureCount();
  std::fprintf(stderr, "  %s:%d: %s\n", file, line, what.c_str());
}

template <typename A, typename B>
std::string Describe(const char* expression, const A& a, const B& b) {
  std::ostringstream out;
  out << expression << " (" << a << " against " << b << ")";
  return out.str();
}

}  // namespace tfra::test

#define TEST(name)                                                                \
  static void Test##name();                                                       \
  static const ::tfra::test::Registration registration_##name(#name, Test##name); \
  static void Test##name()

#define CHECK(condition)                                                         \
  do {                                                                           \
    if (!(condition)) ::tfra::test::Fail(__FILE__, __LINE__, "not " #condition); \
  } while (false)

#define CHECK_EQ(a, b)                                                                      \
  do {                                                                                      \
    const auto a_ = (a);                                                                    \
    const auto b_ = (b);                                                                    \
    if (!(a_ == b_))                                                                        \
      ::tfra::test::Fail(__FILE__, __LINE__, ::tfra::test::Describe(#a " == " #b, a_, b_)); \
  } while (false)

#define CHECK_NEAR(a, b, tolerance)                                                           \
  do {                                                                                        \
    const double a_ = (a);                                                                    \
    const double b_ = (b);                                                                    \
    if (!(std::fabs(a_ - b_) <= (tolerance)))                                                 \
      ::tfra::test::Fail(__FILE__, __LINE__, ::tfra::test::Describe(#a " near " #b, a_, b_)); \
  } while (false)

#define CHECK_OK(expression)                                                               \
  do {                                                                                     \
    if (const ::tfra::Status status_ = (expression); !status_.ok())                        \
      ::tfra::test::Fail(__FILE__, __LINE__, #expression " failed: " + status_.message()); \
  } while (false)
