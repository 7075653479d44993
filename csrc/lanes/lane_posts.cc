#include "lanes/lane_posts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/thread.h"

namespace mydist {
namespace {

// In front of each piece of a message.
struct PieceHeader {
  int32_t tag;
  uint32_t is_last;
};

// A control message holds that and the header.
constexpr size_t kPieceBytes = size_t{16} << 20;
static_assert(kPieceBytes + sizeof(PieceHeader) <= kMaxControlMessageBytes);
// A callback that waits for another message keeps one of them.
constexpr size_t kMostReceivers = 512;

}  // namespace

void LanePosts::Stop() {
  is_closing_ = true;
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    threads.swap(threads_);
    if (plane_ != nullptr) plane_->Wake();
    wanted_.NotifyAll();
  }
  for (std::thread& thread : threads) thread.join();
}

Status LanePosts::Start() {
  if (plane_ != nullptr || !error_.ok()) return error_;
  MYDIST_ASSIGN_OR_RETURN(plane_, open_plane_());
  return CallThread();
}

Status LanePosts::CallThread() {
  if (is_listening_ || is_closing_ || !error_.ok()) return Status::Ok();
  if (idle_threads_ > 0) {
    wanted_.NotifyOne();
    return Status::Ok();
  }
  if (threads_.size() >= kMostReceivers) return Status::Ok();  // The next callback to end listens.
  MYDIST_ASSIGN_OR_RETURN(std::thread started,
                          StartThread("mydist-posts", "that receives messages", [this] { Run(); }));
  threads_.push_back(std::move(started));
  ++idle_threads_;
  return Status::Ok();
}

Status LanePosts::Send(int peer, int32_t tag, std::span<const uint8_t> payload) {
  MutexLock lock(mutex_);
  MYDIST_RETURN_IF_ERROR(Start());
  size_t begin = 0;
  do {
    const size_t length = std::min(kPieceBytes, payload.size() - begin);
    const PieceHeader header{tag, begin + length == payload.size()};
    Bytes piece(sizeof header + length);
    std::memcpy(piece.data(), &header, sizeof header);
    if (length > 0) std::memcpy(piece.data() + sizeof header, payload.data() + begin, length);
    MYDIST_RETURN_IF_ERROR(plane_->Send(peer, std::move(piece)));
    begin += length;
  } while (begin < payload.size());
  return Status::Ok();
}

LanePosts::Ticket LanePosts::Receive(int source, int32_t tag, Take take) {
  Status started;
  Message found{};
  Ticket ticket = 0;
  {
    MutexLock lock(mutex_);
    ticket = ++last_ticket_;
    const Open open{ticket, source, tag, take};
    const auto message =
        std::find_if(waiting_.begin(), waiting_.end(),
                     [&](const Message& candidate) { return Fits(open, candidate); });
    if (message == waiting_.end()) {
      started = Start();
      // The thread that received may be in a callback, which this message may be for.
      if (started.ok()) started = CallThread();
      if (started.ok()) {
        open_.push_back(open);
        return ticket;
      }
    } else {
      found = std::move(*message);
      waiting_.erase(message);
    }
  }
  const Follow follow = take(started, started.ok() ? found.source : source, found.payload);
  if (follow) follow();
  return ticket;
}

bool LanePosts::Cancel(Ticket ticket, const Status& why) {
  std::list<Open> cancelled;
  {
    MutexLock lock(mutex_);
    const auto open = std::find_if(open_.begin(), open_.end(),
                                   [&](const Open& each) { return each.ticket == ticket; });
    if (open == open_.end()) return false;
    cancelled.splice(cancelled.begin(), open_, open);
  }
  const Follow follow = cancelled.front().take(why, cancelled.front().source, {});
  if (follow) follow();
  return true;
}

void LanePosts::Refuse(const Status& why) {
  MutexLock lock(mutex_);
  if (error_.ok()) error_ = why;
  if (is_listening_) plane_->Wake();
  while (is_listening_) quiet_.Wait(mutex_);
}

void LanePosts::Abort(const Status& why) {
  std::list<Open> ended;
  Status first;
  {
    MutexLock lock(mutex_);
    if (error_.ok()) error_ = why;
    first = error_;
    ended.swap(open_);
  }
  // All of them end before a callback of one may wait for another.
  std::vector<Follow> follows;
  for (const Open& open : ended) follows.push_back(open.take(first, open.source, {}));
  for (const Follow& follow : follows) {
    if (follow) follow();
  }
}

void LanePosts::Run() {
  MutexLock lock(mutex_);
  while (!is_closing_) {
    if (is_listening_ || !error_.ok()) {
      wanted_.Wait(mutex_);
      continue;
    }
    is_listening_ = true;
    --idle_threads_;
    mutex_.Unlock();
    Follow follow = Listen();
    mutex_.Lock();
    is_listening_ = false;
    quiet_.NotifyAll();
    if (follow) {
      // Without another thread, what is open is received when this one is back.
      if (!open_.empty()) static_cast<void>(CallThread());
      mutex_.Unlock();
      follow();
      follow = nullptr;  // May hold the last reference to what needs Python's lock to go.
      mutex_.Lock();
    }
    ++idle_threads_;
  }
}

LanePosts::Follow LanePosts::Listen() {
  while (!is_closing_) {
    ControlPlane* plane = nullptr;
    std::optional<Message> message;
    {
      MutexLock lock(mutex_);
      if (!error_.ok()) return nullptr;
      plane = plane_;
      Result<std::optional<Message>> next = Next();
      if (!next.ok()) {
        error_ = next.status();
        return [this, failure = error_] { Abort(failure); };
      }
      message = std::move(*next);
    }
    if (!message) {
      plane->Await(kNever);
    } else if (Follow follow = Deliver(std::move(*message))) {
      return follow;
    }
  }
  return nullptr;
}

Result<std::optional<LanePosts::Message>> LanePosts::Next() {
  while (true) {
    MYDIST_ASSIGN_OR_RETURN(const std::optional<IncomingMessage> piece, plane_->Receive());
    if (!piece) return std::optional<Message>();
    MYDIST_ASSIGN_OR_RETURN(std::optional<Message> whole, Join(*piece));
    if (whole) return whole;
  }
}

Result<std::optional<LanePosts::Message>> LanePosts::Join(const IncomingMessage& piece) {
  PieceHeader header{};
  if (piece.payload.size() < sizeof header) {
    return Status::Internal("rank " + std::to_string(piece.source) + " of the group sent " +
                            std::to_string(piece.payload.size()) +
                            " bytes, which are not a message");
  }
  std::memcpy(&header, piece.payload.data(), sizeof header);
  Message& message =
      parts_.try_emplace(piece.source, Message{piece.source, header.tag, {}}).first->second;
  message.tag = header.tag;
  message.payload.insert(message.payload.end(),
                         piece.payload.begin() + static_cast<ptrdiff_t>(sizeof header),
                         piece.payload.end());
  if (header.is_last == 0) return std::optional<Message>();
  std::optional<Message> whole = std::move(message);
  parts_.erase(piece.source);
  return whole;
}

LanePosts::Follow LanePosts::Deliver(Message message) {
  std::list<Open> taken;
  {
    MutexLock lock(mutex_);
    const auto open = std::find_if(open_.begin(), open_.end(),
                                   [&](const Open& each) { return Fits(each, message); });
    if (open == open_.end()) {
      waiting_.push_back(std::move(message));
      return nullptr;
    }
    taken.splice(taken.begin(), open_, open);
  }
  return taken.front().take(Status::Ok(), message.source, message.payload);
}

}  // namespace mydist
