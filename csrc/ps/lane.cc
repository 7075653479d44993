#include "ps/lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "ps/buffer.h"
#include "ps/error_bytes.h"

namespace mydist::ps {
namespace {

constexpr int64_t kAlignment = 64;
constexpr Duration kPause = std::chrono::milliseconds(50);

// False: the operation is over, and so the caller's memory may be gone. A push is sent without its
// gradient then: it moves the clock of each piece once, as in all other pushes.
bool CopyPayload(Part& part, uint8_t* to) {
  const auto copy = [&] { std::memcpy(to, part.payload.data(), part.payload.size()); };
  if (part.payload.empty()) return true;
  if (part.own.empty()) return part.operation->Touch(copy);
  copy();
  return true;
}

uint64_t RoomOf(const Part& part) {
  return std::max<uint64_t>(part.payload.size(), part.answer_bytes);
}

}  // namespace

Result<std::shared_ptr<Lane>> Lane::Open(const std::shared_ptr<Io>& io, const Address& address,
                                         const LaneOptions& options) {
  std::shared_ptr<Lane> lane(new Lane(io, address, options));
  Result<Made> made = lane->ConnectOnce(Now() + options.connect_time);
  if (!made.ok()) {
    return made.status().WithContext("cannot connect to server " + std::to_string(address.server));
  }
  lane->server_ = made->link->peer();
  lane->server_text_ = ServerText(lane->server_);
  MutexLock lock(lane->mutex_);
  if (lane->Adopt(*made)) return lane;
  return Status::PeerLost("the connection to " + lane->server_text_ + " broke at once");
}

Lane::~Lane() {
  Close(Status::Ok());
  std::thread thread;
  {
    MutexLock lock(mutex_);
    thread.swap(reconnect_);
  }
  if (!thread.joinable()) return;
  // The last user of a lane may be that thread.
  thread.get_id() == std::this_thread::get_id() ? thread.detach() : thread.join();
}

Result<Lane::Made> Lane::ConnectOnce(TimePoint deadline) {
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = ++last_made_;
  }
  const std::weak_ptr<Lane> weak = weak_from_this();
  LinkEvents events;
  events.on_frame = [weak](const Frame& frame, const Payload& payload) {
    if (const std::shared_ptr<Lane> lane = weak.lock()) lane->OnFrame(frame, payload);
  };
  events.on_closed = [weak, number](const Status& why) {
    if (const std::shared_ptr<Lane> lane = weak.lock()) lane->OnClosed(number, why);
  };
  ConnectOptions connect = options_.connect;
  connect.deadline = deadline;
  std::shared_ptr<Io> io = io_.lock();
  if (io == nullptr) return Status::Aborted("the client has been closed");
  MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<Link> link,
                          Connect(std::move(io), address_, connect, std::move(events)));
  return Made{std::move(link), number};
}

bool Lane::Adopt(const Made& made) {
  if (last_closed_ == made.number) return false;
  link_ = made.link;
  connection_ = made.number;
  window_.reset();
  in_flight_ = 0;
  if (!link_->window().empty()) {
    window_ = std::make_unique<shm::FreeExtents>(static_cast<int64_t>(link_->window().size()));
  }
  again_.clear();
  for (auto& [sequence, pending] : pending_) {
    pending->region.reset();
    pending->credit = 0;
    again_.push_back(sequence);
    ++stats_.repeated;
  }
  return true;
}

void Lane::Submit(std::vector<Part> parts) {
  Status failure;
  {
    MutexLock lock(mutex_);
    failure = failure_;
    if (failure.ok()) {
      const auto turn = turns_.find(parts[0].frame.table);
      const bool is_held =
          turn != turns_.end() && (parts[0].takes_turns || !turn->second.held.empty());
      is_held ? turn->second.held.push_back(std::move(parts)) : Enqueue(std::move(parts));
    }
  }
  if (failure.ok()) return Pump();
  for (const Part& part : parts) part.operation->Fail(failure);
}

void Lane::Enqueue(std::vector<Part> parts) {
  const Part& first = parts[0];
  if (first.takes_turns) turns_[first.frame.table].unanswered = parts.size();
  // In front of lower ones, but behind all of their own table.
  auto at = queue_.end();
  while (at != queue_.begin() && std::prev(at)->priority < first.priority &&
         std::prev(at)->frame.table != first.frame.table) {
    --at;
  }
  queue_.insert(at, std::make_move_iterator(parts.begin()), std::make_move_iterator(parts.end()));
}

void Lane::GoOn(uint32_t table) {
  Turn& turn = turns_[table];
  if (--turn.unanswered > 0) return;
  while (!turn.held.empty() && !(turn.unanswered > 0 && turn.held.front()[0].takes_turns)) {
    std::vector<Part> next = std::move(turn.held.front());
    turn.held.pop_front();
    Enqueue(std::move(next));
  }
  if (turn.unanswered == 0) turns_.erase(table);
}

