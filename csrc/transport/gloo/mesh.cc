#include "transport/gloo/mesh.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/log.h"
#include "base/signal_block.h"
#include "gloo/transport/address.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/device.h"
#include "world/departure.h"

namespace mydist {
namespace {

// A pair waits five times its time-out for its connection.
constexpr int kGlooConnectFactor = 5;
// No other transfers are under way yet.
constexpr uint64_t kGreetingSlot = 0;

}  // namespace

Result<std::unique_ptr<GlooContext>> GlooContext::Listen(
    int rank, int size, const std::string& address, std::chrono::milliseconds connect_timeout) {
  std::unique_ptr<GlooContext> made(new GlooContext(rank, size));
  try {
    gloo::transport::tcp::attr attributes(address.c_str());
    const SignalBlock block;  // For the device's thread.
    // That thread polls a connection while another thread has its lock. If it took the core from
    // the sending thread, it would poll until the next tick.
    const BatchScheduling batch;
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    made->context_ = device->createContext(rank, size);
    made->context_->setTimeout(
        std::max(std::chrono::milliseconds(1), connect_timeout / kGlooConnectFactor));
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) made->context_->createPair(peer);
    }
  } catch (const std::exception& error) {
    return Status::Internal("Gloo cannot listen on " + address + ": " + error.what() +
                            ". Check the address, the limit on open files (ulimit -n) and "
                            "MYDIST_NETWORK_INTERFACES.");
  }
  return made;
}

Bytes GlooContext::Addresses() const {
  Bytes all;
  for (int peer = 0; peer < size_; ++peer) {
    // Our own place keeps every element at index * size of an address.
    const int other = peer != rank_ ? peer : (rank_ == 0 ? 1 : 0);
    const std::vector<char> bytes = context_->getPair(other)->address().bytes();
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

Status GlooContext::Connect(const std::vector<Bytes>& addresses_by_rank) {
  Status first;  // The others may still have their connections, and need not wait for them.
  const size_t expected_bytes = Addresses().size();
  const size_t address_bytes = expected_bytes / static_cast<size_t>(size_);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Bytes& theirs = addresses_by_rank[static_cast<size_t>(peer)];
    if (theirs.size() != expected_bytes) {
      return Status::VersionMismatch(
          "rank " + std::to_string(peer) + " published " + std::to_string(theirs.size()) +
          " bytes of Gloo addresses, expected " + std::to_string(expected_bytes) +
          ". Install the same version of Gloo and mydist on all hosts.");
    }
    const auto begin = theirs.begin() + static_cast<std::ptrdiff_t>(rank_ * address_bytes);
    const std::vector<char> address(begin, begin + static_cast<std::ptrdiff_t>(address_bytes));
    try {
      context_->getPair(peer)->connect(address);
    } catch (const std::exception& error) {
      if (!first.ok()) continue;
      first = Status::Timeout("cannot connect to rank " + std::to_string(peer) +
                              " over Gloo: " + error.what() +
                              ". Is that rank alive, do all hosts use interfaces that reach each "
                              "other (MYDIST_NETWORK_INTERFACES), and does no firewall drop their "
                              "connections? MYDIST_TIMEOUT_SECONDS sets how long to wait.");
    }
  }
  return first;
}

Status GlooContext::Greet(const std::vector<Greeting>& greetings, std::chrono::milliseconds limit) {
  Greeting own = greetings[static_cast<size_t>(rank_)];
  std::vector<Greeting> theirs(static_cast<size_t>(size_));
  int peer = 0;
  const auto wrong = [&](const std::string& why) {
    return Status::PeerLost("another program than rank " + std::to_string(peer) +
                            " is connected to the Gloo port that this rank opened for it: " + why);
  };
  try {
    std::vector<GlooBuffer> received(static_cast<size_t>(size_));
    std::vector<GlooBuffer> sent(static_cast<size_t>(size_));
    for (peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const auto index = static_cast<size_t>(peer);
      received[index] = MakeBuffer(theirs[index].data(), sizeof(Greeting));
      received[index]->recv(peer, kGreetingSlot, 0, sizeof(Greeting));
      sent[index] = MakeBuffer(own.data(), sizeof(Greeting));
      sent[index]->send(peer, kGreetingSlot, 0, sizeof(Greeting));
    }
    for (peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const auto index = static_cast<size_t>(peer);
      received[index]->waitRecv(limit);
      sent[index]->waitSend(limit);
      if (theirs[index] != greetings[index]) return wrong("its greeting is wrong");
    }
  } catch (const std::exception& error) {
    return wrong(error.what());
  }
  sockets_.Keep();
  return Status::Ok();
}

GlooBuffer GlooContext::MakeBuffer(void* data, int64_t bytes) {
  return context_->createUnboundBuffer(data, static_cast<size_t>(bytes));
}

void GlooContext::ClosePair(int peer) {
  try {
    context_->getPair(peer)->close();
  } catch (const std::exception&) {
    // It is closed or broken already, which is what was wanted.
  }
}

Status Outbox::Send(FrameKind kind, Bytes payload, int cause_rank) {
  MutexLock lock(mutex_);
  return SendLocked(kind, std::move(payload), cause_rank);
}

Status Outbox::SendLocked(FrameKind kind, Bytes payload, int cause_rank) {
  if (said_goodbye_)
    return Status::Aborted("the connection to rank " + std::to_string(peer_) +
                           " is closing and takes no more messages");
  const Frame frame{.magic = kFrameMagic,
                    .kind = kind,
                    .payload_bytes = payload.size(),
                    .received_count = received_count_,
                    .cause_rank = cause_rank};
  Sent sent;
  sent.bytes.resize(sizeof(frame) + payload.size());
  std::memcpy(sent.bytes.data(), &frame, sizeof(frame));
  std::copy(payload.begin(), payload.end(), sent.bytes.begin() + sizeof(frame));
  const auto total_bytes = static_cast<int64_t>(sent.bytes.size());
  const int64_t eager_bytes = std::min(total_bytes, kEagerBytes);
  try {
    sent.buffer = context_->MakeBuffer(sent.bytes.data(), total_bytes);
    sent.buffer->send(peer_, kEagerSlot, 0, static_cast<size_t>(eager_bytes));
    if (total_bytes > eager_bytes) {
      sent.pieces = 2;
      sent.buffer->send(peer_, kRestSlot, static_cast<size_t>(eager_bytes),
                        static_cast<size_t>(total_bytes - eager_bytes));
    }
  } catch (const std::exception& error) {
    return Status::PeerLost(error.what());
  }
  unacknowledged_.push_back(std::move(sent));
  unannounced_count_ = 0;
  unannounced_bytes_ = 0;
  said_goodbye_ = kind == FrameKind::kGoodbye;
  return Status::Ok();
}

void Outbox::Acknowledge(uint64_t count) {
  MutexLock lock(mutex_);
  try {
    while (acknowledged_count_ < count && !unacknowledged_.empty()) {
      Sent& oldest = unacknowledged_.front();
      // The peer has the frame, so these return at once; they only let Gloo's own thread finish.
      for (; oldest.pieces > 0; --oldest.pieces) oldest.buffer->waitSend(kGlooForever);
      unacknowledged_.pop_front();
      ++acknowledged_count_;
    }
  } catch (const std::exception&) {
    // The connection broke; its receiver thread reports that.
  }
}

Status Outbox::NoteReceived(int64_t payload_bytes) {
  MutexLock lock(mutex_);
  ++received_count_;
  ++unannounced_count_;
  unannounced_bytes_ += payload_bytes;
  const bool due =
      unannounced_count_ >= kAcknowledgeFrames || unannounced_bytes_ >= kAcknowledgeBytes;
  if (!due || said_goodbye_) return Status::Ok();
  return SendLocked(FrameKind::kAcknowledge, {}, -1);
}

Status Outbox::Flush(TimePoint deadline) {
  MutexLock lock(mutex_);
  try {
    for (Sent& sent : unacknowledged_) {
      for (; sent.pieces > 0; --sent.pieces) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Now());
        sent.buffer->waitSend(deadline == kNever ? kGlooForever
                                                 : std::max(left, std::chrono::milliseconds(0)));
      }
    }
  } catch (const std::exception& error) {
    return Status::Timeout("rank " + std::to_string(peer_) +
                           " did not take all messages before the deadline: " + error.what());
  }
  return Status::Ok();
}

