// CountingTransport: passes everything on and counts what is sent.
#pragma once

#include <cstdint>

#include "transport/transport.h"

namespace mydist::testing {

class CountingTransport final : public Transport {
 public:
  explicit CountingTransport(Transport& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override {
    ++exchange_count_;
    for (const SendTransfer& send : sends) {
      ++message_count_;
      sent_bytes_ += send.bytes;
    }
    return inner_.Exchange(sends, receives);
  }

  void Reset() { sent_bytes_ = message_count_ = exchange_count_ = 0; }
  int64_t sent_bytes() const { return sent_bytes_; }
  int64_t message_count() const { return message_count_; }
  int64_t exchange_count() const { return exchange_count_; }

 private:
  Transport& inner_;
  int64_t sent_bytes_ = 0;
  int64_t message_count_ = 0;
  int64_t exchange_count_ = 0;
};

}  // namespace mydist::testing
