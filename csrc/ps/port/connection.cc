#include "ps/port/connection.h"

#include <algorithm>
#include <array>
#include <asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

namespace mydist::ps {
namespace {

// After so much the thread looks whether other connections have something as well.
constexpr size_t kTurnBytes = 128 << 10;
constexpr size_t kTurnBytesOfFrame = 4 << 10;  // What a frame without a payload counts.
constexpr size_t kFramesPerCall = 8;           // To the system.

void AddCall(std::function<void()> sent, std::vector<std::function<void()>>& calls) {
  if (sent != nullptr) calls.push_back(std::move(sent));
}

}  // namespace

Result<std::shared_ptr<Connection>> Connection::Open(IoThreads& io, Parts parts) {
  auto connection = std::make_shared<Connection>(io, std::move(parts));
  MYDIST_RETURN_IF_ERROR(connection->StartWatch());
  io.Add(connection);
  return connection;
}

Connection::Connection(IoThreads& io, Parts parts)
    : io_(io), parts_(std::move(parts)), socket_(parts_.socket.number()), reader_(parts_.window) {}

Status Connection::StartWatch() {
  MutexLock lock(mutex_);
  watch_.emplace(io_.context().get_executor());
  return watch_->Start(socket_);
}

std::span<uint8_t> Connection::window() const {
  return parts_.window == nullptr ? std::span<uint8_t>() : parts_.window->memory();
}

void Connection::Run(std::function<LinkEvents()> make_events) {
  asio::post(io_.context(), [self = shared_from_this(), make_events = std::move(make_events)] {
    self->events_ = make_events();
    self->Read();
  });
}

// --- Reading.

void Connection::Read() {
  for (size_t bytes = 0; bytes < kTurnBytes;) {
    const std::optional<size_t> more = ReadOne();
    if (!more) return;
    bytes += *more;
  }
  asio::post(io_.context(), [self = shared_from_this()] { self->Read(); });
}

// What the frame counts in this turn; nothing: the thread has no more to do here now.
std::optional<size_t> Connection::ReadOne() {
  if (is_closing_.load()) {
    EndReading(Status::Ok());
    return std::nullopt;
  }
  Frame frame;
  Payload payload;
  const Result<FrameReader::Found> found = reader_.Next(socket_, frame, payload);
  if (!found.ok()) {
    EndReading(found.status());
    return std::nullopt;
  }
  switch (*found) {
    case FrameReader::Found::kFrame:
      if (events_.on_frame != nullptr) events_.on_frame(frame, std::move(payload));
      return kTurnBytesOfFrame + frame.payload_bytes;
    case FrameReader::Found::kNothing:
      WaitForBytes();
      return std::nullopt;
    case FrameReader::Found::kEnd:
      EndReading(Status::Ok());
      return std::nullopt;
  }
  return std::nullopt;
}

void Connection::WaitForBytes() {
  MutexLock lock(mutex_);
  watch_->ForBytes([self = shared_from_this()] { self->Read(); });
}

// The last thing that its thread does here.
void Connection::EndReading(const Status& found) {
  Calls sent;
  {
    MutexLock lock(mutex_);
    if (!is_closing_.exchange(true)) {
      why_ = Describe(found.ok() && write_error_ != 0 ? Broke(write_error_) : found);
    }
    has_read_all_ = true;
    DropOutgoing(sent);
    sent.emplace_back();  // Of the reading itself.
    Announce(sent);
  }
  CallAll(sent);
}

void Connection::EndAll() {
  Status why;
  {
    MutexLock lock(mutex_);
    why = why_;
    watch_.reset();
    parts_.socket.Close();
  }
  const LinkEvents events = std::exchange(events_, {});
  if (events.on_closed != nullptr) events.on_closed(why);
  parts_.place.reset();
  io_.Remove(this);
}

void Connection::Announce(const Calls& sent) { announced_ += sent.size(); }

// Of what has been announced.
void Connection::CallAll(const Calls& sent) {
  if (sent.empty()) return;
  for (const auto& call : sent) {
    if (call != nullptr) call();
  }
  MutexLock lock(mutex_);
  announced_ -= sent.size();
  if (announced_ > 0 || !has_read_all_) return;
  asio::post(io_.context(), [self = shared_from_this()] { self->EndAll(); });
}

Status Connection::Describe(const Status& found) const {
  return found.WithContext("the connection " + parts_.text)
      .About({.host = parts_.peer.host, .pid = parts_.peer.pid});
}

// --- Sending.

void Connection::Send(const Frame& frame, std::span<const uint8_t> payload,
                      std::function<void()> sent) {
  MYDIST_CHECK(payload.size() == (frame.is_in_window ? 0 : frame.payload_bytes));
  Calls calls;
  {
    MutexLock lock(mutex_);
    if (!is_closing_.load() && write_error_ == 0) {
      outgoing_.push_back({EncodeFrame(frame), payload, std::exchange(sent, nullptr)});
      if (!is_waiting_for_room_) Write(calls);
      Announce(calls);
    }
  }
  CallAll(calls);
  if (sent != nullptr) sent();  // Nothing is sent any more.
}

void Connection::Close(const Status& why) {
  Calls sent;
  {
    MutexLock lock(mutex_);
    if (is_closing_.exchange(true)) return;
    why_ = why;
    DropOutgoing(sent);
    Announce(sent);
    // Wakes the thread that reads, which ends the connection.
    shutdown(socket_, SHUT_RDWR);
  }
  CallAll(sent);
}

void Connection::WriteAgain() {
  Calls sent;
  {
    MutexLock lock(mutex_);
    is_waiting_for_room_ = false;
    if (!is_closing_.load() && write_error_ == 0) Write(sent);
    Announce(sent);
  }
  CallAll(sent);
}

void Connection::Write(Calls& sent) {
  while (!outgoing_.empty()) {
    if (!WriteSome(sent)) return;
  }
}

// False: no more can be written now.
bool Connection::WriteSome(Calls& sent) {
  std::array<iovec, 2 * kFramesPerCall> parts;
  size_t count = 0;
  for (size_t i = 0; i < std::min(outgoing_.size(), kFramesPerCall); ++i) {
    Outgoing& one = outgoing_[i];
    const size_t of_header = std::min(one.done, one.header.size());
    const auto header = std::span(one.header).subspan(of_header);
    const auto payload = one.payload.subspan(one.done - of_header);
    if (!header.empty()) parts[count++] = {header.data(), header.size()};
    if (payload.empty()) continue;
    parts[count++] = {const_cast<uint8_t*>(payload.data()), payload.size()};
  }
  const Moved moved = SendParts(socket_, std::span(parts).first(count));
  if (moved.error == EAGAIN) {
    is_waiting_for_room_ = true;
    watch_->ForRoom([self = shared_from_this()] { self->WriteAgain(); });
    return false;
  }
  if (moved.error != 0) {
    StopWriting(moved.error, sent);
    return false;
  }
  for (size_t rest = moved.bytes; rest > 0;) {
    Outgoing& one = outgoing_.front();
    const size_t part = std::min(rest, one.size() - one.done);
    one.done += part;
    rest -= part;
    if (one.done < one.size()) break;
    AddCall(std::move(one.sent), sent);
    outgoing_.pop_front();
  }
  return true;
}

// The thread that reads ends the connection, once it has taken what the other side has said before:
// that may be the reason.
void Connection::StopWriting(int error, Calls& sent) {
  write_error_ = error;
  DropOutgoing(sent);
  shutdown(socket_, SHUT_RDWR);
}

void Connection::DropOutgoing(Calls& sent) {
  for (Outgoing& one : std::exchange(outgoing_, {})) AddCall(std::move(one.sent), sent);
}

}  // namespace mydist::ps
