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

}  // namespace

void LanePosts::Stop() {
  is_closing_ = true;
  std::thread thread;
  {
    MutexLock lock(mutex_);
    thread = std::move(thread_);
    if (plane_ != nullptr) plane_->Wake();
  }
  if (thread.joinable()) thread.join();
}

Status LanePosts::Start() {
  if (thread_.joinable() || !error_.ok()) return error_;
  MYDIST_ASSIGN_OR_RETURN(plane_, open_plane_());
  MYDIST_ASSIGN_OR_RETURN(thread_,
                          StartThread("mydist-posts", "that receives messages", [this] { Run(); }));
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
      if (started.ok()) {
        open_.push_back(open);
        return ticket;
      }
    } else {
      found = std::move(*message);
      waiting_.erase(message);
    }
  }
  take(started, started.ok() ? found.source : source, found.payload);
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
  cancelled.front().take(why, cancelled.front().source, {});
  return true;
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
  for (const Open& open : ended) open.take(first, open.source, {});
}

void LanePosts::Run() {
  ControlPlane* plane = nullptr;
  {
    MutexLock lock(mutex_);
    plane = plane_;
  }
  while (!is_closing_ && TakeIn()) {
    if (!is_closing_) plane->Await(kNever);
  }
}

bool LanePosts::TakeIn() {
  while (true) {
    std::optional<Message> message;
    Status failure;
    {
      MutexLock lock(mutex_);
      Result<std::optional<IncomingMessage>> arrived = plane_->Receive();
      if (!arrived.ok()) {
        failure = arrived.status();
      } else if (!arrived->has_value()) {
        return true;
      } else {
        Result<std::optional<Message>> joined = Join(**arrived);
        if (joined.ok()) {
          message = std::move(*joined);
        } else {
          failure = joined.status();
        }
      }
    }
    if (!failure.ok()) {
      Abort(failure);
      return false;
    }
    if (message) Deliver(std::move(*message));
  }
}

Result<std::optional<LanePosts::Message>> LanePosts::Join(const IncomingMessage& piece) {
  PieceHeader header{};
  if (piece.payload.size() < sizeof header) {
    return Status::Internal("rank " + std::to_string(piece.source) + " of the group sent " +
                            std::to_string(piece.payload.size()) + " bytes, which are no message");
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

void LanePosts::Deliver(Message message) {
  std::list<Open> taken;
  {
    MutexLock lock(mutex_);
    const auto open = std::find_if(open_.begin(), open_.end(),
                                   [&](const Open& each) { return Fits(each, message); });
    if (open == open_.end()) {
      waiting_.push_back(std::move(message));
      return;
    }
    taken.splice(taken.begin(), open_, open);
  }
  taken.front().take(Status::Ok(), message.source, message.payload);
}

}  // namespace mydist
