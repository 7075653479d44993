// Who takes part: enqueue_* that add and remove process sets, and join.
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "job/process.h"
#include "torch/bindings.h"
#include "torch/collective_binding.h"
#include "torch/collective_call.h"
#include "torch/error_translation.h"
#include "torch/in_flight.h"

namespace mydist {
namespace {

// wait() gives the number of the new set. Which ranks may be in a set is checked in Python.
Handle EnqueueAddProcessSet(std::vector<int32_t> ranks, const std::string& name) {
  CollectiveCall call({.op = OpKind::kAddProcessSet}, 1);
  std::sort(ranks.begin(), ranks.end());
  call.AddSignal(name).request.ranks = std::move(ranks);
  call.ReceiveNumbers();
  return call.Enqueue();
}

Handle EnqueueRemoveProcessSet(int process_set, const std::string& name) {
  CollectiveCall call({.op = OpKind::kRemoveProcessSet, .process_set = process_set}, 1);
  call.AddSignal(name);
  return call.Enqueue();
}

// wait() gives the rank that joined last.
Handle EnqueueJoin() {
  InFlightCall call;
  call.late = std::make_shared<LateOutputs>(0);
  call.gives_numbers = true;
  const auto on_numbers = [late = call.late](const std::vector<int64_t>& numbers) {
    late->numbers = numbers;
  };
  return InFlight::Instance().Keep(ValueOrThrow(process::Join(on_numbers)), std::move(call));
}

}  // namespace

void BindProcessSets(py::module_& module) {
  using py::arg;
  DefineCollective(module, "add_process_set", &EnqueueAddProcessSet, arg("ranks"), arg("name"));
  DefineCollective(module, "remove_process_set", &EnqueueRemoveProcessSet, arg("process_set"),
                   arg("name"));
  module.def("enqueue_join", &EnqueueJoin);
}

}  // namespace mydist