Mesh::Mesh(std::unique_ptr<GlooContext> context, std::vector<std::string> places)
    : context_(std::move(context)), places_(std::move(places)), states_(context_->size()) {
  for (int peer = 0; peer < size(); ++peer) {
    outboxes_.push_back(std::make_unique<Outbox>(context_.get(), peer));
  }
}

std::string Mesh::Name(int peer) const {
  return "rank " + std::to_string(peer) + " (" + places_[static_cast<size_t>(peer)] + ")";
}

Status Mesh::LostConnection(int peer, const std::string& what) const {
  // Which of the two is not known: a middlebox may reset a connection of living processes.
  return Status::PeerLost("lost the connection to " + Name(peer) + ": " + what +
                          ". Either that process has died, or the network has cut the connection; "
                          "see its output and exit code.")
      .About({.ranks = {peer}});
}

void Mesh::ReportLoss(int peer, const Status& reason) {
  if (states_.MarkLost(peer, reason) || states_.Explain(peer, reason)) mailbox_.PutLoss(reason);
}

void Mesh::SetFarewell(const std::string& why) {
  farewell_ = why;
  const Status told = PeerHasLeft(rank(), Name(rank()), why);
  const std::vector<int>& blamed = told.failure().ranks;
  if (blamed.size() == 1) states_.Explain(blamed.front(), told);
}

Status Mesh::SayGoodbye(TimePoint deadline) {
  const int cause_rank = states_.cause_rank();
  const Status loss = states_.loss();
  std::string why = loss.ok() ? farewell_ : FarewellWords(loss);
  why.resize(std::min(why.size(), kMaxFarewellBytes));
  const Bytes words(why.begin(), why.end());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Status sent = outbox(peer).Send(FrameKind::kGoodbye, words, cause_rank);
    if (!sent.ok()) {
      MYDIST_LOG(kDebug) << "cannot send a goodbye to " << Name(peer) << ": " << sent.message();
    }
  }
  if (!states_.AwaitAllEnded(rank(), deadline)) {
    return Status::Timeout(
        "rank(s) " + states_.OpenRanks(rank()) +
        " did not close their connections in time; they may be busy or stopped. See their output.");
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && states_.loss().ok()) {
      MYDIST_RETURN_IF_ERROR(outbox(peer).Flush(deadline));
    }
  }
  return states_.loss();
}

void Mesh::Break(const Status& error) {
  const std::vector<int>& blamed = error.failure().ranks;
  if (blamed.size() == 1) states_.Explain(blamed.front(), error);
  const Status farewell = SayGoodbye(Now() + kBreakGrace);
  MYDIST_LOG(kDebug) << "dropping all connections: " << farewell.ToString();
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    context_->ClosePair(peer);
    states_.MarkDeparted(peer, "");  // No wait for its goodbye any more.
  }
}

}  // namespace mydist
