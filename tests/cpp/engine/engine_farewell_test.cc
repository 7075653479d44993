// Engines that stop with an error while their process lives on: nobody waits for them any more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "engine_job.h"
#include "fakes/forwarding.h"

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
    std::vector<Submission> tensors;
    tensors.push_back(Allreduce(name, &data_[static_cast<size_t>(rank)]));
    return job_->rank(rank).engine->Submit(std::move(tensors));
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
