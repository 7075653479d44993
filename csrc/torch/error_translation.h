// Status → Python exception: the one place where a Status becomes something that is thrown.
// Used by the binding functions of csrc/torch, on the calling Python thread.
#pragma once

#include <exception>
#include <utility>

#include "base/status.h"

namespace mydist {

// A failed Status on its way through pybind11, which turns it into the class of its code.
class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)) {}
  const Status& status() const { return status_; }
  const char* what() const noexcept override { return status_.message().c_str(); }

 private:
  Status status_;
};

// The attribute of mydist._C by which another module of ours raises the same classes: a capsule of
// this name, which holds a SetErrorFunction. It sets the Python error of a failed Status.
inline constexpr const char* kSetErrorCapsule = "_set_error";
using SetErrorFunction = void (*)(const Status& status);

inline void ThrowIfError(const Status& status) {
  if (!status.ok()) throw StatusError(status);
}

// The same for a thread that has waited for a collective, has the GIL again, and is in no handler
// of an exception: Python's error is set before anything is thrown. Telling of the error runs
// Python code, and Python may end this thread meanwhile, as the program ends. In pybind11's handler
// that would terminate the process, for a thread's end cannot be held up there.
void RaiseIfError(const Status& status);

template <typename T>
T ValueOrThrow(Result<T> result) {
  ThrowIfError(result.status());
  return std::move(result).value();
}

}  // namespace mydist
