// Transport conformance: what every backend's Transport must do. Every rank of the job calls
// RunTransportConformance with its own Transport, as a thread or as a process of its own; a failure
// is reported by the rank that sees it. Needs nothing but GoogleTest; works for any number of
// ranks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "conformance/status_checks.h"
#include "transport/transport.h"

namespace mydist::testing {

using Buffer = std::vector<uint8_t>;

// Eight bytes from `index` on of message number `message` from one rank to another: all differ.
inline uint64_t WordOf(int from, int to, int message, size_t index) {
  const auto mixed = static_cast<uint64_t>(index) * 31 + static_cast<uint64_t>(from) * 7919 +
                     static_cast<uint64_t>(to) * 104729 + static_cast<uint64_t>(message) * 1299709;
  const uint64_t product = mixed * 0x9e3779b97f4a7c15u;
  return product ^ product >> 29;
}

inline Buffer MessageOf(int from, int to, int message, int64_t bytes) {
  Buffer buffer(static_cast<size_t>(bytes));
  for (size_t i = 0; i < buffer.size(); i += sizeof(uint64_t)) {
    const uint64_t word = WordOf(from, to, message, i);
    std::memcpy(&buffer[i], &word, std::min(sizeof(word), buffer.size() - i));
  }
  return buffer;
}

// One Exchange with its memory: collects transfers, performs them, checks what arrived. Receive
// memory is poisoned and has guard bytes on both sides.
class CheckedExchange {
 public:
  explicit CheckedExchange(Transport& transport) : transport_(transport) {}

  void Send(int peer, int message, int64_t bytes) {
    outgoing_.push_back({peer, message, MessageOf(transport_.rank(), peer, message, bytes)});
  }

  void Receive(int peer, int message, int64_t bytes) {
    incoming_.push_back(
        {peer, message, Buffer(static_cast<size_t>(bytes + 2 * kGuardBytes), kPoison)});
  }

  void PerformAndCheck() {
    std::vector<SendTransfer> sends;
    std::vector<ReceiveTransfer> receives;
    for (Message& m : outgoing_) sends.push_back({m.peer, m.bytes.data(), BytesOf(m.bytes)});
    for (Message& m : incoming_) {
      receives.push_back(
          {m.peer, m.bytes.data() + kGuardBytes, BytesOf(m.bytes) - 2 * kGuardBytes});
    }
    ExpectOk(transport_.Exchange(sends, receives));
    for (const Message& m : outgoing_) {
      EXPECT_EQ(m.bytes, MessageOf(transport_.rank(), m.peer, m.number, BytesOf(m.bytes)))
          << "sending to rank " << m.peer << " changed the sender's memory";
    }
    for (const Message& m : incoming_) CheckReceived(m);
    outgoing_.clear();
    incoming_.clear();
  }

 private:
  static constexpr int64_t kGuardBytes = 16;
  static constexpr uint8_t kPoison = 0xA5;

  struct Message {
    int peer;
    int number;
    Buffer bytes;
  };

  static int64_t BytesOf(const Buffer& buffer) { return static_cast<int64_t>(buffer.size()); }

  void CheckReceived(const Message& message) {
    const auto begin = message.bytes.begin() + kGuardBytes;
    const auto end = message.bytes.end() - kGuardBytes;
    const Buffer expected = MessageOf(message.peer, transport_.rank(), message.number, end - begin);
    EXPECT_TRUE(std::equal(begin, end, expected.begin()))
        << "rank " << transport_.rank() << " got wrong bytes of message " << message.number << " ("
        << expected.size() << " bytes) from rank " << message.peer;
    const auto poisoned = [](uint8_t byte) { return byte == kPoison; };
    EXPECT_TRUE(std::all_of(message.bytes.begin(), begin, poisoned) &&
                std::all_of(end, message.bytes.end(), poisoned))
        << "rank " << transport_.rank() << ": bytes beside message " << message.number
        << " from rank " << message.peer << " were written";
  }

  Transport& transport_;
  std::vector<Message> outgoing_;
  std::vector<Message> incoming_;
};

template <typename Visitor>
void VisitPeers(const Transport& transport, Visitor visitor) {
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer != transport.rank()) visitor(peer);
  }
}

// Everybody with everybody, at sizes around what backends treat differently.
inline void CheckFullExchange(Transport& transport) {
  for (const int64_t bytes : {1, 3, 64, 4095, 4096, 65536, 65537, (1 << 20) + 7}) {
    CheckedExchange exchange(transport);
    VisitPeers(transport, [&](int peer) {
      exchange.Send(peer, 0, bytes);
      exchange.Receive(peer, 0, bytes);
    });
    exchange.PerformAndCheck();
  }
}

