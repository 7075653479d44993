// The functions that fill mydist._C, called once by lifecycle.cc at import.
// What Python sees is written down in python/mydist/_C.pyi.
#pragma once

#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <utility>

#include "job/job.h"
#include "torch/in_flight.h"

namespace mydist {

// What this rank has completed last, as Python gets it; empty outside init … shutdown.
pybind11::dict OwnProgress();
// What is known of an error that is no MydistError, as one has it in `failure`, and its message.
pybind11::dict FailureRecord(const Status& status);

// References to all tensors the engine may read or write; let go of under the GIL.
std::shared_ptr<void> HoldTensorsInFlight();

void BindErrors(pybind11::module_& module);
void BindLifecycle(pybind11::module_& module);
void BindCollectives(pybind11::module_& module);
void BindProcessSets(pybind11::module_& module);
void BindGradientReducer(pybind11::module_& module);
void BindAdamw(pybind11::module_& module);
void BindCodecs(pybind11::module_& module);

// DefineCollective: gives Python both forms of a collective. Used once per collective, at import.

// `enqueue_<name>`, which returns a handle, and `<name>`, which returns the outputs: there no
// thread is woken, since the caller drives the engine while it waits. `submit` enqueues at
// Pace::kDriven.
template <typename... Arguments, typename... Extra>
void DefineCollective(pybind11::module_& module, const std::string& name,
                      Handle (*submit)(Arguments...), const Extra&... extra) {
  const auto enqueue = [submit](Arguments... arguments) {
    const Handle handle = submit(std::forward<Arguments>(arguments)...);
    process::Hurry();
    return handle;
  };
  const auto run = [submit](Arguments... arguments) {
    return InFlight::Instance().Fetch(submit(std::forward<Arguments>(arguments)...));
  };
  module.def(("enqueue_" + name).c_str(), enqueue, extra...);
  module.def(name.c_str(), run, extra...);
}

}  // namespace mydist
