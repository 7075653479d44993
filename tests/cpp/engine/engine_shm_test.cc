// Engines whose ranks share memory: who is held up or fails in a collective. That no tensor passes
// through the backend: engine_hosts_test.
#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <future>
#include <latch>
#include <thread>

#include "engine/engine_job.h"

namespace mydist {
namespace {

using ::testing::HasSubstr;

// Stderr of this process, read while it is written.
class StderrPipe {
 public:
  StderrPipe() : kept_(dup(STDERR_FILENO)) {
    EXPECT_EQ(pipe(ends_.data()), 0);
    dup2(ends_[1], STDERR_FILENO);
  }
  ~StderrPipe() {
    dup2(kept_, STDERR_FILENO);
    for (const int end : {kept_, ends_[0], ends_[1]}) close(end);
  }
  StderrPipe(const StderrPipe&) = delete;
  StderrPipe& operator=(const StderrPipe&) = delete;

  // Everything up to the end of the line with `part`.
  std::string ReadUntil(const std::string& part) const {
    std::string text;
    char next = 0;
    while (next != '\n' || text.find(part) == std::string::npos) {
      if (read(ends_[0], &next, 1) != 1) return text;
      text += next;
    }
    return text;
  }

 private:
  const int kept_;
  std::array<int, 2> ends_{};
};

// It has been negotiated, so nobody else warns.
TEST(EngineShmTest, ARankThatStopsInACollectiveIsNamedWithIt) {
  const StderrPipe errors;
  std::latch warned(1);
  std::string warning;
  JobOptions options{.shares_memory = true};
  options.config.stall_warning = std::chrono::milliseconds(1);
  EngineJob job(2, options);
  std::thread reader([&] {
    warning = errors.ReadUntil("gives no answer");
    warned.count_down();
  });
  job.OnEveryRank([&](EngineRank& rank) {
    const std::vector<int32_t> input(1000, rank.rank());
    std::vector<int32_t> output;
    Submission gather = WithOutput(OpKind::kAllgather, "rows", Shape({1000}), input, &output);
    if (rank.rank() == 1) {
      gather.allocate = [&warned, allocate = gather.allocate](const Shape& shape) {
        warned.wait();
        return allocate(shape);
      };
    }
    EXPECT_TRUE(rank.Run(std::move(gather)).ok());
    EXPECT_EQ(output.back(), 1);
  });
  reader.join();
  EXPECT_THAT(warning, HasSubstr("allgather 'rows': it has begun and has waited for "));
  EXPECT_THAT(warning, HasSubstr("rank 1 (host host-a) gives no answer"));
}

// One rank fails, and one is held up in the same collective: the third gets its error all the same,
// and what it gave to the collective is not freed before the process ends.
TEST(EngineShmTest, OneThatIsHeldUpKeepsNobodyFromItsError) {
  EngineJob job(3, {.shares_memory = true});
  std::promise<void> survivor_knows;
  std::weak_ptr<std::vector<int32_t>> given;
  job.OnEveryRank([&](EngineRank& rank) {
    const auto input = std::make_shared<std::vector<int32_t>>(1 << 20);
    std::vector<int32_t> output;
    Submission gather = WithOutput(OpKind::kAllgather, "rows", Shape({1 << 20}), *input, &output);
    if (rank.rank() == 0) {
      given = input;
      gather.keep_alive = input;
    }
    if (rank.rank() == 1) {
      gather.allocate = [](const Shape&) { return Status::Internal("no memory"); };
    }
    if (rank.rank() == 2) {
      gather.allocate = [&, allocate = gather.allocate](const Shape& shape) {
        const auto known = survivor_knows.get_future().wait_for(std::chrono::seconds(30));
        EXPECT_EQ(known, std::future_status::ready);
        return allocate(shape);
      };
    }
    const Status status = rank.Run(std::move(gather));
    if (rank.rank() == 0) survivor_knows.set_value();
    EXPECT_THAT(status.message(), HasSubstr("no memory")) << "rank " << rank.rank();
  });
  job.Shutdown();
  EXPECT_FALSE(given.expired());
}

// Without shared memory the job of these tests would indeed fail.
TEST(EngineShmTest, TheBackendOfTheseTestsRefusesTensors) {
  RefusingTransport transport(std::move(ConnectLoopback(2)[0].transport), {"a", "a"});
  const uint8_t byte = 0;
  const SendTransfer send{1, &byte, 1};
  EXPECT_THAT(transport.Exchange({&send, 1}, {}).ToString(),
              HasSubstr("a tensor passed through the backend"));
}

}  // namespace
}  // namespace mydist