bool Lane::MakeRoom(Pending& pending) {
  const uint64_t room = RoomOf(pending.part);
  if (room == 0) return true;
  const int64_t bytes = (static_cast<int64_t>(room) + kAlignment - 1) / kAlignment * kAlignment;
  // What is larger than the window travels as without one.
  if (window_ != nullptr && bytes <= static_cast<int64_t>(link_->window().size())) {
    const std::optional<int64_t> place = window_->Take(bytes, kAlignment);
    if (place) pending.region = shm::Extent{*place, *place + bytes};
    return place.has_value();
  }
  if (in_flight_ > 0 && in_flight_ + room > options_.most_in_flight) return false;
  in_flight_ += room;
  pending.credit = room;
  return true;
}

void Lane::GiveRoom(Pending& pending) {
  if (pending.region && window_ != nullptr) window_->Give(*pending.region);
  pending.region.reset();
  in_flight_ -= std::exchange(pending.credit, 0);
}

std::optional<Lane::Ticket> Lane::TakeNext() {
  if (link_ == nullptr) return std::nullopt;
  if (!again_.empty()) {
    const uint64_t sequence = again_.front();
    const auto found = pending_.find(sequence);
    if (found != pending_.end() && !MakeRoom(*found->second)) return std::nullopt;
    again_.pop_front();
    return Ticket{sequence, connection_};
  }
  if (queue_.empty()) return std::nullopt;
  Pending next{std::move(queue_.front()), {}, 0};
  if (!MakeRoom(next)) {
    queue_.front() = std::move(next.part);
    return std::nullopt;
  }
  queue_.pop_front();
  const uint64_t sequence = ++last_sequence_;
  next.part.frame.sequence = sequence;
  pending_[sequence] = std::make_shared<Pending>(std::move(next));
  return Ticket{sequence, connection_};
}

void Lane::Pump() {
  {
    MutexLock lock(mutex_);
    must_pump_ = true;
    if (is_pumping_) return;
    is_pumping_ = true;
  }
  while (true) {
    std::optional<Ticket> next;
    {
      MutexLock lock(mutex_);
      must_pump_ = false;
      next = TakeNext();
      if (!next && !must_pump_) is_pumping_ = false;
      if (!next) return;
    }
    SendPending(*next);
  }
}

void Lane::SendPending(const Ticket& ticket) {
  std::shared_ptr<Pending> pending;
  std::shared_ptr<Link> link;
  Frame frame;
  std::optional<shm::Extent> region;
  {
    MutexLock lock(mutex_);
    const auto found = pending_.find(ticket.sequence);
    // With a new connection all that is pending has been put down to be sent once more.
    if (found == pending_.end() || link_ == nullptr || connection_ != ticket.connection) return;
    pending = found->second;
    link = link_;
    region = pending->region;
    frame = pending->part.frame;
    pending->sent_at = Now();
    frame.version = pending_.begin()->first;
    stats_.sent_bytes += static_cast<int64_t>(pending->part.payload.size());
  }
  Part& part = pending->part;
  frame.payload_bytes = part.payload.size();
  if (region) {
    frame.is_in_window = true;
    frame.place = static_cast<uint64_t>(region->begin);
    if (!CopyPayload(part, link->window().data() + frame.place)) frame.payload_bytes = 0;
    return link->Send(frame);
  }
  // The caller's memory may be gone before the bytes are, when the operation fails.
  const std::shared_ptr<uint8_t[]> copy(TakeBuffer(part.payload.size()));
  if (!CopyPayload(part, copy.get())) frame.payload_bytes = 0;
  link->Send(frame, {copy.get(), static_cast<size_t>(frame.payload_bytes)}, [copy] {});
}

void Lane::OnFrame(const Frame& frame, const Payload& payload) {
  std::shared_ptr<Pending> pending;
  {
    MutexLock lock(mutex_);
    const auto found = pending_.find(frame.sequence);
    if (found == pending_.end()) return;
    if (frame.kind == FrameKind::kTaken) GiveRoom(*found->second);
    if (frame.kind == FrameKind::kAnswer) {
      pending = std::move(found->second);
      pending_.erase(found);
      stats_.waited += Now() - pending->sent_at;
      stats_.received_bytes += static_cast<int64_t>(frame.payload_bytes);
      if (pending->part.takes_turns) GoOn(pending->part.frame.table);
    }
  }
  if (pending != nullptr) {
    Part& part = pending->part;
    Status status;
    if (frame.code != 0) {
      status = DecodeError(frame.code, payload.bytes());
    } else if (part.answer_bytes != 0 && frame.payload_bytes != part.answer_bytes) {
      status =
          Status::Internal(server_text_ + " answers with " + std::to_string(frame.payload_bytes) +
                           " bytes, expected " + std::to_string(part.answer_bytes));
    } else if (part.deliver != nullptr) {
      part.operation->Touch([&] { part.deliver(payload.bytes(), frame); });
    }
    {
      MutexLock lock(mutex_);
      GiveRoom(*pending);
    }
    status.ok() ? part.operation->Complete() : part.operation->Fail(status);
  }
  Pump();
}

void Lane::OnClosed(uint64_t connection, const Status& why) {
  if (const Status started = StartReconnect(connection, why); !started.ok()) Fail(started);
}

