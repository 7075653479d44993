// LaneBackend, from its start to its end: what is no operation on tensors.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "base/log.h"
#include "job/extension.h"
#include "lanes/monitored_barrier.h"
#include "torch/gil.h"
#include "torch/process_group/lane_backend.h"
#include "torch/process_group/lane_work.h"

namespace mydist {
namespace {

// In front of the bytes of a member; the other one: there are none, as it has begun a later
// attempt.
constexpr uint8_t kHere = 1;
constexpr uint8_t kLeft = 0;
// A start has fewer: one for the greeting, five for memory, and those of a transport.
constexpr int kMostRounds = 16;

// What is said of another member that is ahead.
class Overtaken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Behind the first line is where torch raised it.
std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

template <typename Call>
Status WithStatus(const Call& call) {
  try {
    call();
  } catch (const Overtaken& error) {
    return Status::Aborted(error.what());
  } catch (const std::exception& error) {
    return Status::Internal("the start of a group: " + FirstLine(error.what()));
  }
  return Status::Ok();
}

// GroupMeeting: how the members of a process group find each other in torch's store, in which each
// member puts its bytes under a key of its own and reads those of the others. Used by one thread.
//
// Keys of former meetings stay in the store: a group may be destroyed and made again under the same
// prefix, and a start may fail. So each member counts its attempts in the store, and a meeting has
// the number of the attempt. When a start has failed on some members only, these come again with a
// later number. They mark what they did not write before: the others, which wait for that, follow.
class GroupMeeting {
 public:
  // `store` has a prefix of the group's own.
  GroupMeeting(c10::intrusive_ptr<c10d::Store> store, int rank, int size);

  // Begins an attempt: the next one, or the latest that another member has begun. The errors of the
  // store become kInternal, here as in Round.
  Status Begin();
  // One round of the attempt. kAborted when another member has begun a later one.
  Result<std::vector<Bytes>> Round(const Bytes& mine);
  // Whether another member has begun a later attempt, and time is left for it.
  bool IsOvertaken();

 private:
  std::string BegunKey(int rank) const { return group_ + "begun/" + std::to_string(rank); }
  // The key of a member's bytes in a round of an attempt.
  std::string Key(int64_t attempt, int round, int rank) const;
  // The latest attempt of the other members.
  int64_t LatestOfOthers();
  // Marks what this member has not written in earlier attempts.
  void LeaveAttempts(int64_t first, int64_t end);
  // The bytes of another member in this round.
  Bytes BytesOf(int other);
  // What to do when they have not come.
  std::string Advice(int other);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  const std::string group_;  // Groups of several sizes may share a prefix.
  const TimePoint deadline_;
  int64_t attempt_ = 0;
  int round_ = 0;
};

GroupMeeting::GroupMeeting(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      group_("mydist/" + std::to_string(size) + "/"),
      deadline_(Now() + store_->getTimeout()) {}

std::string GroupMeeting::Key(int64_t attempt, int round, int rank) const {
  return group_ + std::to_string(attempt) + "/" + std::to_string(round) + "/" +
         std::to_string(rank);
}

Status GroupMeeting::Begin() {
  return WithStatus([this] {
    const bool is_first = attempt_ == 0;
    const int64_t before = store_->add(BegunKey(rank_), 0);
    attempt_ = is_first ? before + 1 : std::max(before + 1, LatestOfOthers());
    round_ = 0;
    store_->add(BegunKey(rank_), attempt_ - before);
    LeaveAttempts(std::max<int64_t>(before, 1), attempt_);
  });
}

void GroupMeeting::LeaveAttempts(int64_t first, int64_t end) {
  for (int64_t attempt = first; attempt < end; ++attempt) {
    for (int round = 0; round < kMostRounds; ++round) {
      store_->compareSet(Key(attempt, round, rank_), Bytes(), Bytes{kLeft});
    }
  }
}

Result<std::vector<Bytes>> GroupMeeting::Round(const Bytes& mine) {
  std::vector<Bytes> all;
  MYDIST_RETURN_IF_ERROR(WithStatus([&] {
    Bytes marked(1 + mine.size(), kHere);
    std::copy(mine.begin(), mine.end(), marked.begin() + 1);
    store_->set(Key(attempt_, round_, rank_), marked);
    for (int other = 0; other < size_; ++other) {
      all.push_back(other == rank_ ? mine : BytesOf(other));
    }
    ++round_;
  }));
  return all;
}

Bytes GroupMeeting::BytesOf(int other) {
  Bytes marked;
  try {
    marked = store_->get(Key(attempt_, round_, other));
  } catch (const std::exception& error) {
    throw std::runtime_error("the store has nothing of rank " + std::to_string(other) +
                             " of the group" + Advice(other) +
                             " The store says: " + FirstLine(error.what()));
  }
  if (marked.empty() || marked.front() != kHere) {
    throw Overtaken("rank " + std::to_string(other) + " of the group has left attempt " +
                    std::to_string(attempt_) + " of its start and begun a later one");
  }
  return {marked.begin() + 1, marked.end()};
}

std::string GroupMeeting::Advice(int other) {
  int64_t theirs = 0;
  const Status asked = WithStatus([&] { theirs = store_->add(BegunKey(other), 0); });
  if (!asked.ok()) return ".";
  if (theirs == 0) {
    return ", which has not begun. Is that process alive, and does it start the same group?";
  }
  if (theirs < attempt_) {
    return " for attempt " + std::to_string(attempt_) + "; that rank has begun " +
           std::to_string(theirs) +
           ". Where some ranks start a group again, all have to: destroy it on the others, too.";
  }
  return ", which has begun. See its output.";
}

bool GroupMeeting::IsOvertaken() {
  bool is_overtaken = false;
  const Status asked = WithStatus([&] { is_overtaken = LatestOfOthers() > attempt_; });
  return asked.ok() && is_overtaken && Now() < deadline_;
}

int64_t GroupMeeting::LatestOfOthers() {
  int64_t latest = 0;
  for (int other = 0; other < size_; ++other) {
    if (other != rank_) latest = std::max(latest, store_->add(BegunKey(other), 0));
  }
  return latest;
}

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
