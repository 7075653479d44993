// Engines that stop with an error while their process lives on: nobody waits for them any more.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "engine_job.h"
#include "fakes/forwarding.h"

namespace {

std::atomic<bool> disk_hangs{false};
std::atomic<int> hung_count{0};  // Calls that came meanwhile.

}  // namespace

// In place of the function of the C library, so that a disk hangs once a test says so.
extern "C" ssize_t pwrite(int descriptor, const void* bytes, size_t count, off_t offset) {
  if (disk_hangs.load()) ++hung_count;
  while (disk_hangs.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return syscall(SYS_pwrite64, descriptor, bytes, count, offset);
}

namespace mydist {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A control plane whose Receive fails once it is told to.
class BreakablePlane final : public testing::ForwardingPlane {
 public:
  using ForwardingPlane::ForwardingPlane;

  // From any thread.
  void Break() {
    is_broken_.store(true);
    Wake();
  }
  // The thread that was the last to sleep, or is about to.
  std::thread::id last_sleeper() const { return last_sleeper_.load(); }

  Result<std::optional<IncomingMessage>> Receive() override {
    if (is_broken_.load()) return Status::Internal("the plane is broken");
    return ForwardingPlane::Receive();
  }
  void Await(TimePoint deadline) override {
    last_sleeper_.store(std::this_thread::get_id());
    ForwardingPlane::Await(deadline);
  }

 private:
  std::atomic<bool> is_broken_{false};
  std::atomic<std::thread::id> last_sleeper_;
};

class EngineFarewell : public ::testing::Test {
 protected:
  // Of three ranks.
  void Start(JobOptions options) {
    options.control = [this](int rank, std::unique_ptr<ControlPlane> inner) {
      auto plane = std::make_unique<BreakablePlane>(std::move(inner));
      planes_[static_cast<size_t>(rank)] = plane.get();
      return plane;
    };
    job_ = std::make_unique<EngineJob>(3, options);
  }
  Result<Handle> Submit(int rank, const std::string& name) {
    return job_->rank(rank).Submit(Allreduce(name, &data_[static_cast<size_t>(rank)]));
  }

  // On rank 0. Waits no longer, so that the test ends what keeps it.
  void ExpectErrorInTime(Handle handle) {
    const auto outcome = job_->rank(0).engine->Wait(handle, Now() + std::chrono::seconds(5));
    ASSERT_TRUE(outcome.ok() && outcome->has_value());
    EXPECT_EQ((*outcome)->code(), StatusCode::kInternal);
  }

  std::vector<std::vector<float>> data_{3, std::vector<float>(5, 1.0F)};
  std::vector<BreakablePlane*> planes_{3};
  std::unique_ptr<EngineJob> job_;
};

// The caller that met it drives, and has nothing to sleep for.
TEST_F(EngineFarewell, WhoDrivesAsleepIsNotKeptWaitingByItsOwnEngine) {
  JobOptions options;
  options.wait_policy = {.patience = Duration::zero(), .linger = std::chrono::hours(1)};
  Start(options);
  std::thread caller([this] {
    const Status status = job_->rank(0).Run(Allreduce("x", data_.data()), Pace::kDriven);
    EXPECT_EQ(status.code(), StatusCode::kInternal) << status.ToString();
  });
  while (planes_[0]->last_sleeper() != caller.get_id()) std::this_thread::yield();
  planes_[0]->Break();
  caller.join();
}

// Rank 0 still waits for events of the others, a second at most.
TEST_F(EngineFarewell, TheTimelineKeepsNobodyFromTheError) {
  JobOptions options;
  options.timeline_path = ::testing::TempDir() + "the_timeline_keeps_nobody.json";
  Start(options);
  const Result<Handle> handle = Submit(0, "x");
  const TimePoint begin = Now();
  planes_[0]->Break();
  EXPECT_EQ(job_->rank(0).Wait(handle).code(), StatusCode::kInternal);
  EXPECT_LT(Now() - begin, std::chrono::milliseconds(700));
}

// Stands for the error output: a pipe that is full and that no thread reads.
class FullErrorOutput {
 public:
  FullErrorOutput() : before_(dup(STDERR_FILENO)) {
    MYDIST_CHECK(pipe(ends_.data()) == 0);
    fcntl(ends_[1], F_SETFL, O_NONBLOCK);
    const std::string bytes(4096, ' ');
    while (write(ends_[1], bytes.data(), bytes.size()) > 0) {
    }
    fcntl(ends_[1], F_SETFL, 0);
    dup2(ends_[1], STDERR_FILENO);
  }
  // A thread that waits for room in the pipe goes on. The pipe stays open for it.
  ~FullErrorOutput() {
    dup2(before_, STDERR_FILENO);
    close(before_);
    std::string bytes(1 << 16, ' ');
    MYDIST_CHECK(read(ends_[0], bytes.data(), bytes.size()) > 0);
  }
  FullErrorOutput(const FullErrorOutput&) = delete;
  FullErrorOutput& operator=(const FullErrorOutput&) = delete;

 private:
  const int before_;
  std::array<int, 2> ends_{};
};

TEST_F(EngineFarewell, AFullErrorOutputKeepsNobodyFromTheError) {
  Start({});
  const Result<Handle> handle = Submit(0, "x");
  const FullErrorOutput full;
  planes_[0]->Break();
  ExpectErrorInTime(*handle);
}

TEST_F(EngineFarewell, ADiskThatHangsKeepsNobodyFromTheError) {
  JobOptions options;
  options.timeline_path = ::testing::TempDir() + "the_disk_hangs.json";
  Start(options);
  hung_count.store(0);
  disk_hangs.store(true);
  const Result<Handle> handle = Submit(0, "x");
  for (const TimePoint limit = Now() + std::chrono::seconds(5); Now() < limit;) {
    if (hung_count.load() > 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GT(hung_count.load(), 0) << "the disk is not waited for";
  planes_[0]->Break();
  ExpectErrorInTime(*handle);
  disk_hangs.store(false);
}

// Not called a stuck collective, and the user may give it up.
TEST_F(EngineFarewell, ADiskThatHangsAtTheEndIsWaitedForUntilTheUserGivesUp) {
  JobOptions options;
  options.timeline_path = ::testing::TempDir() + "the_disk_hangs_at_the_end.json";
  options.config.shutdown_drain = std::chrono::milliseconds(100);  // A stuck rank has 2.2 s then.
  Start(options);
  hung_count.store(0);
  disk_hangs.store(true);
  std::vector<std::thread> others;
  for (const int rank : {1, 2}) {
    others.emplace_back([this, rank] { EXPECT_TRUE(job_->rank(rank).engine->Shutdown()); });
  }
  const TimePoint patience_end = Now() + std::chrono::seconds(3);
  EXPECT_TRUE(
      job_->rank(0).engine->Shutdown(/*awaits_living=*/true, [&] { return Now() < patience_end; }));
  EXPECT_GE(Now(), patience_end);
  EXPECT_GT(hung_count.load(), 0);
  for (std::thread& other : others) other.join();
  disk_hangs.store(false);
}

// Rank 2 fails, rank 0 waits for it in one set and rank 1 for rank 0 in another. The root stops
// without having told that rank 2 has left: rank 1 learns of it from the end of rank 0.
TEST(EngineFarewellChain, EachRankNamesTheFirst) {
  std::vector<std::vector<float>> data{4, std::vector<float>(5, 1.0F)};
  EngineJob job(3, {.cut_off = 2});
  std::vector<ProcessSetId> sets;  // As rank 0 has them, so all.
  const auto add_set = [&](const std::vector<int32_t>& ranks) {
    job.OnEveryRank([&](EngineRank& rank) {
      ProcessSetId id = -1;
      ASSERT_TRUE(AddSet(rank, ranks, &id).ok());
      if (rank.rank() == 0) sets.push_back(id);
    });
  };
  const auto submit = [&](int rank, ProcessSetId set, std::vector<float>* own) {
    std::vector<Submission> tensors;
    tensors.push_back(Allreduce("x", own));
    tensors.back().request.process_set = set;
    return job.rank(rank).engine->Submit(std::move(tensors));
  };
  add_set({0, 2});
  add_set({0, 1});
  const Result<Handle> first = submit(2, sets[0], &data[2]);
  const Result<Handle> last = submit(1, sets[1], &data[1]);
  add_set({0, 1, 2});  // Moves no data. By now the root knows of both.
  const Result<Handle> middle = submit(0, sets[0], &data[0]);
  const Result<Handle> other = submit(0, sets[1], &data[3]);
  EXPECT_THAT(job.rank(2).Wait(first).message(), HasSubstr(kCutOffText));
  for (const auto& [rank, handle] :
       {std::pair(0, middle), std::pair(0, other), std::pair(1, last)}) {
    const Status status = job.rank(rank).Wait(handle);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << rank << ": " << status.ToString();
    EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 2 has left the job: "),
                                        HasSubstr(kCutOffText), Not(HasSubstr("rank 0 has left"))));
  }
}

// It would wait for the root to say that all have left.
TEST_F(EngineFarewell, NobodyWaitsForALeaveThatTheRootDidNotWaitFor) {
  JobOptions options;
  options.config.shutdown_drain = std::chrono::seconds(2);
  Start(options);
  job_->OnEveryRank([](EngineRank& rank) { AllreduceStep(rank, 0, {"x"}); });
  job_->rank(0).engine->Shutdown(false);
  EXPECT_EQ(job_->rank(1).Wait(Submit(1, "x")).code(), StatusCode::kAborted);
  const TimePoint begin = Now();
  job_->Shutdown();
  EXPECT_LT(Now() - begin, options.config.shutdown_drain);
}

}  // namespace
}  // namespace mydist
