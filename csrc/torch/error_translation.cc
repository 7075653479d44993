#include "torch/error_translation.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <optional>

#include "job/job.h"
#include "torch/bindings.h"
#include "torch/gil.h"
#include "world/progress.h"

namespace mydist {
namespace {

namespace py = pybind11;

struct ErrorClass {
  StatusCode code;
  const char* name;
  const char* doc;
};

// The first is the base of the others, and stands for all codes that are not here.
constexpr std::array<ErrorClass, 6> kErrorClasses = {{
    {StatusCode::kInternal, "MydistError",
     "A collective or the job failed. The base class of all mydist errors, except for wrong "
     "arguments, which raise ValueError or TypeError. Its attribute `failure` has the details as "
     "data: code, operation, tensor, phase, ranks (those to blame), hosts, pids, signal, cause and "
     "hint."},
    {StatusCode::kMismatch, "MismatchError",
     "The ranks disagree on a tensor's shape, dtype, operation, root or scale. Every rank raises "
     "it, and the job can continue."},
    {StatusCode::kPeerLost, "PeerLostError", "A peer died or its connection was closed."},
    {StatusCode::kTimeout, "CollectiveTimeoutError",
     "A collective or a wait took longer than its limit."},
    {StatusCode::kAborted, "AbortedError",
     "The operation was aborted: mydist was shut down, or an earlier error ended the job."},
    {StatusCode::kVersionMismatch, "VersionMismatchError",
     "The ranks run different builds of mydist."},
}};

// Never released, as the next one: exceptions may still be raised while the interpreter shuts down.
std::array<PyObject*, kErrorClasses.size()> classes = {};
PyObject* on_error = nullptr;  // Called with each MydistError before it is raised.

PyObject* ClassOf(StatusCode code) {
  if (code == StatusCode::kInvalidArgument) return PyExc_ValueError;
  if (code == StatusCode::kTypeError) return PyExc_TypeError;
  for (size_t i = 0; i < kErrorClasses.size(); ++i) {
    if (kErrorClasses[i].code == code) return classes[i];
  }
  return classes[0];
}

// Names and library texts may hold any bytes, and long texts are cut anywhere.
py::str Utf8(const std::string& text) {
  PyObject* const decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

// Of each rank of which it is known.
py::dict ProgressOf(const Failure& failure) {
  py::dict ranks;
  if (failure.progress == nullptr) return ranks;
  for (const RankProgress& known : *failure.progress) {
    py::dict progress;
    progress["operation"] = Utf8(known.operation);
    progress["tensor"] = Utf8(known.tensor);
    progress["number"] = known.number;
    progress["age"] = known.age;
    ranks[py::int_(known.rank)] = progress;
  }
  return ranks;
}

// The message, and the progress of the ranks that cannot report it any more. The message about a
// late rank has it already.
py::str TextOf(const Status& status) {
  const bool is_late = status.failure().finding == kLateFinding;
  return Utf8(status.WithSentence(is_late ? "" : ProgressText(status.failure())).message());
}

py::dict RecordOf(const Status& status, const py::dict& own_progress) {
  const Failure& failure = status.failure();
  py::dict record;
  record["code"] = std::string(StatusCodeName(status.code()));
  record["operation"] = Utf8(failure.operation);
  record["tensor"] = Utf8(failure.tensor);
  record["phase"] = failure.phase;
  record["ranks"] = failure.ranks;
  record["host"] = Utf8(failure.host);
  record["pid"] = failure.pid;
  py::list hosts;
  for (const std::string& host : failure.hosts) hosts.append(Utf8(host));
  record["hosts"] = hosts;
  record["pids"] = failure.pids;
  record["signal"] = failure.signal;
  record["finding"] = failure.finding;
  record["progress"] = ProgressOf(failure);
  record["own_progress"] = own_progress;
  record["elapsed"] = failure.elapsed;
  record["cause"] = Utf8(failure.cause);
  record["hint"] = failure.hint;
  return record;
}

PyObject* MakeClass(py::module_& module, const ErrorClass& error, PyObject* base) {
  const char* const name = error.name;
  // Users know the class as mydist.<name>, and pickle looks for it there.
  const std::string full_name = std::string("mydist.") + name;
  // The record of an error that Python code raises.
  py::dict members;
  members["failure"] = RecordOf(Status(error.code, ""), py::dict());
  PyObject* made = PyErr_NewExceptionWithDoc(full_name.c_str(), error.doc, base, members.ptr());
  if (made == nullptr) throw py::error_already_set();
  module.add_object(name, py::reinterpret_borrow<py::object>(made));
  return made;
}

// Calls on_error. No object of C++ is on the way where the thread may end.
void TellOf(const py::object& error) {
  PyObject* result = nullptr;
  TakeGil([&] { result = PyObject_CallOneArg(on_error, error.ptr()); });
  if (result == nullptr) throw py::error_already_set();
  Py_DECREF(result);
}

// Raises an error of the class of its code; a MydistError has what is known of it in `failure`.
void SetError(const Status& status, const py::object& text) {
  PyObject* const type = ClassOf(status.code());
  const auto error = py::reinterpret_steal<py::object>(PyObject_CallOneArg(type, text.ptr()));
  if (!error) return;  // Python has raised another.
  if (PyObject_IsSubclass(type, classes[0]) == 1) {
    try {
      error.attr("failure") = RecordOf(status, OwnProgress());
      if (on_error != nullptr) TellOf(error);
    } catch (py::error_already_set& problem) {  // The error goes its way all the same.
      problem.discard_as_unraisable("telling what is known of a mydist error");
    }
  }
  PyErr_SetObject(type, error.ptr());
}

// See kSetErrorCapsule.
void SetPythonError(const Status& status) { SetError(status, TextOf(status)); }

void Translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const StatusError& error) {
    SetPythonError(error.status());
  }
}

}  // namespace

void RaiseIfError(const Status& status) {
  if (status.ok()) return;
  SetPythonError(status);
  throw py::error_already_set();
}

py::dict OwnProgress() {
  py::dict progress;
  const std::optional<process::LastCompleted> last = process::FindLastCompleted();
  if (!last) return progress;
  progress["operation"] = Utf8(last->operation);
  progress["tensor"] = Utf8(last->tensor);
  progress["number"] = last->number;
  progress["ago"] = last->ago;
  return progress;
}

py::dict FailureRecord(const Status& status) {
  py::dict record = RecordOf(status, OwnProgress());
  record["message"] = TextOf(status);
  return record;
}

void BindErrors(py::module_& module) {
  for (size_t i = 0; i < kErrorClasses.size(); ++i) {
    classes[i] = MakeClass(module, kErrorClasses[i], i == 0 ? PyExc_RuntimeError : classes[0]);
  }
  py::register_local_exception_translator(&Translate);
  const SetErrorFunction set_error = &SetPythonError;
  module.attr(kSetErrorCapsule) = py::capsule(reinterpret_cast<void*>(set_error), kSetErrorCapsule);
  module.def("set_on_error", [](const py::function& told) {
    Py_XDECREF(on_error);
    on_error = py::object(told).release().ptr();
  });
}

}  // namespace mydist
