#include "ps/server.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <vector>

#include "base/log.h"
#include "base/process.h"
#include "ps/buffer.h"
#include "ps/error_bytes.h"

namespace mydist::ps {
namespace {

constexpr uint64_t kPlaceAlignment = 64;
// From one look at the process of a worker to the next.
constexpr Duration kLook = std::chrono::milliseconds(10);

// How many bytes of a link's window requests that wait take.
struct WindowUse {
  std::atomic<uint64_t> held{0};
};

int HalfOfTheCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores) / 2);
}

// The payload of a frame that lies in the window, counted while it does.
Payload Counted(Payload payload, const Frame& frame, const std::shared_ptr<Link>& link,
                const std::shared_ptr<WindowUse>& use, const std::shared_ptr<Session>& session,
                int64_t connection) {
  if (!frame.is_in_window || frame.payload_bytes == 0) return payload;
  const uint64_t bytes = frame.payload_bytes;
  const uint64_t held = use->held.fetch_add(bytes) + bytes;
  const auto lent = std::make_shared<Payload>(std::move(payload));
  return Payload(lent->room(), {.on_release = [use, bytes, lent] { use->held.fetch_sub(bytes); },
                                .on_copied =
                                    [session, connection, sequence = frame.sequence] {
                                      session->NoteCopied(connection, sequence);
                                    },
                                .is_short_of_room = held > link->window().size() / 2});
}

// Sends a frame, whose payload is gone when this returns, unless its owner, which may be none, is
// moved from.
void SendAnswer(Link& link, const Frame& frame, std::span<const uint8_t> payload, Payload* owner) {
  if (payload.empty()) return link.Send(frame);
  const std::span<uint8_t> window = link.window();
  if (frame.is_in_window && payload.size() > window.size() - frame.place) {
    return link.Close(Status::Internal("an answer does not fit where it is to be written"));
  }
  if (frame.is_in_window) {
    uint8_t* const place = window.data() + frame.place;
    if (place != payload.data()) std::memcpy(place, payload.data(), payload.size());
    return link.Send(frame);
  }
  if (owner != nullptr && !owner->is_borrowed()) {
    const auto kept = std::make_shared<Payload>(std::move(*owner));
    return link.Send(frame, kept->bytes(), [kept] {});
  }
  const std::shared_ptr<uint8_t[]> copy(TakeBuffer(payload.size()));
  std::memcpy(copy.get(), payload.data(), payload.size());
  link.Send(frame, {copy.get(), payload.size()}, [copy] {});
}

}  // namespace

struct Server::Worker {
  Introduction who;
  std::shared_ptr<Session> session;
  std::optional<Process> process;  // Of this host.
  std::atomic<bool> is_lost{false};
};

Result<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  std::unique_ptr<Server> server(new Server(options));
  const int threads = options.threads > 0 ? options.threads : HalfOfTheCores();
  MYDIST_ASSIGN_OR_RETURN(server->io_, Io::Start(threads, "mydist-server"));
  server->threads_ = server->io_.get();
  MYDIST_ASSIGN_OR_RETURN(
      server->listener_,
      Listener::Open(server->io_, options.listen, [raw = server.get()](std::shared_ptr<Link> link) {
        return raw->Accept(std::move(link));
      }));
  return server;
}

Server::~Server() {
  {
    MutexLock lock(mutex_);
    is_closing_ = true;
  }
  listener_.reset();
  io_.reset();
}

LinkEvents Server::Accept(std::shared_ptr<Link> link) {
  std::shared_ptr<Worker> worker;
  {
    MutexLock lock(mutex_);
    std::shared_ptr<Worker>& known = workers_[{link->peer().number, link->peer().session}];
    if (known == nullptr) {
      known = std::make_shared<Worker>();
      known->who = link->peer();
      known->session = std::make_shared<Session>(&store_, known->who.number);
      const bool is_of_host = known->who.host == options_.listen.host_name;
      if (is_of_host) known->process.emplace(static_cast<pid_t>(known->who.pid));
    }
    worker = known;
  }
  const int64_t connection = worker->session->Connect(
      [link](const Frame& frame, std::span<const uint8_t> payload, Payload* owner) {
        SendAnswer(*link, frame, payload, owner);
      });
  const auto use = std::make_shared<WindowUse>();
  LinkEvents events;
  events.on_frame = [this, link, worker, session = worker->session, connection, use](
                        const Frame& frame, Payload payload) {
    if (frame.kind == FrameKind::kGoodbye) {
      if (frame.code != 0) {
        Lose(worker, connection, DecodeError(frame.code, payload.bytes()));
      }
      session->Take(connection, frame, {});
      return link->Close(Status::Ok());
    }
    if (frame.is_in_window && frame.place % kPlaceAlignment != 0) {
      return link->Close(Status::Internal("a payload is not aligned in the window"));
    }
    session->Take(connection, frame,
                  Counted(std::move(payload), frame, link, use, session, connection));
  };
  events.on_closed = [this, worker, connection](const Status& why) {
    OnClosed(worker, connection, why);
  };
  return events;
}

void Server::OnClosed(const std::shared_ptr<Worker>& worker, int64_t connection,
                      const Status& why) {
  {
    MutexLock lock(mutex_);
    if (is_closing_ || !worker->session->Disconnect(connection)) return;
    if (worker->session->has_said_goodbye()) {
      workers_.erase({worker->who.number, worker->who.session});
      return;
    }
    if (worker->is_lost) return;
  }
  if (!why.ok()) {
    MYDIST_LOG(kInfo) << "server " << options_.listen.server << ": the connection of "
                      << WorkerText(worker->who) << " is closed: " << why.message();
  }
  AwaitReturn(worker, connection, Now() + options_.reconnect_time);
}

void Server::AwaitReturn(const std::shared_ptr<Worker>& worker, int64_t connection, TimePoint end) {
  if (!worker->session->IsLast(connection)) return;
  const bool has_ended = worker->process && worker->process->HasEnded();
  if (!has_ended && Now() < end) {
    return threads_->Post([this, worker, connection, end] { AwaitReturn(worker, connection, end); },
                          kLook);
  }
  Failure known = FailureOf(worker->who);
  known.finding = kDeadFinding;
  Lose(worker, connection,
       Status::PeerLost(WorkerText(worker->who) +
                        " has died or has left without a goodbye; see its output")
           .About(known));
}

void Server::Lose(const std::shared_ptr<Worker>& worker, int64_t connection, const Status& why) {
  {
    MutexLock lock(mutex_);
    if (is_closing_ || !worker->session->IsLast(connection)) return;
    if (worker->is_lost.exchange(true)) return;
  }
  const bool is_own = why.failure().ranks == std::vector<int>{worker->who.number};
  MYDIST_LOG(kWarning) << "server " << options_.listen.server << ": "
                       << (is_own ? "" : WorkerText(worker->who) + " leaves: ") << why.message();
  worker->session->End(Status::Aborted("server " + std::to_string(options_.listen.server) +
                                       " considers this worker lost: " + why.message()));
  store_.Lose(worker->who.number, why);
}

}  // namespace mydist::ps
