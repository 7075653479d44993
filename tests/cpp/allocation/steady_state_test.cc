// In the steady state a collective in shared memory allocates nothing, and an engine little.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "algorithms/shm/shm_collectives.h"
#include "algorithms/shm/shm_ranks.h"
#include "allocation/allocation_count.h"
#include "engine/engine_job.h"

namespace mydist {
namespace {

constexpr int kSize = 3;

// Of `calls` of `call`, once there have been some; `before_call` has the number of the call.
int64_t AllocationsOf(
    int calls, const std::function<void()>& call,
    const std::function<void(int)>& before_call = [](int) {}) {
  for (int i = 0; i < 100; ++i) call();
  const int64_t before = AllocationCount();
  for (int i = 0; i < calls; ++i) {
    before_call(i);
    call();
  }
  return AllocationCount() - before;
}

// In some calls all ranks but one are late: that one waits for more peers than before.
void BeLateInSomeCalls(int rank, int call) {
  constexpr int kPeriod = 10;
  if (call % kPeriod != 0 || call >= kPeriod * kSize || rank == call / kPeriod) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(AllocationCount, SeesAVectorAndAnOverAlignedObject) {
  struct alignas(128) Line {
    char bytes[128];
  };
  // Held elsewhere, or the compiler may do without them.
  std::vector<int> vector;
  std::unique_ptr<Line> line;
  const int64_t allocations = AllocationsOf(5, [&] {
    vector = std::vector<int>(7);
    line = std::make_unique<Line>();
  });
  EXPECT_EQ(allocations, 10);
}

using Call = std::function<Status(Collectives& collectives, float* data, float* other)>;
struct Case {
  const char* name;
  Call call;
  int calls = 50;
};

std::vector<Case> CasesOf(int64_t count) {
  const std::vector<int64_t> counts(kSize, count / kSize);
  std::vector<int64_t> bytes = counts;
  for (int64_t& part : bytes) part *= int64_t{sizeof(float)};
  return {
      {"allreduce", [=](auto& c, float* data, float*) { return c.Allreduce(data, count, {}); },
       1000},
      {"reduce",
       [=](auto& c, float* data, float* other) { return c.Reduce(data, other, count, {}, 1); }},
      {"reducescatter", [=](auto& c, float* data,
                            float* other) { return c.Reducescatter(data, other, counts, {}); }},
      {"allgather",
       [=](auto& c, float* data, float* other) { return c.Allgather(data, other, bytes); }},
      {"gather",
       [=](auto& c, float* data, float* other) { return c.Gather(data, other, bytes, 2); }},
      {"scatter",
       [=](auto& c, float* data, float* other) { return c.Scatter(data, bytes, other, 0); }},
      {"broadcast", [=](auto& c, float* data,
                        float*) { return c.Broadcast(data, count * int64_t{sizeof(float)}, 1); }},
      {"alltoall",
       [=](auto& c, float* data, float* other) { return c.Alltoall(data, bytes, other, bytes); }},
      {"barrier", [](auto& c, float*, float*) { return c.Barrier(); }},
  };
}

class SharedMemory : public ::testing::TestWithParam<bool> {};  // Whether ranks attach.
INSTANTIATE_TEST_SUITE_P(Attach, SharedMemory, ::testing::Bool());

TEST_P(SharedMemory, CollectivesAllocateNothing) {
  shm::OnThreadsWithPort(
      kSize, shm::kSmallSlot,
      [](shm::ShmPort& port, int rank) {
        std::vector<int> all(kSize);
        std::iota(all.begin(), all.end(), 0);
        shm::ShmCollectives collectives(&port, all);
        const auto shared = port.heap()->Allocate(2 * 60000 * int64_t{sizeof(float)});
        ASSERT_TRUE(shared.ok());
        std::vector<float> private_memory(2 * 60000);
        // Within a post, in a slot, folded where they lie.
        for (const int64_t count : {6, 600, 60000}) {
          for (float* data : {private_memory.data(), reinterpret_cast<float*>(shared->get())}) {
            for (const Case& test : CasesOf(count)) {
              const int64_t allocations = AllocationsOf(
                  test.calls, [&] { ExpectOk(test.call(collectives, data, data + 60000)); },
                  [&](int call) { BeLateInSomeCalls(rank, call); });
              EXPECT_EQ(allocations, 0) << test.name << " of " << count;
            }
          }
        }
      },
      GetParam());
}

TEST(FlightRecorder, AllocatesNothing) {
  FlightRecorder recorder;
  Request request;
  request.name = "module.transformer.h.11.mlp.c_proj.weight";
  request.shape = Shape({16, 3, 7});
  const int64_t allocations = AllocationsOf(3000, [&] {
    const int64_t record = recorder.Submitted(request, Now());
    recorder.Begun(record, recorder.NextRun(request.process_set), Now());
    recorder.Ended(record, StatusCode::kOk, Now());
  });
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(recorder.dropped_count(), 0);
}

// 16, here and today. Who waits drives, so all is seen.
TEST(EngineAllocations, OfACallAreFew) {
  constexpr int kCalls = 1000;
  constexpr int64_t kMost = 20;
  const WaitPolicy tireless{.patience = std::chrono::hours(1), .linger = std::chrono::hours(1)};
  EngineJob job(2, {.shares_memory = true, .wait_policy = tireless});
  job.OnEveryRank([](EngineRank& rank) {
    std::vector<float> data(1000, 0.0F);
    const auto reduce = [&] { ExpectOk(rank.Run(Allreduce("gradient", &data), Pace::kDriven)); };
    for (int thousand = 0; thousand < 4; ++thousand) {
      const int64_t allocations = AllocationsOf(kCalls, reduce);
      EXPECT_LE(allocations, kMost * kCalls) << "in thousand " << thousand;
    }
    EXPECT_GT(rank.engine->stats().frozen_steps, 3 * kCalls);
  });
}

}  // namespace
}  // namespace mydist
