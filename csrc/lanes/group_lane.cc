#include "lanes/group_lane.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/process.h"
#include "base/thread.h"
#include "job/job_start.h"
#include "lanes/lane_roster.h"
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

LaneJournal::Site SiteOf(const LaneOptions& options, const Topology& topology) {
  const auto own = static_cast<size_t>(options.rank);
  return {.rank = options.WorldRanks()[own],
          .size = options.ranks.empty() ? options.size : options.world_size,
          .host = topology.hosts[own],
          .tells_user = topology.local_rank == 0};
}

// Without mydistrun one lane of all ranks has descriptors of their processes; many would take many.
RankEnds EndsOf(const LaneOptions& options, const LaneGround& ground) {
  if (options.rank_ends >= 0) return RankEnds(options.rank_ends, options.WorldRanks());
  return ground.heartbeat != nullptr ? RankEnds(ground.topology.seen_pids) : RankEnds();
}

}  // namespace

Result<Collectives*> LaneSite::For(const BatchTraits& traits) const {
  return ChooseFor(traits, ground_.choices);
}

Result<std::shared_ptr<GroupLane>> GroupLane::Open(const LaneOptions& options,
                                                   const Config& config) {
  LaneRoster& roster = LaneRoster::OfProcess();
  const int self = options.WorldRanks()[static_cast<size_t>(options.rank)];
  MYDIST_ASSIGN_OR_RETURN(std::unique_ptr<LaneGround> ground,
                          StartLane(options, config, roster.WatchedBy(self)));
  std::shared_ptr<GroupLane> lane(new GroupLane(options, std::move(ground)));
  lane->ground_->SetWatchdog(lane.get());
  if (Status started = lane->StartHeartbeat(); !started.ok()) WarnOfNoHeartbeat(started);
  roster.Add(lane);
  return lane;
}

GroupLane::GroupLane(const LaneOptions& options, std::unique_ptr<LaneGround> ground)
    : name_(options.name),
      ranks_(options.WorldRanks()),
      ground_(std::move(ground)),
      journal_(LaneJournal::Of(SiteOf(options, ground_->topology), ground_->config)),
      page_(journal_->AddGroup(name_, ranks_)),
      posts_([this] { return ground_->OpenPlane(); }),
      news_(rank(), size(), ground_->shm.get()),
      ends_(EndsOf(options, *ground_)) {
  last_.name = "group " + name_;
}

Status GroupLane::StartHeartbeat() {
  if (ground_->heartbeat == nullptr) return Status::Ok();
  const auto name_of = [this](int rank) {
    return RankText(rank, ground_->topology.hosts, ground_->topology.pids);
  };
  const auto on_finding = [this](const PeerFinding& finding) {
    // What the kernel says of a process that has ended reaches those that wait for it anyway, with
    // the words that it left. One that has destroyed its groups has ended no program.
    if (finding.kind != PeerFinding::Kind::kSilent) return;
    const int rank = WorldRank(finding.rank);
    auto lanes = LaneRoster::OfProcess().LanesWith(world_rank(), rank);
    for (const auto& lane : lanes) lane->OnSilence(rank, finding.silence);
    // Farewells take time, and what follows receives may take any: heartbeats go on meanwhile.
    auto teller = mydist::StartThread("mydist-lane", "that tells of a silent rank", [lanes] {
      for (const auto& lane : lanes) lane->Abort(lane->Stopped());
    });
    if (teller.ok()) tellers_.push_back(std::move(teller).value());
  };
  MYDIST_RETURN_IF_ERROR(ground_->heartbeat->Start(
      name_of, on_finding,
      {.tell = [this] { return news_.ForHeartbeat(Now()); },
       .take = [this](std::span<const uint8_t> news) { news_.HearHeartbeat(news, Now()); }}));
  is_watching_ = true;
  return Status::Ok();
}

std::vector<int> GroupLane::Watched() const {
  std::vector<int> watched;
  if (!is_watching_) return watched;
  const int radix = static_cast<int>(ground_->config.coordinator_radix);
  for (const PulsePeer& peer : Neighbours(ground_->topology, radix)) {
    watched.push_back(WorldRank(peer.rank));
  }
  return watched;
}

bool GroupLane::Has(int world_rank) const {
  return std::find(ranks_.begin(), ranks_.end(), world_rank) != ranks_.end();
}

void GroupLane::OnSilence(int world_rank, Duration silence) {
  const auto peer =
      static_cast<int>(std::find(ranks_.begin(), ranks_.end(), world_rank) - ranks_.begin());
  const Topology& topology = ground_->topology;
  const Status lost =
      Status::PeerLost("group '" + name_ + "': " + RankText(peer, topology.hosts, topology.pids) +
                       " has given no sign of life for " + SecondsText(silence) + ": " +
                       ProcessStateText(topology.SeenPid(peer)))
          .WithSentence(WorldNote({&peer, 1}))
          .About({.ranks = {peer}, .finding = kSilentFinding, .elapsed = ToSeconds(silence)});
  const Status known = WithProgress(lost);
  NoteFailure(known, "", "");
  Poison(known);
}

