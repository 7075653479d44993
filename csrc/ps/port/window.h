// Window: memory that a worker and a server of one host share. The worker makes it, with all of its
// pages, and no side can make the file shorter: a touch of it cannot fail later.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "ps/port/socket.h"

namespace mydist::ps {

class Window {
 public:
  // Of the worker: makes the file, which `file` becomes, for the server. kInternal when the system
  // has no such memory.
  static Result<std::shared_ptr<Window>> Make(uint64_t bytes, Descriptor& file);
  // Of the server: maps what a worker has sent. kInternal unless it is memory of this size that
  // cannot shrink.
  static Result<std::shared_ptr<Window>> Map(const Descriptor& file, uint64_t bytes);

  explicit Window(std::span<uint8_t> memory) : memory_(memory) {}
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  std::span<uint8_t> memory() const { return memory_; }

 private:
  const std::span<uint8_t> memory_;
};

}  // namespace mydist::ps
