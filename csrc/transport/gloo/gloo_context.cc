#include "transport/gloo/gloo_context.h"

#include <cstring>
#include <exception>

#include "base/signal_block.h"
#include "base/status.h"
#include "gloo/transport/address.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/device.h"

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

}  // namespace mydist
