// Every collective takes tensors on GPUs, behind what the caller's stream computes and in front of
// what it computes next, and no host waits.
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <thread>

#include "torch/gpu_test.h"

namespace mydist::testing {
namespace {

namespace py = pybind11;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Floats = std::vector<float>;

class GpuCollectives : public GpuTest {};
INSTANTIATE_TEST_SUITE_P(Paces, GpuCollectives, kEveryPace, NameOfPace);

const Floats kValues = {1, 2, 3, 4, 5, 6};
const Floats kTripled = {3, 6, 9, 12, 15, 18};

// Which is another one when it is waited for.
TEST_P(GpuCollectives, GiveTheirResultToTheCurrentStream) {
  const OnStream on(cuda_.NewStream(0));
  const at::Tensor input = cuda_.Make(kValues);
  const py::object earlier = EnqueueTripled(cuda_.Make(kValues), "earlier");
  const auto one = [&](py::object outputs) { return outputs.cast<Tensors>().at(0); };
  const Tensors list = {input};
  const Names name = {"x"};
  const std::pair<const char*, std::function<py::object()>> calls[] = {
      {"allreduce", [&] { return Call("allreduce", list, py::none(), name, "", 1, 1.0, 1.0, 0); }},
      {"allgather", [&] { return Call("allgather", list, name, "", 0); }},
      {"broadcast", [&] { return Call("broadcast", input, py::none(), 0, "x", 0); }},
      {"alltoall", [&] { return Call("alltoall", input, py::none(), "x", 0); }},
      {"reducescatter", [&] { return Call("reducescatter", list, name, "", 1, 1.0, 1.0, 0); }},
      {"reduce", [&] { return Call("reduce", input, py::none(), 0, "x", 1, 1.0, 1.0, 0); }},
      {"gather", [&] { return Call("gather", input, 0, "x", 0); }},
      {"scatter", [&] { return Call("scatter", input, py::none(), 0, "x", 0); }}};
  for (const auto& [op, call] : calls) {
    SCOPED_TRACE(op);
    const at::Tensor output = one(call());
    EXPECT_EQ(output.device(), input.device());
    EXPECT_EQ(cuda_.Read(output), kValues);
  }
  const OnStream reading(cuda_.NewStream(0));
  EXPECT_EQ(cuda_.Read(Wait(earlier).at(0)), kTripled);
}

TEST_P(GpuCollectives, ReduceInPlaceAndInGroups) {
  const Tensors tensors = {cuda_.Make(kValues), cuda_.Make({7}), cuda_.Make({})};
  Wait(EnqueueTripled(tensors, py::cast(tensors), {"a", "b", "c"}));
  EXPECT_EQ(cuda_.Read(tensors[0]), kTripled);
  EXPECT_EQ(cuda_.Read(tensors[1]), Floats{21});
  EXPECT_EQ(cuda_.gpu(0).counts().copies, 2 + 2) << "but the test's own";
}

// While the caller's stream is held back nothing is done; all calls return nevertheless.
TEST_P(GpuCollectives, NeitherEnqueueNorWaitKeepTheHost) {
  const at::Tensor input = cuda_.Make(kValues);
  std::atomic<bool> is_let_go = false;
  const auto hold = [&] {
    while (!is_let_go) std::this_thread::yield();
  };
  ExpectOk(cuda_.gpu(0).Enqueue(cuda_.Current(0), {.name = "what comes before", .work = hold}));
  const int64_t blocks = cuda_.gpu(0).counts().blocks;
  const at::Tensor output = Wait(EnqueueTripled(input, "x")).at(0);
  const at::Tensor gathered =
      Call("allgather", Tensors{output}, Names{"y"}, "", 0).cast<Tensors>().at(0);
  EXPECT_EQ(cuda_.gpu(0).counts().blocks, blocks);
  is_let_go = true;
  EXPECT_EQ(cuda_.Read(gathered), kTripled);
}

// By the time the engine comes to a call the host has put much more on the default stream.
TEST_P(GpuCollectives, ResultsWhoseShapeComesLateAreNotBehindTheDefaultStream) {
  const OnStream on(cuda_.NewStream(0));
  const Tensors inputs = {cuda_.Make(kValues)};
  const HeldStream held(cuda_.gpu(0), StreamHandle{});
  const std::pair<const char*, std::function<py::object()>> calls[] = {
      {"allgather", [&] { return Call("allgather", inputs, Names{"x"}, "", 0); }},
      {"alltoall", [&] { return Call("alltoall", inputs[0], py::none(), "x", 0); }},
      {"reducescatter",
       [&] { return Call("reducescatter", inputs, Names{"x"}, "", 1, 1.0, 1.0, 0); }}};
  for (const auto& [op, call] : calls) {
    SCOPED_TRACE(op);
    EXPECT_EQ(cuda_.Read(call().cast<Tensors>().at(0)), kValues);
    ASSERT_FALSE(held.has_given_up());
  }
}

// The pool has 32 streams, then it begins anew: somebody else has ours as well, and captures it.
TEST_P(GpuCollectives, ResultsWhoseShapeComesLateAreNotAllocatedInAGraph) {
  const at::Tensor input = cuda_.Make(kValues);
  cuda_.gpu(0).BeginCapture(cuda_.NativeOf(FakeCuda::Pooled()));
  const at::Tensor output =
      Call("allgather", Tensors{input}, Names{"x"}, "", 0).cast<Tensors>().at(0);
  cuda_.gpu(0).EndCapture();
  EXPECT_EQ(cuda_.Read(output), kValues);
}

TEST_P(GpuCollectives, OfAProcessSetUseOneGpu) {
  const Tensors tensors = {cuda_.Make(kValues, 1), cuda_.Make(kValues, 0)};
  const auto refusal = AllOf(HasSubstr("allreduce 'b': the tensor is on GPU 0"),
                             HasSubstr("process set 0 with GPU 1"));
  EXPECT_THAT(ErrorOf([&] { EnqueueTripled(tensors, py::none(), {"a", "b"}); }), refusal);
  EXPECT_EQ(cuda_.Read(Wait(EnqueueTripled(tensors[0], "a")).at(0)), kTripled);
  EXPECT_THAT(ErrorOf([&] { EnqueueTripled(tensors[1], "b"); }), refusal);
}

TEST_P(GpuCollectives, OutputsLieWhereInputsDo) {
  const Tensors input = {cuda_.Make(kValues, 0)};
  const Tensors elsewhere = {cuda_.Make(kValues, 1)};
  EXPECT_THAT(ErrorOf([&] { EnqueueTripled(input, py::cast(elsewhere), {"x"}); }),
              HasSubstr("allreduce of 'x': the output is on cuda:1, expected cuda:0"));
}

TEST_P(GpuCollectives, AreRefusedWhileTheStreamIsCaptured) {
  const c10::Stream stream = cuda_.NewStream(0);
  const OnStream on(stream);
  const at::Tensor tensor = cuda_.Make(kValues);
  const py::object earlier = EnqueueTripled(tensor, "earlier");
  cuda_.gpu(0).BeginCapture(cuda_.Current(0));
  EXPECT_THAT(ErrorOf([&] { EnqueueTripled(tensor, "x"); }),
              AllOf(HasSubstr("allreduce of 'x'"), HasSubstr("captured into a CUDA graph"),
                    HasSubstr("no_sync()")));
  EXPECT_THAT(ErrorOf([&] { Wait(earlier); }), HasSubstr("captured into a CUDA graph"));
  cuda_.gpu(0).EndCapture();
  EXPECT_EQ(cuda_.Read(Wait(earlier).at(0)), kTripled) << "it can still be waited for";
  EXPECT_EQ(cuda_.Read(Wait(EnqueueTripled(tensor, "x")).at(0)), kTripled);
}

TEST_P(GpuCollectives, SayWhyThereIsNoWayToGpus) {
  {
    const py::gil_scoped_release released;
    ASSERT_TRUE(process::Shutdown().ok());
    ASSERT_TRUE(process::Init({}).ok());  // The tests have no libmydist_nccl.so beside them.
  }
  const at::Tensor tensor = cuda_.Make(kValues);
  EXPECT_THAT(ErrorOf([&] { EnqueueTripled(tensor, "x"); }),
              AllOf(HasSubstr("allreduce of 'x': it is on cuda:0, but mydist cannot use GPUs here"),
                    HasSubstr("backend 'nccl'"), HasSubstr("--check-build")));
}

}  // namespace
}  // namespace mydist::testing
