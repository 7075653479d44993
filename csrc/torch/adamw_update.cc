// AdamW on tensors of the CPU, for torch's AdamW(fused=True) in a sharded optimizer.

#include <ATen/Parallel.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>

#include "kernels/adamw.h"
#include "torch/bindings.h"
#include "torch/collective_call.h"
#include "torch/gil.h"

namespace mydist {
namespace {

// Less is not worth another thread.
constexpr int64_t kAdamwGrain = 1 << 16;

float* FloatsOf(const at::Tensor& tensor, int64_t count, const char* what) {
  if (tensor.scalar_type() != at::kFloat || !tensor.device().is_cpu() || !tensor.is_contiguous() ||
      tensor.numel() != count) {
    CollectiveCall::Refuse(std::string("adamw: ") + what + " expects " + std::to_string(count) +
                           " contiguous float32 on the CPU");
  }
  return static_cast<float*>(tensor.mutable_data_ptr());
}

// The tensors of one parameter; the gradient is only read.
struct AdamwTensors {
  at::Tensor parameter;
  at::Tensor gradient;
  at::Tensor first;
  at::Tensor second;
};

void UpdateByAdamw(const AdamwTensors& tensors, const AdamwStep& step) {
  const int64_t count = tensors.parameter.numel();
  const AdamwMemory memory = {FloatsOf(tensors.parameter, count, "the parameter"),
                              FloatsOf(tensors.gradient, count, "the gradient"),
                              FloatsOf(tensors.first, count, "the first moment"),
                              FloatsOf(tensors.second, count, "the second moment")};
  at::parallel_for(0, count, kAdamwGrain, [&](int64_t begin, int64_t end) {
    RunAdamw({memory.parameters + begin, memory.gradients + begin, memory.first + begin,
              memory.second + begin},
             end - begin, step);
  });
}

void AdamwUpdate(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& first,
                 const at::Tensor& second, int64_t step, double lr, double beta1, double beta2,
                 double epsilon, double weight_decay) {
  const AdamwSettings settings = {lr, beta1, beta2, epsilon, weight_decay};
  const WithoutGil without_gil;
  UpdateByAdamw({parameter, gradient, first, second}, AdamwStepAt(settings, step));
}

}  // namespace

void BindAdamw(py::module_& module) {
  using py::arg;
  module.def("adamw_", &AdamwUpdate, arg("parameter"), arg("gradient"), arg("first"), arg("second"),
             arg("step"), arg("lr"), arg("beta1"), arg("beta2"), arg("epsilon"),
             arg("weight_decay"));
}

}  // namespace mydist
