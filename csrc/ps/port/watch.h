// Watch: waits for a socket that has another owner, which closes it after the watch has ended.
#pragma once

#include <asio/any_io_executor.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <utility>

#include "base/status.h"

namespace mydist::ps {

// One thread at a time.
class Watch {
 public:
  explicit Watch(const asio::any_io_executor& executor) : descriptor_(executor) {}
  ~Watch() { Stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // kInternal when the system refuses.
  Status Start(int socket) {
    asio::error_code error;
    descriptor_.assign(socket, error);
    if (!error) return Status::Ok();
    return Status::Internal("the system cannot watch a socket: " + error.message());
  }
  void Stop() {
    if (descriptor_.is_open()) descriptor_.release();
  }

  // `body` is called by the executor: once there is something to read, or room to write, or an
  // error to find, and when the watch stops.
  template <typename Body>
  void ForBytes(Body body) {
    Wait(asio::posix::descriptor_base::wait_read, std::move(body));
  }
  template <typename Body>
  void ForRoom(Body body) {
    Wait(asio::posix::descriptor_base::wait_write, std::move(body));
  }

 private:
  template <typename Body>
  void Wait(asio::posix::descriptor_base::wait_type what, Body body) {
    descriptor_.async_wait(what,
                           [body = std::move(body)](const asio::error_code&) mutable { body(); });
  }

  asio::posix::stream_descriptor descriptor_;
};

}  // namespace mydist::ps
