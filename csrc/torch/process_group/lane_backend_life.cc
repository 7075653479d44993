// LaneBackend, from its start to its end: what is no operation on tensors.
#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "job/extension.h"
#include "lanes/monitored_barrier.h"
#include "torch/gil.h"
#include "torch/process_group/group_meeting.h"
#include "torch/process_group/lane_backend.h"
#include "torch/process_group/post_operation.h"

namespace mydist {
namespace {

// A clock of nanoseconds holds no more than 292 years.
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365 * 100);

std::shared_ptr<GroupLane> OpenLane(const c10::intrusive_ptr<c10d::Store>& store,
                                    const LaneBackend::Members& members, const std::string& name) {
  const Config config = ValueOrDistError(ConfigWithExtensions());
  SetLogLevel(config.log_level);  // Without mydist.init() nothing else does.
  const int size = static_cast<int>(members.world_ranks.size());
  LaneOptions options{.rank = members.rank,
                      .size = size,
                      .name = name,
                      .exchange = {},
                      .ranks = members.world_ranks,
                      .world_size = members.world_size,
                      .prefers_mpi = members.prefers_mpi,
                      .rank_ends = members.rank_ends};
  std::shared_ptr<GroupMeeting> meeting;
  if (size > 1) {
    meeting = std::make_shared<GroupMeeting>(store, members.rank, size);
    options.exchange = [meeting](const Bytes& mine) { return meeting->Round(mine); };
  }
  for (;;) {
    if (meeting != nullptr) ThrowIfDistError(meeting->Begin());
    Result<std::shared_ptr<GroupLane>> lane = GroupLane::Open(options, config);
    if (lane.ok() || meeting == nullptr || !meeting->IsOvertaken()) {
      return ValueOrDistError(std::move(lane));
    }
  }
}

// Released: threads of a lane may be in callbacks that need the GIL, or drop the last reference to
// a tensor. Nothing where the caller has no GIL.
class Released {
 public:
  Released() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) released_.emplace();
  }

 private:
  std::optional<WithoutGil> released_;
};

}  // namespace

LaneBackend::LaneBackend(const c10::intrusive_ptr<c10d::Store>& store, const Members& members,
                         std::chrono::milliseconds timeout, const std::string& name)
    : Backend(members.rank, static_cast<int>(members.world_ranks.size())),
      members_(members),
      options_(c10::make_intrusive<Options>("mydist", timeout)),
      lane_(OpenLane(store, members, name)) {}

LaneBackend::~LaneBackend() {
  shutdown();
  // In a forked child the lane stays: its end would tell the other ranks that this one has left,
  // and wait for threads that only the parent has.
  if (!lane_->CheckProcess().ok()) new std::shared_ptr<GroupLane>(lane_);  // NOLINT
}

void LaneBackend::shutdown() {
  const Released released;
  // A forked child has neither the threads nor a right to the memory.
  if (lane_->CheckProcess().ok()) lane_->Shutdown();
}

void LaneBackend::abort() {
  CheckProcess();
  const Released released;
  lane_->Abort(Status::Aborted("group '" + lane_->name() + "' was destroyed"));
}

c10::intrusive_ptr<c10d::Backend> LaneBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::vector<int>& ranks,
                                                     const c10::intrusive_ptr<Options>& opts) {
  const auto place = std::find(ranks.begin(), ranks.end(), getRank());
  if (place == ranks.end()) return nullptr;
  Members some = members_;
  some.rank = static_cast<int>(place - ranks.begin());
  some.world_ranks.clear();
  for (const int rank : ranks) {
    some.world_ranks.push_back(members_.world_ranks[static_cast<size_t>(rank)]);
  }
  return c10::make_intrusive<LaneBackend>(store, some, opts->timeout, opts->group_name);
}

void LaneBackend::startCoalescing() {
  MutexLock lock(coalesced_mutex_);
  coalesced_[std::this_thread::get_id()].clear();
}

LaneBackend::WorkPtr LaneBackend::Note(WorkPtr work) {
  MutexLock lock(coalesced_mutex_);
  const auto own = coalesced_.find(std::this_thread::get_id());
  if (own != coalesced_.end()) own->second.push_back(work);
  return work;
}

LaneBackend::WorkPtr LaneBackend::endCoalescing() {
  std::vector<WorkPtr> works;
  {
    MutexLock lock(coalesced_mutex_);
    const auto own = coalesced_.find(std::this_thread::get_id());
    if (own != coalesced_.end()) {
      works = std::move(own->second);
      coalesced_.erase(own);
    }
  }
  if (!works.empty()) return c10::make_intrusive<SeveralWorks>(std::move(works));
  auto nothing = NewFuture();
  CompleteFuture(*nothing, {}, nullptr);
  return c10d::Work::create_from_future(nothing);
}

c10d::ErrorType LaneBackend::getError() {
  const Status error = lane_->Stopped();
  if (error.ok()) return c10d::ErrorType::SUCCESS;
  if (!lane_->IsOwn(error)) return c10d::ErrorType::REMOTE_ERROR;
  if (error.code() == StatusCode::kTimeout) return c10d::ErrorType::TIMEOUT;
  const std::vector<int>& blamed = error.failure().ranks;
  const bool is_remote = !blamed.empty() && blamed.front() != getRank();
  return is_remote ? c10d::ErrorType::REMOTE_ERROR : c10d::ErrorType::COMM_ERROR;
}

void LaneBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool /*waits_for_all*/) {
  CheckProcess();
  const Released released;
  const auto look = [this] { static_cast<void>(lane_->LookForGivenUp()); };
  const Status passed = MonitoredBarrier(
      lane_->posts(),
      {getRank(), getSize(), lane_->name(), ++barrier_count_, LimitOf(opts.timeout), look});
  ThrowIfDistError(passed);
}

void LaneBackend::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  TORCH_CHECK(hook_ == nullptr,
              "mydist: a process group has one completion hook, and this one has "
              "it already");
  onCompletionHook_ = std::move(hook);
  hook_ = std::make_shared<CompletionHook>(onCompletionHook_);
}

void LaneBackend::waitForPendingWorks() {
  const Released released;
  if (hook_ != nullptr) hook_->Wait();
}

at::Tensor LaneBackend::allocateTensor(long count, at::TensorOptions options) {
  TORCH_CHECK_VALUE(options.device().is_cpu(), "mydist: allocate_tensor got the device ",
                    options.device().str(), ", expected the CPU");
  TORCH_CHECK_VALUE(count >= 0, "mydist: allocate_tensor got ", count, " elements");
  return at::empty({count}, options);
}

void LaneBackend::CheckProcess() const { ThrowIfDistError(lane_->CheckProcess()); }

std::chrono::milliseconds LaneBackend::LimitOf(std::chrono::milliseconds timeout) const {
  return std::min(timeout == c10d::kUnsetTimeout ? options_->timeout : timeout, kLongestTimeout);
}

}  // namespace mydist
