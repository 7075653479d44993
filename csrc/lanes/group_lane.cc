#include "lanes/group_lane.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/thread.h"
#include "planner/collectives_choice.h"
#include "world/process_set.h"

namespace mydist {
namespace {

// What a member says of the operation that it is about to execute.
struct Announcement {
  uint64_t sequence;
  uint64_t fingerprint;
  uint64_t balance;
};

// A callback that waits for a later operation keeps one of them: torch's PowerSGD hook has one for
// each bucket that is under way.
constexpr size_t kMostThreads = 512;
// Of the text of a call, as members send it when they differ.
constexpr size_t kTextBytes = 512;

std::vector<int64_t> EqualParts(int size, size_t bytes) {
  return std::vector<int64_t>(static_cast<size_t>(size), static_cast<int64_t>(bytes));
}

}  // namespace

Result<Collectives*> LaneSite::For(const BatchTraits& traits) const {
  return ChooseFor(traits, ground_.choices);
}

Result<std::shared_ptr<GroupLane>> GroupLane::Open(const LaneOptions& options,
                                                   const Config& config) {
  MYDIST_ASSIGN_OR_RETURN(std::unique_ptr<LaneGround> ground, StartLane(options, config));
  std::shared_ptr<GroupLane> lane(new GroupLane(options.name, std::move(ground)));
  lane->ground_->SetWatchdog(lane.get());
  return lane;
}

void GroupLane::Shutdown() {
  const Status destroyed = Status::Aborted("group '" + name_ + "' was destroyed");
  Abort(destroyed);
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    if (is_closing_) return;
    is_closing_ = true;
    threads.swap(threads_);
    wanted_.NotifyAll();
  }
  for (std::thread& thread : threads) thread.join();
  {
    MutexLock lock(mutex_);
    // A caller that waits may be executing an operation. The rest of the queue ends here.
    while (is_driven_ || !queue_.empty()) {
      if (is_driven_) {
        changed_.Wait(mutex_);
      } else {
        DriveFor(nullptr);
      }
    }
  }
  posts_.Stop();
  ground_->Close();
}

std::shared_ptr<LaneWork> GroupLane::Submit(const LaneCall& call, Duration limit, LaneWork::Run run,
                                            LaneWork::Done done, bool is_attended) {
  auto work = std::make_shared<LaneWork>();
  work->call_ = call;
  work->limit_ = limit;
  work->run_ = std::move(run);
  work->done_ = std::move(done);
  {
    MutexLock lock(mutex_);
    work->sequence_ = ++submitted_count_;
    if (!is_closing_) {
      queue_.push_back(work);
      if (!is_attended) CallThread();
      return work;
    }
  }
  // No thread would come for it.
  work->status_ = Stopped();
  if (work->done_) std::exchange(work->done_, nullptr)(work->status_);
  work->is_done_.store(true, std::memory_order_release);
  return work;
}

bool GroupLane::Wait(const LaneWork& work, TimePoint deadline) {
  MutexLock lock(mutex_);
  if (deadline != kNever) {  // An operation that this thread executes could outlast it.
    CallThread();
  }
  while (!work.is_done()) {
    const bool may_drive = deadline == kNever || threads_.empty();
    if (may_drive && !is_driven_ && !queue_.empty()) {
      DriveFor(&work);
    } else if (!changed_.WaitUntil(mutex_, deadline)) {
      break;
    }
  }
  return work.is_done();
}

void GroupLane::Abort(const Status& why) {
  Poison(why);
  posts_.Abort(Stopped());
}

void GroupLane::Poison(const Status& why) {
  MutexLock lock(mutex_);
  if (error_.ok()) error_ = why;
  is_aborted_.store(true);
  changed_.NotifyAll();
}

Status GroupLane::CheckProcess() const {
  if (getpid() == pid_) return Status::Ok();
  return Status::InvalidArgument(
      "group '" + name_ + "' belongs to process " + std::to_string(pid_) +
      ", and this is a forked child of it. Make process groups in the child, or start it with "
      "multiprocessing's \"spawn\"");
}

uint64_t GroupLane::sequence() {
  MutexLock lock(mutex_);
  return submitted_count_;
}

Status GroupLane::Stopped() {
  MutexLock lock(mutex_);
  return error_;
}

Status GroupLane::Look(TimePoint /*begin*/, std::span<const int> peers) {
  if (is_aborted_.load()) return Stopped();
  if (Now() < deadline_) return Status::Ok();
  const std::string whom = peers.empty() ? "other ranks" : RankListText(peers) + " of the group";
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(current_->limit_);
  return Status::Timeout("group '" + name_ + "', operation " + std::to_string(current_->sequence_) +
                         ", " + current_->call_.ToText() + ": " + whom +
                         " did not take part within " + std::to_string(limit.count()) + " ms");
}

