// Payload: bytes that came with a frame, where they lie: in a window that worker and server share,
// or in memory of the server's own. Moves only; its end lets go of the memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ps/buffer.h"

namespace mydist::ps {

class Payload {
 public:
  // Of bytes that are not its own. Called with the locks of the piece that holds it.
  struct Owner {
    // The bytes are read no more.
    std::function<void()> on_release = nullptr;
    // The bytes have been copied, long before their request is answered.
    std::function<void()> on_copied = nullptr;
    // Whether they must not stay where they are while their request waits.
    bool is_short_of_room = false;
  };

  Payload() = default;
  Payload(std::span<uint8_t> bytes, Owner owner)
      : bytes_(bytes), owner_(std::make_unique<Owner>(std::move(owner))) {}
  explicit Payload(std::vector<uint8_t> own) : own_(std::move(own)), bytes_(own_) {}
  // The same, of memory that need not be zeroed first.
  Payload(Buffer own, size_t byte_count)
      : buffer_(std::move(own)), bytes_(buffer_.get(), byte_count) {}
  ~Payload() { Release(); }
  Payload(Payload&& other) noexcept { *this = std::move(other); }
  Payload& operator=(Payload&& other) noexcept {
    if (this == &other) return *this;
    Release();
    own_ = std::move(other.own_);
    buffer_ = std::move(other.buffer_);
    bytes_ = std::exchange(other.bytes_, {});
    owner_ = std::move(other.owner_);
    return *this;
  }

  std::span<const uint8_t> bytes() const { return bytes_; }
  // The same memory, for who needs the bytes no more.
  std::span<uint8_t> room() { return bytes_; }

  // Whether it is memory of another owner.
  bool is_borrowed() const { return owner_ != nullptr; }

  // Its request is to wait for others.
  void Hold() {
    if (owner_ != nullptr && owner_->is_short_of_room) Copy();
  }
  // Its request is answered before the bytes are read.
  void Copy() {
    if (owner_ == nullptr) return;
    Buffer copy = TakeBuffer(bytes_.size());
    std::copy(bytes_.begin(), bytes_.end(), copy.get());
    CopyAs(Payload(std::move(copy), bytes_.size()));
  }
  // The same, where a part of it is enough.
  void CopyAs(Payload part) {
    std::function<void()> on_copied;
    if (owner_ != nullptr) on_copied = std::move(owner_->on_copied);
    *this = std::move(part);
    if (on_copied != nullptr) on_copied();
  }

 private:
  void Release() {
    bytes_ = {};
    const std::unique_ptr<Owner> owner = std::move(owner_);
    if (owner != nullptr && owner->on_release != nullptr) owner->on_release();
  }

  std::vector<uint8_t> own_;
  Buffer buffer_;
  std::span<uint8_t> bytes_;
  std::unique_ptr<Owner> owner_;
};

}  // namespace mydist::ps