// Both directions at once, far beyond any socket buffer: must not wait for each other.
inline void CheckLargeExchange(Transport& transport, int64_t bytes) {
  CheckedExchange exchange(transport);
  const int right = (transport.rank() + 1) % transport.size();
  const int left = (transport.rank() + transport.size() - 1) % transport.size();
  exchange.Send(right, 0, bytes);
  exchange.Receive(left, 0, bytes);
  exchange.PerformAndCheck();
}

// Several messages per pair in one call and over calls: they match in order.
inline void CheckOrder(Transport& transport) {
  CheckedExchange exchange(transport);
  for (int call = 0; call < 5; ++call) {
    for (int i = 0; i < 40; ++i) {
      const int message = call * 40 + i;
      const int64_t bytes = 1 + (message * 977) % 5000;
      VisitPeers(transport, [&](int peer) {
        exchange.Send(peer, message, bytes);
        exchange.Receive(peer, message, bytes);
      });
    }
    exchange.PerformAndCheck();
  }
}

// The order of receives across peers is free: here, the reverse of the order of sends.
inline void CheckReversedPeers(Transport& transport) {
  CheckedExchange exchange(transport);
  for (int peer = 0; peer < transport.size(); ++peer) {
    const int reversed = transport.size() - 1 - peer;
    if (peer != transport.rank()) exchange.Send(peer, 0, 10000);
    if (reversed != transport.rank()) exchange.Receive(reversed, 0, 10000);
  }
  exchange.PerformAndCheck();
}

// One side only sends, the other only receives; a rank may have nothing to do at all.
inline void CheckOneWay(Transport& transport) {
  for (const int64_t bytes : {1, 100000, 3 << 20}) {
    CheckedExchange exchange(transport);
    VisitPeers(transport, [&](int peer) {
      if (transport.rank() == 0) exchange.Send(peer, 0, bytes);
      if (peer == 0) exchange.Receive(0, 0, bytes);
    });
    exchange.PerformAndCheck();
  }
  EXPECT_TRUE(transport.Exchange({}, {}).ok());
}

// 0 bytes are no message: the peer need not even know, and null is fine.
inline void CheckZeroBytes(Transport& transport) {
  std::vector<SendTransfer> sends;
  std::vector<ReceiveTransfer> receives;
  VisitPeers(transport, [&](int peer) {
    if (transport.rank() < peer) sends.push_back({peer, nullptr, 0});
    if (transport.rank() % 2 == 0) receives.push_back({peer, nullptr, 0});
  });
  ExpectOk(transport.Exchange(sends, receives));
  CheckedExchange exchange(transport);  // What follows is not confused by it.
  VisitPeers(transport, [&](int peer) {
    for (int message = 0; message < 6; ++message) {
      const int64_t bytes = message % 2 == 0 ? 0 : 50;
      exchange.Send(peer, message, bytes);
      exchange.Receive(peer, message, bytes);
    }
  });
  exchange.PerformAndCheck();
}

// Any pattern of sizes; all ranks draw the same numbers.
inline void CheckRandomTraffic(Transport& transport, uint32_t seed) {
  std::mt19937 random(seed);
  for (int call = 0; call < 30; ++call) {
    CheckedExchange exchange(transport);
    for (int from = 0; from < transport.size(); ++from) {
      for (int to = 0; to < transport.size(); ++to) {
        const uint32_t message_count = random() % 4;
        for (uint32_t m = 0; m < message_count; ++m) {
          const auto bytes = static_cast<int64_t>((random() % 300) << (random() % 9));
          if (from == to) continue;
          if (from == transport.rank()) exchange.Send(to, static_cast<int>(m), bytes);
          if (to == transport.rank()) exchange.Receive(from, static_cast<int>(m), bytes);
        }
      }
    }
    exchange.PerformAndCheck();
  }
}

inline void RunTransportConformance(Transport& transport) {
  EXPECT_GE(transport.rank(), 0);
  EXPECT_GT(transport.size(), transport.rank());
  CheckFullExchange(transport);
  CheckOrder(transport);
  CheckReversedPeers(transport);
  CheckOneWay(transport);
  CheckZeroBytes(transport);
  CheckRandomTraffic(transport, 20240229);
  if (transport.size() > 1) CheckLargeExchange(transport, int64_t{24} << 20);
}

}  // namespace mydist::testing
