// GpuTest: a test with torch in a job of one rank that has fake GPUs, and its way in through
// Python's module. A use of memory that is in no order fails the test.
#pragma once

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>
#include <vector>

#include "device/device_bench.h"
#include "runtime/process.h"
#include "torch/embedded_python.h"
#include "torch/fake_cuda.h"

namespace mydist::testing {

// Another current stream of this thread while it lives.
class OnStream {
 public:
  explicit OnStream(const c10::Stream& stream) : guard_(stream) {}

 private:
  const c10::StreamGuard guard_;
};

class GpuTest : public ::testing::TestWithParam<FakeDeviceOptions> {
 protected:
  using Tensors = std::vector<at::Tensor>;
  using Names = std::vector<std::string>;

  void SetUp() override {
    cuda_.Begin(GetParam().pace);
    ASSERT_TRUE(process::Init({.devices = cuda_.plugin()}).ok());
  }

  void TearDown() override {
    {
      const pybind11::gil_scoped_release released;
      EXPECT_TRUE(process::Shutdown().ok());
    }
    EXPECT_EQ(cuda_.End(), "");
  }

  template <typename... Arguments>
  static pybind11::object Call(const char* function, Arguments&&... arguments) {
    return Extension().attr(function)(std::forward<Arguments>(arguments)...);
  }
  static Tensors Wait(const pybind11::object& handle) {
    return Call("wait", handle).cast<Tensors>();
  }

  // × 3, so that there is something to be done. In place where there are outputs.
  static pybind11::object EnqueueTripled(const Tensors& inputs, const pybind11::object& outputs,
                                         const Names& names) {
    return Call("enqueue_allreduce", inputs, outputs, names, names.size() > 1 ? "group" : "", 1,
                3.0, 1.0, 0);
  }
  static pybind11::object EnqueueTripled(const at::Tensor& tensor, const std::string& name) {
    return EnqueueTripled({tensor}, pybind11::none(), {name});
  }

  // The text of the exception that Python would see; empty for none.
  template <typename Work>
  static std::string ErrorOf(const Work& work) {
    try {
      work();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  FakeCuda& cuda_ = FakeCuda::Instance();
};

}  // namespace mydist::testing
