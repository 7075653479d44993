// Arrival: a connection to a server before it is a link. The handshake of greeting.h, seen from the
// server. On the strand of its Reception.
#pragma once

#include <array>
#include <asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "ps/port/greeting.h"
#include "ps/port/reception.h"
#include "ps/port/socket.h"
#include "ps/port/watch.h"
#include "ps/port/window.h"

namespace mydist::ps {

class Arrival final : public std::enable_shared_from_this<Arrival> {
 public:
  Arrival(std::shared_ptr<Reception> reception, Socket socket, bool is_local);

  void Start();
  // Closes the connection.
  void Close();

 private:
  // Closes and forgets it. A line in the log says why.
  void TurnAway(const std::string& why);
  enum class Step { kHello, kProof, kGreetingLength, kGreeting };

  Status CheckPeer();
  void Expect(Step step, size_t byte_count);
  void Read();
  Status Take();
  Status TakeHello();
  Status TakeProof();
  Status TakeGreeting();
  Status Answer(std::span<const uint8_t> bytes);
  std::shared_ptr<Window> MapWindow(uint64_t bytes) const;

  const std::shared_ptr<Reception> reception_;
  Socket socket_;
  const bool is_local_;
  std::string from_;
  Watch watch_;
  asio::steady_timer deadline_;
  bool is_over_ = false;

  Step step_ = Step::kHello;
  std::array<uint8_t, kMaxGreetingBytes> bytes_;
  size_t got_ = 0;
  size_t expected_ = 0;
  Nonce worker_nonce_{};
  Nonce server_nonce_{};
  Descriptor file_;  // Of the window.
};

}  // namespace mydist::ps
