// Heartbeat: sends signs of life to the ranks next to this one in the tree of coordinators, and
// takes theirs, beside the connections of the job. So it notices a rank that is stopped, whose host
// is gone, or that the network cuts off, whether or not another rank waits for it.
// Owned by the Job. Its thread needs neither the GIL nor the engine; an idle rank wakes up once a
// second. One UDP socket for each watched rank, connected to that rank's: the kernel drops what
// others send, and tells when the peer's socket has closed. See decision 0022.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/own_sockets.h"
#include "base/status.h"
#include "job/pulse_watch.h"
#include "world/peer_findings.h"

namespace mydist {

// The address at which a rank receives heartbeats. It travels in one round of the bootstrap. Pure.
struct PulseAddress {
  struct Port {
    int32_t rank = 0;  // The rank that may send to the port.
    uint16_t port = 0;
    bool operator==(const Port&) const = default;
  };
  using Secret = std::array<uint8_t, 16>;

  std::string address;  // Numeric.
  Secret secret{};      // Each heartbeat to it has this in front.
  std::vector<Port> ports;

  bool operator==(const PulseAddress&) const = default;
};
std::vector<uint8_t> EncodePulseAddress(const PulseAddress& address);
// kInternal when it is malformed.
Result<PulseAddress> DecodePulseAddress(const std::vector<uint8_t>& bytes);

void WarnOfNoHeartbeat(const Status& why);

class Heartbeat {
 public:
  // On the heartbeat's thread, once for each peer.
  using OnFinding = std::function<void(const PeerFinding& finding)>;
  using NameOf = std::function<std::string(int rank)>;
  // Bytes that heartbeats carry. `tell` returns them, once for all peers; `take` gets a peer's.
  // On the heartbeat's thread. If there are more than kMaxNewsBytes, none are sent.
  static constexpr size_t kMaxNewsBytes = 1024;
  struct News {
    std::function<std::vector<uint8_t>()> tell;
    std::function<void(std::span<const uint8_t> news)> take;
  };

  // Opens a socket for each peer at a numeric address of this host. kInternal.
  static Result<std::unique_ptr<Heartbeat>> Open(int rank, const std::vector<PulsePeer>& peers,
                                                 const std::string& address, Duration limit);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // For the other ranks.
  std::vector<uint8_t> Address() const { return EncodePulseAddress(own_); }
  // `addresses`: of each rank of the job. A peer without one, or that cannot be reached, is not
  // watched.
  void Connect(const std::vector<std::vector<uint8_t>>& addresses);
  // `name_of`: a rank, for the log. Nothing happens where no peer is watched. kInternal when
  // the system has no thread left.
  Status Start(NameOf name_of, OnFinding on_finding, News news = {});
  // Ends the thread. By one thread; further calls do nothing.
  void Stop();
  // There is reason to fear that a rank has died: looks at once. Any thread; never blocks.
  void Hurry();

 private:
  struct Peer : PulsePeer {
    int socket = -1;
    bool has_failed = false;        // To send or receive, since the last look.
    PulseAddress::Secret secret{};  // Theirs.
  };

  Heartbeat(int rank, Duration limit) : rank_(rank), limit_(limit) {}
  Status OpenSocket(const PulsePeer& peer, const sockaddr* address, socklen_t bytes);
  Status ConnectTo(Peer& peer, const std::vector<uint8_t>& bytes);
  void Run();
  // Until the next look, a refusal that is news, or Hurry. False: the end.
  bool Sleep();
  void TellUnheard();
  void Listen(size_t index);
  void Send(size_t index, std::span<const uint8_t> news);

  const int rank_;
  const Duration limit_;
  PulseAddress own_;
  std::vector<Peer> peers_;
  std::unique_ptr<OwnSockets> own_sockets_;
  uint64_t number_ = 0;  // Of the last heartbeat.
  std::unique_ptr<PulseWatch> watch_;
  NameOf name_of_;
  OnFinding on_finding_;
  News news_;

  std::atomic<bool> stopped_{false};
  int wake_ = -1;  // An eventfd: written to by Hurry and Stop.
  std::vector<pollfd> polled_;
  std::thread thread_;
};

}  // namespace mydist
