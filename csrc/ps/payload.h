// Payload: bytes that came with a frame, where they lie: in a window that worker and server share,
// or in memory of the server's own. Moves only; its end lets go of the memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace mydist::ps {

class Payload {
 public:
  Payload() = default;
  // `release` is called at its end.
  Payload(std::span<const uint8_t> bytes, std::function<void()> release)
      : bytes_(bytes), release_(std::move(release)) {}
  explicit Payload(std::vector<uint8_t> own) : own_(std::move(own)), bytes_(own_) {}
  ~Payload() { Release(); }
  Payload(Payload&& other) noexcept { *this = std::move(other); }
  Payload& operator=(Payload&& other) noexcept {
    if (this == &other) return *this;
    Release();
    own_ = std::move(other.own_);
    bytes_ = std::exchange(other.bytes_, {});
    release_ = std::exchange(other.release_, nullptr);
    return *this;
  }

  std::span<const uint8_t> bytes() const { return bytes_; }
  // Whether the bytes lie where the worker may not write until they are let go.
  bool is_borrowed() const { return release_ != nullptr; }
  // Copies borrowed bytes and lets go of them.
  void Keep() {
    if (!is_borrowed()) return;
    std::vector<uint8_t> own(bytes_.begin(), bytes_.end());
    Release();
    own_ = std::move(own);
    bytes_ = own_;
  }

 private:
  void Release() {
    if (release_ != nullptr) std::exchange(release_, nullptr)();
    bytes_ = {};
  }

  std::vector<uint8_t> own_;
  std::span<const uint8_t> bytes_;
  std::function<void()> release_;
};

}  // namespace mydist::ps
