#include "job/heartbeat.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "base/thread.h"

namespace mydist {
namespace {

constexpr uint8_t kFormat = 2;
constexpr size_t kMaxAddressBytes = 64;
// The secret of the rank that takes it, and the number. News follow.
constexpr size_t kPulseBytes = std::tuple_size_v<PulseAddress::Secret> + 8;
// Of one peer at one look; more than it sends between two.
constexpr int kMostPulses = 64;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

std::optional<SocketAddress> Resolve(const std::string& address, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  SocketAddress resolved;
  std::memcpy(&resolved.storage, found->ai_addr, found->ai_addrlen);
  resolved.bytes = found->ai_addrlen;
  return resolved;
}

Status SystemError(const std::string& what) {
  const int error = errno;
  return Status::Internal(what + ": " + std::strerror(error));
}

}  // namespace

std::vector<uint8_t> EncodePulseAddress(const PulseAddress& address) {
  ByteWriter writer;
  writer.U8(kFormat);
  writer.String(address.address, kMaxAddressBytes);
  writer.Raw(address.secret);
  writer.Count(address.ports.size());
  for (const auto& [rank, port] : address.ports) {
    writer.I32(rank);
    writer.U32(port);
  }
  return std::move(writer).Take();
}

Result<PulseAddress> DecodePulseAddress(const std::vector<uint8_t>& bytes) {
  ByteReader reader(bytes, "address for heartbeats");
  PulseAddress address;
  if (const uint8_t format = reader.U8(); format != kFormat) {
    reader.Fail("its format is " + std::to_string(format) + ", expected " +
                std::to_string(kFormat));
  }
  address.address = reader.String(kMaxAddressBytes);
  const std::span<const uint8_t> secret = reader.Raw(address.secret.size());
  std::copy(secret.begin(), secret.end(), address.secret.begin());
  address.ports.resize(reader.Count(8));
  for (auto& [rank, port] : address.ports) {
    rank = reader.I32();
    const uint32_t number = reader.U32();
    if (number == 0 || number > UINT16_MAX) reader.Fail("a port is outside 1 to 65535");
    port = static_cast<uint16_t>(number);
  }
  MYDIST_RETURN_IF_ERROR(reader.Finish());
  return address;
}

void WarnOfNoHeartbeat(const Status& why) {
  MYDIST_LOG(kWarning)
      << "this rank sends and receives no heartbeats, so the others cannot tell when it "
         "falls silent: "
      << why.message();
}

Result<std::unique_ptr<Heartbeat>> Heartbeat::Open(int rank, const std::vector<PulsePeer>& peers,
                                                   const std::string& address, Duration limit) {
  std::unique_ptr<Heartbeat> heartbeat(new Heartbeat(rank, limit));
  heartbeat->own_.address = address;
  PulseAddress::Secret& secret = heartbeat->own_.secret;
  if (getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    return SystemError("cannot get random bytes from the kernel (getrandom)");
  }
  const std::optional<SocketAddress> own = Resolve(address, 0);
  if (!own) return Status::Internal("'" + address + "' is not a numeric address");
  for (const PulsePeer& peer : peers) {
    MYDIST_RETURN_IF_ERROR(heartbeat->OpenSocket(peer, own->get(), own->bytes));
  }
  std::vector<int> descriptors;
  for (const Peer& peer : heartbeat->peers_) descriptors.push_back(peer.socket);
  heartbeat->own_sockets_ = std::make_unique<OwnSockets>(descriptors);
  heartbeat->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (heartbeat->wake_ < 0) return SystemError("cannot open an eventfd for heartbeats");
  return heartbeat;
}

Status Heartbeat::OpenSocket(const PulsePeer& peer, const sockaddr* address, socklen_t bytes) {
  const int fd = socket(address->sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return SystemError("cannot open a UDP socket");
  peers_.push_back({{peer}, fd});
  SocketAddress bound{.bytes = sizeof(sockaddr_storage)};
  if (bind(fd, address, bytes) != 0 || getsockname(fd, bound.get(), &bound.bytes) != 0) {
    return SystemError("cannot bind a UDP socket to " + own_.address);
  }
  const uint16_t port = address->sa_family == AF_INET6
                            ? reinterpret_cast<const sockaddr_in6*>(bound.get())->sin6_port
                            : reinterpret_cast<const sockaddr_in*>(bound.get())->sin_port;
  own_.ports.push_back({peer.rank, ntohs(port)});
  return Status::Ok();
}

void Heartbeat::Stop() {
  if (!thread_.joinable()) return;
  stopped_.store(true);
  Hurry();
  thread_.join();
}

Heartbeat::~Heartbeat() {
  Stop();
  own_sockets_.reset();
  if (wake_ >= 0) close(wake_);
  for (const Peer& peer : peers_) close(peer.socket);
}

Status Heartbeat::ConnectTo(Peer& peer, const std::vector<uint8_t>& bytes) {
  if (bytes.empty()) return Status::Internal("it receives none");
  MYDIST_ASSIGN_OR_RETURN(const PulseAddress theirs, DecodePulseAddress(bytes));
  const auto is_ours = [&](const PulseAddress::Port& port) { return port.rank == rank_; };
  const auto port = std::find_if(theirs.ports.begin(), theirs.ports.end(), is_ours);
  if (port == theirs.ports.end()) return Status::Internal("it opened no port for this rank");
  const std::optional<SocketAddress> address = Resolve(theirs.address, port->port);
  peer.secret = theirs.secret;
  if (address && connect(peer.socket, address->get(), address->bytes) == 0) return Status::Ok();
  return SystemError("there is no route from " + own_.address + " to " + theirs.address);
}

void Heartbeat::Connect(const std::vector<std::vector<uint8_t>>& addresses) {
  for (Peer& peer : peers_) {
    const std::vector<uint8_t>& address = addresses[static_cast<size_t>(peer.rank)];
    const Status connected = ConnectTo(peer, address);
    if (connected.ok()) continue;
    const std::string text = "rank " + std::to_string(peer.rank) +
                             " gets no heartbeats from this rank: " + connected.message();
    if (address.empty()) {
      MYDIST_LOG(kInfo) << text;  // That rank warns of it itself.
    } else {
      MYDIST_LOG(kWarning) << text;
    }
    close(std::exchange(peer.socket, -1));
  }
  std::erase_if(peers_, [](const Peer& peer) { return peer.socket < 0; });
}

Status Heartbeat::Start(NameOf name_of, OnFinding on_finding, News news) {
  if (peers_.empty()) return Status::Ok();
  watch_ =
      std::make_unique<PulseWatch>(std::vector<PulsePeer>(peers_.begin(), peers_.end()), limit_);
  name_of_ = std::move(name_of);
  on_finding_ = std::move(on_finding);
  news_ = std::move(news);
  polled_.assign(peers_.size() + 1, {-1, 0, 0});
  polled_.front() = {wake_, POLLIN, 0};
  MYDIST_ASSIGN_OR_RETURN(thread_,
                          StartThread("mydist-pulse", "for heartbeats", [this] { Run(); }));
  return Status::Ok();
}

void Heartbeat::Hurry() {
  const uint64_t one = 1;
  if (wake_ >= 0) [[maybe_unused]]
    const ssize_t written = write(wake_, &one, sizeof one);
}

void Heartbeat::Run() {
  do {
    for (size_t index = 0; index < peers_.size(); ++index) Listen(index);
    for (const PeerFinding& finding : watch_->Look(Now())) on_finding_(finding);
    TellUnheard();
    ++number_;
    std::vector<uint8_t> news;
    if (news_.tell) news = news_.tell();
    if (news.size() > kMaxNewsBytes) news.clear();
    for (size_t index = 0; index < peers_.size(); ++index) {
      if (!watch_->IsFound(index)) Send(index, news);
    }
  } while (Sleep());
}

bool Heartbeat::Sleep() {
  // Without events a descriptor still polls for an error: a refusal, but no heartbeat, ends it.
  for (size_t index = 0; index < peers_.size(); ++index) {
    const bool is_news = watch_->AwaitsRefusal(index) && !peers_[index].has_failed;
    polled_[index + 1].fd = is_news ? peers_[index].socket : -1;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(watch_->NextLook() - Now());
  poll(polled_.data(), polled_.size(), static_cast<int>(std::max<int64_t>(left.count(), 0)));
  uint64_t count = 0;
  if (read(wake_, &count, sizeof count) > 0) watch_->Hurry(Now());
  return !stopped_.load();
}

void Heartbeat::TellUnheard() {
  // A line that has to wait would stop the heartbeats: then the others would find this rank silent.
  if (!LogTakesLine()) return;
  const std::vector<int> unheard = watch_->TakeUnheard();
  if (unheard.empty()) return;
  const std::string more =
      unheard.size() > 1 ? " and of " + std::to_string(unheard.size() - 1) + " more" : "";
  MYDIST_LOG(kWarning) << "no heartbeat of " << name_of_(unheard.front()) << more
                       << " has come, so this rank cannot tell when it falls silent. Let UDP pass "
                          "between these ranks, or set MYDIST_HEARTBEAT_TIMEOUT_SECONDS=0.";
}

void Heartbeat::Listen(size_t index) {
  std::array<uint8_t, kPulseBytes + kMaxNewsBytes> bytes;
  peers_[index].has_failed = false;
  for (int i = 0; i < kMostPulses; ++i) {
    // With MSG_TRUNC the length is the sender's, however short the buffer.
    const ssize_t length = recv(peers_[index].socket, bytes.data(), bytes.size(), MSG_TRUNC);
    if (length < 0 && errno == ECONNREFUSED) {
      watch_->Refuse(index);
    } else if (length < 0) {
      peers_[index].has_failed = errno != EAGAIN && errno != EWOULDBLOCK;
      return;
    }
    const auto count = static_cast<size_t>(length);
    if (count < kPulseBytes || count > bytes.size()) continue;
    ByteReader reader(std::span<const uint8_t>(bytes).first(count), "heartbeat");
    const std::span<const uint8_t> secret = reader.Raw(own_.secret.size());
    if (!std::equal(secret.begin(), secret.end(), own_.secret.begin())) continue;
    const bool is_new = watch_->Hear(index, reader.U64());
    if (is_new && news_.take) news_.take(reader.Raw(count - kPulseBytes));
  }
}

void Heartbeat::Send(size_t index, std::span<const uint8_t> news) {
  const Peer& peer = peers_[index];
  ByteWriter writer;
  writer.Raw(peer.secret);
  writer.U64(number_);
  writer.Raw(news);
  const std::vector<uint8_t> bytes = std::move(writer).Take();
  // The kernel may answer with what became of the one before; then this one has not been sent.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (send(peer.socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0) return;
    if (errno != ECONNREFUSED) return;
    watch_->Refuse(index);
  }
}

}  // namespace mydist
