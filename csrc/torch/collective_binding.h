// DefineCollective: gives Python both forms of a collective. Used once per collective, at import.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>

#include "job/process.h"
#include "torch/in_flight.h"

namespace mydist {

// `enqueue_<name>`, which returns a handle, and `<name>`, which returns the outputs: there nobody
// is woken, since the caller drives the engine while it waits. `submit` enqueues at Pace::kDriven.
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