void GroupLane::DriveFor(const LaneWork* work) {
  while (!is_driven_ && !queue_.empty() && (work == nullptr || !work->is_done())) {
    const std::shared_ptr<LaneWork> next = std::move(queue_.front());
    queue_.pop_front();
    is_driven_ = true;
    mutex_.Unlock();
    next->status_ = Execute(*next);
    next->run_ = nullptr;
    LaneWork::Done done = std::move(next->done_);
    mutex_.Lock();
    is_driven_ = false;
    changed_.NotifyAll();
    // What is done here may wait for what is still in the queue.
    if (!queue_.empty() && !threads_.empty()) CallThread();
    mutex_.Unlock();
    if (is_aborted_.load()) posts_.Abort(Stopped());
    if (done) done(next->status_);
    done = nullptr;  // May hold the last reference to what needs Python's lock to go.
    mutex_.Lock();
    next->is_done_.store(true, std::memory_order_release);
    changed_.NotifyAll();
  }
}

Status GroupLane::Execute(LaneWork& work) {
  MYDIST_RETURN_IF_ERROR(Stopped());
  deadline_ = Now() + work.limit_;
  current_ = &work;
  const bool needs_agreement = size() > 1 || work.call_.Balance(0) != 0;
  Status status = needs_agreement ? Agree(work) : Status::Ok();
  if (status.ok()) status = work.run_(LaneSite(ground_.get()));
  // After a mismatch and after wrong arguments all members are still in step.
  if (!status.ok() && status.code() != StatusCode::kMismatch &&
      status.code() != StatusCode::kInvalidArgument) {
    Poison(status);  // Receives end later: what follows them may wait for this lane.
  }
  return status;
}

Status GroupLane::Agree(const LaneWork& work) {
  const Announcement mine{work.sequence_, work.call_.Fingerprint(), work.call_.Balance(rank())};
  calls_.resize(sizeof mine * static_cast<size_t>(size()));
  MYDIST_ASSIGN_OR_RETURN(Collectives * bytes,
                          LaneSite(ground_.get()).ForBytes(OpKind::kAllgather));
  MYDIST_RETURN_IF_ERROR(bytes->Allgather(&mine, calls_.data(), EqualParts(size(), sizeof mine)));
  bool are_alike = true;
  uint64_t balance = 0;
  for (int rank = 0; rank < size(); ++rank) {
    Announcement theirs{};
    std::memcpy(&theirs, calls_.data() + static_cast<size_t>(rank) * sizeof theirs, sizeof theirs);
    are_alike &= theirs.sequence == mine.sequence && theirs.fingerprint == mine.fingerprint;
    balance += theirs.balance;
  }
  if (are_alike && balance == 0) return Status::Ok();
  MYDIST_ASSIGN_OR_RETURN(
      const std::string text,
      DifferenceText(work, are_alike ? "one rank sends other sizes than another rank receives"
                                     : "its ranks call different operations"));
  return Status::Mismatch(text);
}

Result<std::string> GroupLane::DifferenceText(const LaneWork& work, const char* difference) {
  std::array<char, kTextBytes> mine{};
  const std::string own =
      "operation " + std::to_string(work.sequence_) + ", " + work.call_.ToText();
  own.copy(mine.data(), kTextBytes - 1);
  std::vector<char> all(kTextBytes * static_cast<size_t>(size()));
  MYDIST_ASSIGN_OR_RETURN(Collectives * bytes,
                          LaneSite(ground_.get()).ForBytes(OpKind::kAllgather));
  MYDIST_RETURN_IF_ERROR(bytes->Allgather(mine.data(), all.data(), EqualParts(size(), kTextBytes)));
  std::string text = "group '" + name_ + "': " + difference + ":";
  for (int rank = 0; rank < size(); ++rank) {
    const char* const theirs = all.data() + static_cast<size_t>(rank) * kTextBytes;
    text += "\n  rank " + std::to_string(rank) + ": " +
            std::string(theirs, strnlen(theirs, kTextBytes));
  }
  return text;
}

void GroupLane::CallThread() {
  StartThread();
  wanted_.NotifyOne();
}

void GroupLane::StartThread() {
  if (idle_threads_ > 0 || threads_.size() >= kMostThreads || is_closing_) return;
  Result<std::thread> started =
      mydist::StartThread("mydist-lane", "for group '" + name_ + "'", [this] { ThreadLoop(); });
  // Without a thread the operation is executed when its caller waits for it.
  if (!started.ok()) return;
  threads_.push_back(std::move(started).value());
  ++idle_threads_;
}

void GroupLane::ThreadLoop() {
  MutexLock lock(mutex_);
  while (!is_closing_) {
    if (!queue_.empty() && !is_driven_) {
      --idle_threads_;
      DriveFor(nullptr);
      ++idle_threads_;
    } else {
      wanted_.Wait(mutex_);
    }
  }
}

}  // namespace mydist
