// The gradient reducer as Python sees it.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <tuple>
#include <vector>

#include "job/process.h"
#include "torch/bindings.h"
#include "torch/error_translation.h"
#include "torch/gradients/gradient_hook.h"
#include "torch/gradients/gradient_reducer.h"

namespace mydist {
namespace {

std::shared_ptr<GradientReducer> MakeReducer(int reduce_op, double prescale, double postscale,
                                             int compression, int64_t passes, int process_set) {
  const auto refuse = [](const std::string& message) {
    throw StatusError(Status::InvalidArgument(message));
  };
  if (reduce_op < 0 || reduce_op >= kReduceOpCount) {
    refuse("op " + std::to_string(reduce_op) +
           " is unknown, expected Average, Sum, Min, Max or Product");
  }
  const WireFormat wire_format = ToWireFormat(compression);
  ThrowIfError(process::GetProcessSet(process_set).status());
  GradientReducerOptions options;
  options.reduction = {static_cast<ReduceOp>(reduce_op), prescale, postscale};
  options.wire_format = wire_format;
  options.process_set = process_set;
  auto reducer = std::make_shared<GradientReducer>(options);
  reducer->SetBackwardPassesPerStep(passes);
  return reducer;
}

}  // namespace

void BindGradientReducer(py::module_& module) {
  py::class_<GradientHook>(module, "GradientHook").def("__call__", &GradientHook::operator());
  py::class_<GradientReducer, std::shared_ptr<GradientReducer>>(module, "GradientReducer")
      .def(py::init(&MakeReducer), py::arg("reduce_op"), py::arg("prescale_factor"),
           py::arg("postscale_factor"), py::arg("compression"), py::arg("backward_passes_per_step"),
           py::arg("process_set"))
      .def("add_parameter", &GradientReducer::AddParameter, py::arg("parameter"), py::arg("name"),
           py::arg("group"), py::arg("group_size"))
      .def("synchronize", &GradientReducer::Synchronize)
      .def("set_backward_passes_per_step", &GradientReducer::SetBackwardPassesPerStep,
           py::arg("passes"))
      .def("set_enabled", &GradientReducer::SetEnabled, py::arg("enabled"))
      .def("set_sparse_as_dense", &GradientReducer::SetSparseAsDense, py::arg("sparse_as_dense"))
      .def("set_buffer_views", &GradientReducer::SetBufferViews, py::arg("buffer_views"))
      .def("buckets", &GradientReducer::Buckets)
      .def("layouts",
           [](const GradientReducer& reducer) {
             std::vector<std::tuple<size_t, int64_t, int64_t, std::string>> layouts;
             for (const GradientReducer::Layout& layout : reducer.layouts()) {
               layouts.emplace_back(layout.bucket_count, layout.sizes.first_bytes,
                                    layout.sizes.bytes, layout.reason);
             }
             return layouts;
           })
      .def("slot_bytes", &GradientReducer::slot_bytes)
      .def("copied_bytes", &GradientReducer::copied_bytes)
      .def("pending", &GradientReducer::Pending)
      .def("touched", &GradientReducer::touched)
      .def("reset", &GradientReducer::Reset)
      .def("remove", &GradientReducer::Remove);
}

}  // namespace mydist
