// One rank of a job is stopped: the others name it, and end in time, wherever it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "conformance/deep.h"
#include "engine_job.h"
#include "fakes/forwarding.h"

namespace mydist {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;

constexpr std::chrono::milliseconds kShutdown{500};

// Stops who comes by, as a signal stops a process.
class Gate {
 public:
  void Close() { is_open_.store(false); }
  void Open() {
    is_open_.store(true);
    is_open_.notify_all();
  }
  void Pass() { is_open_.wait(false); }

 private:
  std::atomic<bool> is_open_{true};
};

class GatedPlane final : public testing::ForwardingPlane {
 public:
  GatedPlane(Gate* gate, std::unique_ptr<ControlPlane> inner)
      : ForwardingPlane(std::move(inner)), gate_(gate) {}
  Result<std::optional<IncomingMessage>> Receive() override {
    gate_->Pass();
    return ForwardingPlane::Receive();
  }

 private:
  Gate* const gate_;
};

class GatedTransport final : public testing::ForwardingTransport {
 public:
  GatedTransport(Gate* gate, std::unique_ptr<Transport> inner)
      : ForwardingTransport(std::move(inner)), gate_(gate) {}
  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override {
    gate_->Pass();
    return ForwardingTransport::Exchange(sends, receives);
  }

 private:
  Gate* const gate_;
};

struct Case {
  std::string name;
  std::vector<std::string> hosts;
  bool shares_memory = false;
  int freeze_after = 0;
  int radix = 32;
};

class EngineStall : public ::testing::TestWithParam<std::tuple<Case, int>> {
 protected:
  const Case& layout() const { return std::get<0>(GetParam()); }
  int victim() const { return std::get<1>(GetParam()); }

  JobOptions Options() const {
    JobOptions options{.hosts = layout().hosts, .shares_memory = layout().shares_memory};
    options.config.freeze_after = layout().freeze_after;
    options.config.coordinator_radix = layout().radix;
    options.config.stall_warning = std::chrono::milliseconds(200);
    options.config.stall_shutdown = kShutdown;
    return options;
  }

  JobOptions OptionsWithGate() {
    JobOptions options = Options();
    options.control = [this](int rank,
                             std::unique_ptr<ControlPlane> inner) -> std::unique_ptr<ControlPlane> {
      if (rank != victim()) return inner;
      return std::make_unique<GatedPlane>(&gate_, std::move(inner));
    };
    return options;
  }

  int size() const { return static_cast<int>(layout().hosts.size()); }

  // Runs `body` as each rank but the victim, a thread for each; what the victim does is up to
  // `meanwhile`.
  void OnTheOthers(
      EngineJob& job, const std::function<void(EngineRank&)>& body,
      const std::function<void()>& meanwhile = [] {}) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != victim()) threads.emplace_back([&, rank] { body(job.rank(rank)); });
    }
    meanwhile();
    for (std::thread& thread : threads) thread.join();
  }

  // The time from now until the first of the ranks but the victim has left.
  Duration LeaveWithoutVictim(EngineJob& job, const std::function<void()>& meanwhile) {
    const TimePoint begin = Now();
    std::vector<Duration> times(layout().hosts.size(), Duration::max());
    OnTheOthers(
        job,
        [&](EngineRank& rank) {
          EXPECT_TRUE(rank.engine->Shutdown());
          times[static_cast<size_t>(rank.rank())] = Now() - begin;
        },
        meanwhile);
    return *std::min_element(times.begin(), times.end());
  }

  // All but the victim submit 'a' and learn that it is to blame.
  void ExpectTheOthersBlameIt(EngineJob& job, const std::string& phase) {
    const TimePoint begin = Now();
    OnTheOthers(job, [&](EngineRank& rank) {
      std::vector<float> data(5, 1.0F);
      const Status status = rank.Run(Allreduce("a", &data));
      EXPECT_GE(Now() - begin, kShutdown / 2);
      ExpectError(status, StatusCode::kTimeout, {"rank " + std::to_string(victim()) + " (host "});
      EXPECT_THAT(status.failure().ranks, ElementsAre(victim())) << status.ToString();
      EXPECT_EQ(status.failure().tensor, "a");
      EXPECT_EQ(status.failure().phase, phase) << status.ToString();
    });
  }

  Gate gate_;
};

class EngineStallOverTheNetwork : public EngineStall {};

TEST_P(EngineStall, BetweenCollectivesItIsNamed) {
  EngineJob job(size(), OptionsWithGate());
  job.OnEveryRank([](EngineRank& rank) {
    for (int step = 0; step < 40; ++step) AllreduceStep(rank, step, {"a"});
  });
  EXPECT_EQ(job.rank(0).engine->stats().frozen_steps > 0, layout().freeze_after > 0);
  gate_.Close();
  ExpectTheOthersBlameIt(job, "negotiate");
  gate_.Open();
  std::vector<float> data(5, 1.0F);
  const Status resumed = job.rank(victim()).Run(Allreduce("a", &data));
  EXPECT_THAT(resumed.code(), AnyOf(StatusCode::kTimeout, StatusCode::kPeerLost))
      << resumed.ToString();
}

