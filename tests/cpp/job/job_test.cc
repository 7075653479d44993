// Several jobs in one process: at once and one after the other, each with its own engine, handles
// and connections, and nothing left of them.
#include "job/job.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <latch>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "conformance/held_by_process.h"
#include "conformance/status_checks.h"
#include "engine/outcome_of.h"
#include "job/job_start.h"
#include "transport/rank_threads.h"

namespace mydist {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kElements = 100'000;

// What a process holds that a job could leave behind.
struct Holdings {
  int64_t descriptors = 0;
  int64_t threads = 0;
  int segments = 0;  // Of shared memory.

  bool operator==(const Holdings&) const = default;
};

Holdings HoldingsNow() {
  Holdings now{.descriptors = OpenFileCount(), .threads = LivingThreadCount()};
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    now.segments += line.find("/dev/shm") != std::string::npos ? 1 : 0;
  }
  return now;
}

void PrintTo(const Holdings& holdings, std::ostream* out) {
  *out << holdings.descriptors << " descriptors, " << holdings.threads << " threads, "
       << holdings.segments << " segments";
}

using JobPointer = std::shared_ptr<Job>;

Status Wait(Job& job, const Result<Handle>& handle) {
  if (!handle.ok()) return handle.status();
  auto outcome = job.engine().Wait(*handle, Now() + std::chrono::seconds(60));
  if (!outcome.ok()) return outcome.status();
  return outcome->value_or(Status::Internal("the handle did not complete in 60 s"));
}

// Each element is `scale` × (rank + 1) on every rank; the sum over both must come back.
void ReduceAgainAndAgain(Job& job, float scale, int rounds) {
  const int rank = job.engine().topology().rank;
  for (int round = 0; round < rounds; ++round) {
    std::vector<float> data(kElements, scale * static_cast<float>(rank + 1));
    // The same in every job: names are a job's own.
    ExpectOk(Wait(job, job.engine().Submit(OneTensor("x", &data), Pace::kNow)));
    EXPECT_EQ(data, std::vector<float>(kElements, scale * 3)) << "round " << round;
  }
}

// One rank of a job, connected over loopback.
Result<JobPointer> RunOverLoopback(Connection connection) {
  StartedJob started{.backend = "loopback", .topology = {}, .connection = {}, .shm = nullptr};
  started.topology =
      MakeTopology(connection.rank, std::vector<std::string>(kRanks, "host")).value();
  started.connection = std::move(connection);
  Config config;
  config.bucket_size_bytes = 0;
  return Job::Run(std::move(started), {}, std::move(config));
}

using StartRank = std::function<Result<JobPointer>(int job, int rank)>;

// `count` jobs at the same time, every rank of every one a thread.
void RunJobsAtOnce(int count, const StartRank& start) {
  std::atomic<int> reduced{0};
  RunAsRanks(count * kRanks, [&](int thread) {
    const int number = thread / kRanks;
    Result<JobPointer> job = start(number, thread % kRanks);
    ASSERT_TRUE(job.ok()) << job.status().ToString();
    ReduceAgainAndAgain(**job, static_cast<float>(number + 1), 20);
    ++reduced;
    // The others go on while one job ends.
    EXPECT_TRUE((*job)->Shutdown().ok());
    EXPECT_TRUE((*job)->Shutdown().ok()) << "once more changes nothing";
  });
  EXPECT_EQ(reduced, count * kRanks);
}

void RunLoopbackJobs(int count) {
  std::vector<std::vector<Connection>> connections;
  for (int job = 0; job < count; ++job) connections.push_back(ConnectLoopback(kRanks));
  RunJobsAtOnce(count, [&](int job, int rank) {
    return RunOverLoopback(
        std::move(connections[static_cast<size_t>(job)][static_cast<size_t>(rank)]));
  });
}

TEST(Jobs, TwoAtOnceReduceEachTheirOwn) {
  RunLoopbackJobs(1);  // What a first job leaves once and for all is no leak.
  const Holdings before = HoldingsNow();
  RunLoopbackJobs(2);
  EXPECT_EQ(HoldingsNow(), before);
}

// From the meeting on, with an arena of their own.
TEST(Jobs, TwoAtOnceMeetAndShareMemory) {
  const auto run = [](int count) {
    std::vector<std::unique_ptr<InMemoryRendezvous>> meetings;
    for (int job = 0; job < count; ++job) {
      meetings.push_back(std::make_unique<InMemoryRendezvous>(kRanks));
    }
    RunJobsAtOnce(count, [&](int job, int rank) {
      InitOptions options;
      options.rank = rank;
      options.size = kRanks;
      options.exchange = meetings[static_cast<size_t>(job)]->ForRank(rank);
      return Job::Start(options, Config{});
    });
  };
  run(1);
  const Holdings before = HoldingsNow();
  run(2);
  EXPECT_EQ(HoldingsNow(), before);
}

TEST(Jobs, AHandleCanBeAskedForWhenItsJobIsOver) {
  std::vector<Connection> connections = ConnectLoopback(kRanks);
  std::latch all_have_submitted(kRanks);  // After the first has left, no other can.
  RunAsRanks(kRanks, [&](int rank) {
    JobPointer job = RunOverLoopback(std::move(connections[static_cast<size_t>(rank)])).value();
    const std::shared_ptr<HandleTable> handles = job->handles();
    std::vector<float> data(4, 1.0F);
    const Result<Handle> handle =
        job->engine().Submit(OneTensor("only here " + std::to_string(rank), &data), Pace::kNow);
    all_have_submitted.arrive_and_wait();
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    job.reset();
    const auto outcome = handles->Wait(*handle, Now() + std::chrono::seconds(10));
    ASSERT_TRUE(outcome.ok() && outcome->has_value());
    EXPECT_EQ((*outcome)->code(), StatusCode::kAborted);
  });
}

TEST(Jobs, OneThatDoesNotStartSaysInWhichPhase) {
  Config config;
  config.algorithm = "no such algorithm";
  const Status unknown = Job::Start({.rank = 0, .size = 1}, config).status();
  EXPECT_EQ(unknown.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(unknown.failure().phase, "start");

  InitOptions alone = {.rank = 0, .size = 2};
  alone.exchange = [](const Bytes&) -> Result<std::vector<Bytes>> {
    return Status::PeerLost("rank 1 is gone").About({.ranks = {1}});
  };
  const Failure lost = Job::Start(alone, Config{}).status().failure();
  EXPECT_EQ(lost.phase, "start");
  EXPECT_EQ(lost.ranks, std::vector<int>{1});
}

}  // namespace
}  // namespace mydist
