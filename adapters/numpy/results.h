// Engine calls from Python, and what they return, as Python objects.
//
// Handlers of signals run inside of calls that only read. They may use the table of the call, but
// not take the first step of an optimizer on it (TrainedTable::Use::UseRule).
//
// Ctrl-C: Python runs the handlers of signals in the main thread, when that holds the GIL. Calls
// that only read look for signals some times a second and end early (RunReading, RunInParts). All
// other calls finish first (Run); Python then raises what the handler did.
#pragma once

#include <unistd.h>

#ifdef __linux__
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments.h"
#include "tfra/thread_pool.h"

namespace tfra::python {

// While one of these lives, its thread is without the GIL. REQUIRES: the thread had it before.
//
// While the interpreter ends, Python before 3.14 ends threads that ask for the GIL by pthread_exit,
// which unwinds their stack: through C++ functions that must not throw, which ends the process, and
// through destructors of what others still use. Here such a thread sleeps instead until the process
// is gone, as it does in later versions.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { TakeGil(); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  // Whether the handler of a signal has raised an exception, which then is the current one of this
  // thread. Takes the GIL for it, but seldom: not in the first milliseconds.
  bool LookForSignals() {
    const auto now = Clock::now();
    if (raised_ || now - last_look_ < kBetweenLooks || !InMainThread()) return raised_;
    TakeGil();
    raised_ = PyErr_CheckSignals() != 0;
    state_ = PyEval_SaveThread();
    last_look_ = Clock::now();
    return raised_;
  }
  // Whether it has found one.
  bool raised() const { return raised_; }
  // From now on time is measured.
  void StartLooking() { last_look_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kBetweenLooks{50};

  // Other threads see no signals, and need not wait for the GIL.
  static bool InMainThread() {
#ifdef __linux__
    return syscall(SYS_gettid) == getpid();
#else
    return true;
#endif
  }

  void TakeGil() noexcept {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // No exception: the end of this thread, which must not go on from here.
      for (;;) pause();
    }
  }

  PyThreadState* state_;
  Clock::time_point last_look_;
  bool raised_ = false;
};

// Runs an engine call without the GIL and raises what it returns.
template <typename Call>
void Run(Call&& call) {
  Status status;
  {
    const WithoutGil without;
    status = call();
  }
  Raise(status);
}

// The same for a call that changes nothing: a signal may end it early, after any of its tasks.
// call(stop) may itself ask stop(), between two steps, whether to end, and return then.
template <typename Call>
void RunReading(Call&& call) {
  Status status;
  bool raised;
  {
    WithoutGil without;
    without.StartLooking();
    const std::function<bool()> stop = [&] {
      const StopScope outside(nullptr);  // Handlers of signals may write to tables.
      return without.LookForSignals();
    };
    try {
      const StopScope scope(&stop);
      status = call(stop);
    } catch (const Stopped&) {
    }
    raised = without.raised();
  }
  if (raised) throw nb::python_error();
  Raise(status);
}

// Like RunReading, for a call about n keys: call(begin, end), one part of the keys after another. A
// part has at most 64 MB of values (4 MB in a table with a row file), or some thousand keys if rows
// are longer. If one part holds all keys, the call finishes first, as by Run.
template <typename Call>
void RunInParts(const Table& table, size_t n, Call&& call) {
  const TableSpec& spec = table.spec();
  const size_t row = static_cast<size_t>(spec.dim) * SizeOf(spec.value_type);
  size_t part = std::clamp((size_t{64} << 20) / row, size_t{1} << 14, size_t{1} << 20);
  if (spec.tiers.fast_bytes > 0) part /= 16;  // Rows may have to be read from the file.
  if (n <= part) return Run([&] { return call(0, n); });
  RunReading([&](const std::function<bool()>& stop) {
    for (size_t begin = 0;; begin += part) {
      const size_t end = std::min(n, begin + part);
      TFRA_RETURN_IF_ERROR(call(begin, end));
      if (end == n || stop()) return Status::Ok();
    }
  });
}

// The strings as bytes objects. If the handler of a signal raises an exception meanwhile, so does
// this function. Strings: a StringColumn or a vector of strings.
template <typename Strings>
nb::list BytesList(const Strings& texts) {
  constexpr size_t kBetweenLooks = size_t{1} << 16;
  nb::list list;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i % kBetweenLooks == kBetweenLooks - 1 && PyErr_CheckSignals() != 0) {
      throw nb::python_error();
    }
    const std::string_view text = texts[i];
    list.append(nb::bytes(text.data(), text.size()));
  }
  return list;
}

// Text of the engine as a str. Bytes that are not UTF-8 become surrogates, as in tfra.TableSpec.
inline nb::object StrOf(std::string_view text) {
  PyObject* str =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  if (str == nullptr) throw nb::python_error();
  return nb::steal(str);
}

// An array that owns the vector's memory.
template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> ArrayOf(std::vector<T> vector) {
  auto* owned = new std::vector<T>(std::move(vector));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner);
}

// The same for `size` bytes.
inline nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> ArrayOf(std::unique_ptr<uint8_t[]> bytes,
                                                            size_t size) {
  uint8_t* data = bytes.get();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
  bytes.release();
  return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(data, {size}, owner);
}

inline nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> ArrayOf(std::vector<std::byte> vector) {
  auto* owned = new std::vector<std::byte>(std::move(vector));
  nb::capsule owner(owned,
                    [](void* p) noexcept { delete static_cast<std::vector<std::byte>*>(p); });
  return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(owned->data(), {owned->size()}, owner);
}

// The keys of an export, which it loses.
inline nb::object KeysOf(const Table& table, ExportBatch* batch) {
  return table.spec().key_type == KeyType::kString ? nb::object(BytesList(batch->string_keys))
                                                   : nb::cast(ArrayOf(std::move(batch->int_keys)));
}

// Its values.
inline nb::object ValuesOf(const Table& table, ExportBatch* batch) {
  return table.spec().value_type == ValueType::kString
             ? nb::object(BytesList(batch->string_values))
             : nb::cast(ArrayOf(std::move(batch->values)));
}

}  // namespace tfra::python
