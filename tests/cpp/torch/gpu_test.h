// GpuTest: a test with torch in a job of one rank that has fake GPUs, and its way in through
// Python's module. A use of memory that is in no order fails the test.
#pragma once

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "fakes/device_bench.h"
#include "job/job.h"
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

// A stream on which nothing more is done while it lives, as if it had much to compute. It gives up
// when something waits for it that should not, so that the test fails instead of standing still.
class HeldStream {
 public:
  HeldStream(FakeDevice& gpu, StreamHandle stream) {
    const Status put = gpu.Enqueue(stream, {.name = "a long computation", .work = [state = state_] {
                                              const TimePoint end = Now() + kPatience;
                                              while (!state->is_let_go && Now() < end) {
                                                std::this_thread::yield();
                                              }
                                              state->has_given_up = !state->is_let_go;
                                            }});
    ExpectOk(put);
  }
  ~HeldStream() { state_->is_let_go = true; }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  bool has_given_up() const { return state_->has_given_up; }

 private:
  static constexpr std::chrono::seconds kPatience{10};
  struct State {
    std::atomic<bool> is_let_go = false;
    std::atomic<bool> has_given_up = false;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
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
