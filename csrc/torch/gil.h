// WithGil and WithoutGil: pybind11's guards, for threads that may outlive the interpreter. Once
// Python ends, it ends a thread that wants the GIL by pthread_exit(), which terminates the process
// where it meets a destructor. Here such a thread sleeps until the process is gone, as Python
// itself has it from 3.14 on.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <exception>
#include <optional>

namespace mydist {

[[noreturn]] inline void SleepForEver() {
  while (true) pause();
}

// Calls `take`, which waits for the GIL. It returns to the thread that ends Python, and to no other
// one from then on.
template <typename Take>
void TakeGil(Take take) {
  try {
    take();
  } catch (...) {
    // The unwinding that pthread_exit() starts is no exception: there is no object to catch.
    if (std::current_exception() == nullptr) SleepForEver();
    throw;
  }
}

// The calling thread has the GIL for its lifetime.
class WithGil {
 public:
  WithGil() {
    TakeGil([this] { gil_.emplace(); });
  }

 private:
  std::optional<pybind11::gil_scoped_acquire> gil_;
};

// The calling thread, which has the GIL, is without it for its lifetime.
class WithoutGil {
 public:
  WithoutGil() {
    pybind11::detail::get_internals();  // As pybind11 does, for a WithGil in between.
    state_ = PyEval_SaveThread();
  }
  ~WithoutGil() {
    TakeGil([this] { PyEval_RestoreThread(state_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_ = nullptr;
};

}  // namespace mydist