void GroupLane::Shutdown() {
  is_watching_ = false;
  EndAll(Status::Aborted("group '" + name_ + "' was destroyed"));
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
  if (ground_->heartbeat != nullptr) ground_->heartbeat->Stop();
  for (std::thread& teller : tellers_) teller.join();
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
    work->record_ = journal_->Submitted(*page_, call, work->sequence_, Now());
    if (!is_closing_) {
      queue_.push_back(work);
      if (!is_attended) CallThread();
      return work;
    }
  }
  // No thread would come for it. What it holds may hold the work.
  work->run_ = nullptr;
  work->status_ = Stopped();
  journal_->Ended(*page_, work->record_, call, work->status_.code(), Now());
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
  EndAll(why);
  {
    MutexLock lock(mutex_);
    // Else the thread that drives tells them, at the end of its operation.
    if (is_driven_ || is_closing_) return;
    is_driven_ = true;
  }
  TellOthers();
  MutexLock lock(mutex_);
  is_driven_ = false;
  changed_.NotifyAll();
}

void GroupLane::EndAll(const Status& why) {
  Poison(why);
  posts_.Abort(Stopped());
}

void GroupLane::TellOthers() {
  if (size() == 1) return;
  posts_.Refuse(Stopped());
  ground_->GiveUp(Told(Stopped()));
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
  if (is_aborted_.load()) return Told(Stopped());
  const Duration limit = std::min(current_->limit_, OrNever(ground_->config.stall_shutdown));
  const Duration waited = Now() - begin_;
  if (waited >= limit) {
    return Told(Status::Timeout(WaitText(peers, limit))
                    .About({.ranks = {peers.begin(), peers.end()}, .elapsed = ToSeconds(waited)}));
  }
  if (waited >= next_warning_) {
    while (next_warning_ <= waited) next_warning_ = Doubled(next_warning_);
    journal_->Stalled(WaitText(peers, waited));
  }
  return ground_->FindGivenUp();
}

void GroupLane::NoteSent(int peer, int tag, int64_t bytes) {
  journal_->Sent(*page_, MessageOf(rank(), peer, tag, bytes), Now());
}

int64_t GroupLane::NoteAwaited(int peer, int tag, int64_t bytes) {
  return journal_->AwaitsMessage(*page_, MessageOf(peer, rank(), tag, bytes), Now());
}

void GroupLane::NoteReceived(int64_t record, int peer, int tag, int64_t bytes,
                             const Status& status) {
  const LaneJournal::Message message = MessageOf(peer, rank(), tag, bytes);
  journal_->Received(*page_, record, message, status.code(), Now());
  if (!status.ok()) {
    NoteFailure(status, OpKindName(OpKind::kSendReceive), "tag " + std::to_string(tag));
  }
}

void GroupLane::DriveFor(const LaneWork* work) {
  while (!is_driven_ && !queue_.empty() && (work == nullptr || !work->is_done())) {
    const std::shared_ptr<LaneWork> next = std::move(queue_.front());
    queue_.pop_front();
    is_driven_ = true;
    mutex_.Unlock();
    next->status_ = ExecuteRecorded(*next);
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

Status GroupLane::ExecuteRecorded(LaneWork& work) {
  begin_ = Now();
  next_warning_ = OrNever(ground_->config.stall_warning);
  current_ = &work;
  journal_->Begun(*page_, work.record_, work.call_, work.sequence_, begin_);
  Status status = Execute(work);
  if (status.ok()) {
    last_.op = work.call_.op;
    news_.NoteDone(last_, static_cast<int64_t>(work.sequence_));
  }
  journal_->Ended(*page_, work.record_, work.call_, status.code(), Now());
  return status;
}

Status GroupLane::Execute(LaneWork& work) {
  if (Status stopped = Stopped(); !stopped.ok()) {
    TellOthers();
    return stopped;
  }
  const bool needs_agreement = size() > 1 || work.call_.Balance(0) != 0;
  Status status = needs_agreement ? Agree(work) : Status::Ok();
  if (status.ok()) status = work.run_(LaneSite(ground_.get()));
  // After a mismatch and after wrong arguments all members are still in step.
  if (!status.ok() && status.code() != StatusCode::kMismatch &&
      status.code() != StatusCode::kInvalidArgument) {
    status = WithProgress(Described(work, status));
    Poison(status);  // Receives end later: what follows them may wait for this lane.
    NoteFailure(status, OpKindName(work.call_.op), "operation " + std::to_string(work.sequence_));
    TellOthers();
  }
  return status;
}

Status GroupLane::LookForMessage(int source, int tag, Duration waited, Duration& next_warning) {
  const Duration limit = OrNever(ground_->config.stall_shutdown);
  if (waited >= limit) return MessageTimeout(source, tag, limit);
  if (next_warning == Duration::zero()) next_warning = OrNever(ground_->config.stall_warning);
  if (waited >= next_warning) {
    while (next_warning <= waited) next_warning = Doubled(next_warning);
    journal_->Stalled(MessageText(source, tag, waited));
  }
  return LookForGivenUp();
}

Status GroupLane::LookForGivenUp() {
  Status given_up = ground_->FindGivenUp();
  if (!given_up.ok()) {
    if (!given_up.message().starts_with("group '")) {
      given_up = given_up.WithContext("group '" + name_ + "'");
    }
    given_up = WithProgress(given_up);
    Abort(given_up);
  }
  return given_up;
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
      DifferenceText(work, are_alike ? "a rank sends other sizes than its peer receives"
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