// A rank that trains on is waited for, and one that is stopped for a moment. One that gives no
// answer is to blame.
TEST_P(EngineStall, InJoinItIsNamed) {
  EngineJob job(size(), OptionsWithGate());
  std::atomic<int> joined{0};
  const auto train_on = [&] {
    std::this_thread::sleep_for(kShutdown * 7 / 10);
    std::vector<float> data(5, 1.0F);
    ExpectOk(job.rank(victim()).Run(Allreduce("a", &data)));
    gate_.Close();
    std::this_thread::sleep_for(kShutdown / 2);
    gate_.Open();
    std::this_thread::sleep_for(kShutdown);
    EXPECT_EQ(joined.load(), 0);
    gate_.Close();
  };
  const auto join = [&](EngineRank& rank) {
    std::vector<float> data(5, 1.0F);
    const Result<Handle> late = rank.Submit(Allreduce("a", &data));
    const Result<Handle> leaving = rank.engine->Join({});
    ExpectOk(rank.Wait(late));
    const Status status = rank.Wait(leaving);
    ++joined;
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.ToString();
    EXPECT_THAT(status.failure().ranks, ElementsAre(victim())) << status.ToString();
    EXPECT_EQ(status.failure().operation, "join");
    EXPECT_EQ(status.failure().finding, kSilentFinding) << status.ToString();
    EXPECT_NE(status.failure().hint, "") << status.ToString();
    const std::string& text = status.message();
    EXPECT_EQ(text.find("join: "), text.rfind("join: ")) << text;  // Once, or not at all.
  };
  OnTheOthers(job, join, train_on);
  gate_.Open();
}

// As one that writes its model: the others wait longer than for one that is silent. A rank that is
// stopped for a moment is none.
TEST_P(EngineStall, ARankThatRunsIsWaitedForAtTheEnd) {
  JobOptions options = OptionsWithGate();
  options.config.shutdown_drain = std::chrono::milliseconds(300);
  EngineJob job(size(), options);
  job.OnEveryRank([](EngineRank& rank) {
    for (int step = 0; step < 10; ++step) AllreduceStep(rank, step, {"a"});
  });
  const Duration left = LeaveWithoutVictim(job, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    gate_.Close();
    std::this_thread::sleep_for(std::chrono::milliseconds(130));
    gate_.Open();
    std::this_thread::sleep_for(std::chrono::milliseconds(370));
    EXPECT_TRUE(job.rank(victim()).engine->Shutdown());
  });
  EXPECT_GE(left, std::chrono::milliseconds(600));
}

TEST_P(EngineStall, AStoppedRankIsNotWaitedForAtTheEnd) {
  JobOptions options = OptionsWithGate();
  options.config.shutdown_drain = std::chrono::milliseconds(200);
  EngineJob job(size(), options);
  job.OnEveryRank([](EngineRank& rank) {
    for (int step = 0; step < 10; ++step) AllreduceStep(rank, step, {"a"});
  });
  gate_.Close();
  const Duration left = LeaveWithoutVictim(job, [] {});
  EXPECT_GE(left, std::chrono::milliseconds(200));
  EXPECT_LT(left, std::chrono::seconds(3));
  gate_.Open();
}

// The time that they have waited in the collective is enough. One of them leaves after the others
// have asked who stays.
TEST_P(EngineStall, ARankFoundSilentIsNotWaitedForAgainAtTheEnd) {
  if (layout().freeze_after > 0) GTEST_SKIP() << "its engine has stopped";
  for (const bool awaits_living : {false, true}) {
    JobOptions options = OptionsWithGate();
    options.config.shutdown_drain = std::chrono::seconds(20);
    EngineJob job(size(), options);
    job.OnEveryRank([](EngineRank& rank) { AllreduceStep(rank, 0, {"a"}); });
    gate_.Close();
    ExpectTheOthersBlameIt(job, "negotiate");
    const TimePoint begin = Now();
    const int last = victim() == size() - 1 ? size() - 2 : size() - 1;
    OnTheOthers(job, [&](EngineRank& rank) {
      if (rank.rank() == last) std::this_thread::sleep_for(std::chrono::milliseconds(400));
      rank.engine->Shutdown(awaits_living);
    });
    EXPECT_LT(Now() - begin, std::chrono::seconds(5)) << awaits_living;
    gate_.Open();
  }
}

