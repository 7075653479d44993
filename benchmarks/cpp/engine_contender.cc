#include <chrono>
#include <cstring>

#include "contender.h"
#include "job/process.h"

namespace mydist::bench {
namespace {

// Calls after which a schedule that has not frozen is not expected to.
constexpr int kPatience = 100;

// mydist as a program meets it: submitted to the engine, which the waiting caller drives.
class Engine final : public Contender {
 public:
  explicit Engine(std::shared_ptr<float> memory) : memory_(std::move(memory)) {}

  std::string name() const override { return "mydist-engine"; }
  float* memory() override { return memory_.get(); }

  Status Allreduce(float* data, int64_t count) override {
    // A tensor has one name wherever it comes again.
    const std::string name = std::to_string(data - memory()) + "+" + std::to_string(count);
    return Reduce(name, data, count);
  }

  // A sum of how many ranks negotiate: all of them hear whether the schedule has frozen.
  Status Barrier() override {
    MYDIST_ASSIGN_OR_RETURN(const EngineStats stats, process::Stats());
    negotiating_count_ = stats.frozen_steps == frozen_steps_ ? 1.0F : 0.0F;
    frozen_steps_ = stats.frozen_steps;
    MYDIST_RETURN_IF_ERROR(Reduce("barrier", &negotiating_count_, 1));
    ++barrier_count_;
    has_settled_ = has_settled_ || negotiating_count_ == 0;
    return Status::Ok();
  }

  // Under a name of its own, or it would begin a step.
  Status AwaitOthers() override { return Reduce("finish", &unused_, 1); }

  bool IsSettled() const override {
    return negotiating_count_ == 0 || (!has_settled_ && barrier_count_ > kPatience);
  }

  Status Leave() override { return process::Shutdown(); }

 private:
  Status Reduce(std::string name, float* data, int64_t count) {
    std::vector<Submission> tensors(1);
    tensors[0].request.name = std::move(name);
    tensors[0].request.shape = Shape({count});
    tensors[0].input = tensors[0].output = data;
    MYDIST_ASSIGN_OR_RETURN(const Handle handle,
                            process::Submit(std::move(tensors), Pace::kDriven));
    MYDIST_ASSIGN_OR_RETURN(const std::optional<Status> outcome,
                            process::WaitWhile(handle, std::chrono::hours(1), [] { return true; }));
    if (!outcome) return Status::Internal("a wait without a deadline has ended too early");
    return *outcome;
  }

  const std::shared_ptr<float> memory_;
  float negotiating_count_ = 0;
  int64_t frozen_steps_ = 0;
  int barrier_count_ = 0;
  float unused_ = 0;
  bool has_settled_ = false;
};

Result<std::unique_ptr<Contender>> Start(Ranks* ranks, int64_t bytes) {
  MYDIST_RETURN_IF_ERROR(
      process::Init({.rank = ranks->rank(),
                     .size = ranks->size(),
                     .backend = "local",
                     .exchange = [ranks](const Bytes& mine) { return ranks->Exchange(mine); }}));
  MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<uint8_t> memory, process::AllocateShared(bytes));
  if (memory == nullptr) return Status::Internal("the ranks of this host have no heap in common");
  std::memset(memory.get(), 0, static_cast<size_t>(bytes));
  return std::unique_ptr<Contender>(
      new Engine(std::shared_ptr<float>(memory, reinterpret_cast<float*>(memory.get()))));
}

}  // namespace

Entry MakeEngine(Ranks* ranks, int64_t bytes) {
  auto made = Start(ranks, bytes);
  if (!made.ok()) return {"mydist-engine", nullptr, made.status().message()};
  return {"mydist-engine", std::move(made).value(), ""};
}

}  // namespace mydist::bench
