// The module mydist._c10d: what mydist.c10d registers with torch.distributed.

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>

#include "torch/process_group/lane_backend.h"

namespace mydist {
namespace {

c10::intrusive_ptr<c10d::Backend> OpenGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, std::chrono::milliseconds timeout,
                                            const std::string& name) {
  return c10::make_intrusive<LaneBackend>(store, rank, size, timeout, name);
}

}  // namespace
}  // namespace mydist

PYBIND11_MODULE(_c10d, module) {
  pybind11::module_::import("torch.distributed");  // Knows Backend and Store.
  module.def("open_group", &mydist::OpenGroup, pybind11::arg("store"), pybind11::arg("rank"),
             pybind11::arg("size"), pybind11::arg("timeout"), pybind11::arg("name"),
             pybind11::call_guard<pybind11::gil_scoped_release>());
}