Status Lane::StartReconnect(uint64_t connection, const Status& why) {
  MutexLock lock(mutex_);
  last_closed_ = std::max(last_closed_, connection);
  if (connection != connection_) return Status::Ok();  // It has not been adopted.
  link_.reset();
  closed_.NotifyAll();
  if (is_closing_ || !failure_.ok()) return Status::Ok();
  MYDIST_LOG(kInfo) << "the connection to " << server_text_ << " is closed"
                    << (why.ok() ? "" : ": " + why.message());
  if (reconnect_.joinable()) reconnect_.detach();  // Of an earlier time: it has done its work.
  MYDIST_ASSIGN_OR_RETURN(
      reconnect_,
      StartThread("mydist-again", "that connects to a server again", [weak = weak_from_this()] {
        if (const std::shared_ptr<Lane> lane = weak.lock()) lane->Reconnect();
      }));
  return Status::Ok();
}

void Lane::Reconnect() {
  const TimePoint deadline = Now() + options_.reconnect_time;
  Status why;
  while (Now() < deadline) {
    const Result<Made> made = ConnectOnce(deadline);
    bool is_adopted = false;
    {
      MutexLock lock(mutex_);
      if (is_closing_ && made.ok()) SayGoodbye(*made->link, error_);
      if (is_closing_) return;
      is_adopted = made.ok() && Adopt(*made);
    }
    if (is_adopted) {
      MYDIST_LOG(kWarning) << "the connection to " << server_text_
                           << " broke and has been made again";
      return Pump();
    }
    why = made.status();
    if (why.failure().finding == kDeadFinding) break;  // Nothing listens there any more.
    std::this_thread::sleep_for(kPause);
  }
  Fail(LossOf(why));
  if (const std::shared_ptr<Io> io = io_.lock(); io != nullptr) io->Attend();
}

Status Lane::LossOf(const Status& why) const {
  const bool is_dead = why.failure().finding == kDeadFinding;
  const std::string end =
      is_dead ? " has died" : " cannot be reached any more (" + why.message() + ")";
  const std::string held = options_.holdings == nullptr ? "" : options_.holdings();
  return Status::PeerLost(server_text_ + end + (held.empty() ? "" : "; it held " + held) +
                          ". See its output, and start again from a checkpoint.")
      .About({.host = server_.host,
              .pid = server_.pid,
              .finding = is_dead ? kDeadFinding : kSilentFinding});
}

void Lane::Fail(const Status& why) {
  std::vector<std::shared_ptr<Operation>> operations;
  std::shared_ptr<Link> link;
  bool is_leaving = false;
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = why;
    operations = Operations();
    turns_.clear();
    pending_.clear();
    queue_.clear();
    again_.clear();
    link = link_;
    is_leaving = is_closing_;  // Its last words close it.
  }
  for (const std::shared_ptr<Operation>& operation : operations) operation->Fail(why);
  if (link != nullptr && !is_leaving) link->Close(why);
}

bool Lane::IsIdle() {
  MutexLock lock(mutex_);
  return pending_.empty() && queue_.empty();
}

bool Lane::Has(const Operation& operation) {
  MutexLock lock(mutex_);
  const std::vector<std::shared_ptr<Operation>> all = Operations();
  return std::any_of(all.begin(), all.end(),
                     [&](const auto& one) { return one.get() == &operation; });
}

std::vector<std::shared_ptr<Operation>> Lane::Operations() {
  std::vector<std::shared_ptr<Operation>> all;
  for (const auto& [sequence, pending] : pending_) all.push_back(pending->part.operation);
  for (const Part& part : queue_) all.push_back(part.operation);
  for (const auto& [table, turn] : turns_) {
    for (const std::vector<Part>& parts : turn.held) all.push_back(parts[0].operation);
  }
  return all;
}

void Lane::Close(const Status& error) {
  std::shared_ptr<Link> link;
  {
    MutexLock lock(mutex_);
    if (std::exchange(is_closing_, true)) return;
    error_ = error;
    link = link_;
  }
  if (link != nullptr) SayGoodbye(*link, error);
  Fail(Status::Aborted("the connection to " + server_text_ + " has been closed"));
}

void Lane::SayGoodbye(Link& link, const Status& error) {
  const auto words = std::make_shared<std::vector<uint8_t>>();
  if (!error.ok()) *words = EncodeError(error);
  link.Send({.kind = FrameKind::kGoodbye,
             .code = static_cast<uint8_t>(error.code()),
             .payload_bytes = words->size()},
            *words, [words] {});
}

Status Lane::failure() {
  MutexLock lock(mutex_);
  return failure_;
}

void Lane::AwaitClosed(TimePoint deadline) {
  MutexLock lock(mutex_);
  while (link_ != nullptr && Now() < deadline) closed_.WaitUntil(mutex_, deadline);
}

std::string Lane::Text() {
  MutexLock lock(mutex_);
  return link_ == nullptr ? "not connected" : link_->Text();
}

LaneStats Lane::stats() {
  MutexLock lock(mutex_);
  return stats_;
}

}  // namespace mydist::ps