// It has agreed, and moves nothing; the others also wait for each other.
TEST_P(EngineStallOverTheNetwork, InACollectiveItIsNamed) {
  JobOptions options = Options();
  options.transport = [this](int rank,
                             std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    if (rank != victim()) return inner;
    return std::make_unique<GatedTransport>(&gate_, std::move(inner));
  };
  EngineJob job(size(), options);
  job.OnEveryRank([](EngineRank& rank) { AllreduceStep(rank, 0, {"a"}); });
  gate_.Close();
  std::vector<float> data(5, 1.0F);
  const Result<Handle> handle = job.rank(victim()).Submit(Allreduce("a", &data));
  ExpectTheOthersBlameIt(job, "reduce");
  gate_.Open();
  const Status resumed = job.rank(victim()).Wait(handle);
  EXPECT_THAT(resumed.code(), AnyOf(StatusCode::kTimeout, StatusCode::kPeerLost))
      << resumed.ToString();
}

const std::vector<Case> kWithoutMemory = {
    {"alone", {"a", "b", "c", "d"}, false, 0},
    {"chain", {"a", "b", "c", "d"}, false, 0, 1},
};
const std::vector<Case> kWithMemory = {
    {"frozen", {"a", "a", "a"}, true, 3},
    {"negotiated", {"a", "a", "a"}, true, 0},
    {"frozen_hosts", {"a", "a", "b"}, true, 3},
};

std::string NameOf(const ::testing::TestParamInfo<std::tuple<Case, int>>& test) {
  return std::get<0>(test.param).name + "_rank" + std::to_string(std::get<1>(test.param));
}

const auto kRanks = ::testing::ValuesIn(InDeep<std::vector<int>>({0, 1, 2}, {0, 2}));
INSTANTIATE_TEST_SUITE_P(WithoutMemory, EngineStall,
                         ::testing::Combine(::testing::ValuesIn(kWithoutMemory), kRanks), NameOf);
INSTANTIATE_TEST_SUITE_P(WithMemory, EngineStall,
                         ::testing::Combine(::testing::ValuesIn(kWithMemory), kRanks), NameOf);
INSTANTIATE_TEST_SUITE_P(WithoutMemory, EngineStallOverTheNetwork,
                         ::testing::Combine(::testing::ValuesIn(kWithoutMemory), kRanks), NameOf);

class SlowTransport final : public testing::ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    return ForwardingTransport::Exchange(sends, receives);
  }
};

// The last tensor is in flight for longer than the settings allow, but waits for no rank.
TEST(EngineNoStall, ALongLineOfCollectivesIsNone) {
  JobOptions options{.hosts = {"a", "b"}};
  options.config.fusion_threshold_bytes = 0;
  options.config.stall_warning = std::chrono::milliseconds(100);
  options.config.stall_shutdown = std::chrono::milliseconds(200);
  options.transport = [](int, std::unique_ptr<Transport> inner) {
    return std::make_unique<SlowTransport>(std::move(inner));
  };
  EngineJob job(2, options);
  const TimePoint begin = Now();
  job.OnEveryRank([](EngineRank& rank) {
    AllreduceStep(rank, 0, {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"});
  });
  EXPECT_GT(Now() - begin, 2 * std::chrono::milliseconds(200));
}

// Its program is interrupted, or has failed and is to end soon.
TEST(EngineLeave, WaitsNoLongerThanItIsWanted) {
  EngineJob job(2);
  std::atomic<int> asked{0};
  const TimePoint begin = Now();
  EXPECT_TRUE(job.rank(1).engine->Shutdown(true, [&] { return ++asked < 3; }));
  EXPECT_EQ(asked.load(), 3);
  EXPECT_LT(Now() - begin, std::chrono::seconds(3));
}

TEST(EngineLeave, WaitsNoLongerThanForSilentRanksWhereNoOthersAreAwaited) {
  JobOptions options;
  options.config.shutdown_drain = std::chrono::milliseconds(200);
  EngineJob job(2, options);
  const TimePoint begin = Now();
  EXPECT_TRUE(job.rank(1).engine->Shutdown(false));
  EXPECT_GE(Now() - begin, std::chrono::milliseconds(200));
  EXPECT_LT(Now() - begin, std::chrono::seconds(3));
}

// The other rank does not come to what init() measures.
TEST(EngineStart, DoesNotWaitForARankWithoutEnd) {
  std::vector<Connection> connections = ConnectLoopback(2);
  EngineOptions options{.topology = *MakeTopology(0, {"a", "a"}),
                        .connection = std::move(connections[0]),
                        .handles = std::make_shared<HandleTable>(),
                        .measures_costs = true};
  options.config.connect_timeout = std::chrono::milliseconds(300);
  const TimePoint begin = Now();
  const auto started = Engine::Start(std::move(options));
  EXPECT_GE(Now() - begin, std::chrono::milliseconds(300));
  ExpectError(started.status(), StatusCode::kTimeout, {"rank 1 (host a) gives no answer"});
}

}  // namespace
}  // namespace mydist
