// TransferCounts: how many pieces of tensors a rank has exchanged with each peer. A rank that fails
// tells each peer its counts before its goodbye. So a peer that waits for it knows at once whether
// a piece is still on its way, or none will come any more. Pure; owned by the MpiWorld.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace mydist {

class TransferCounts {
 public:
  // What a rank tells one peer of the pieces between the two.
  struct Told {
    uint64_t sent = 0;      // To the peer: these arrive.
    uint64_t received = 0;  // From the peer: it takes no more.

    // All ranks have one byte order.
    std::vector<uint8_t> Encode() const {
      std::vector<uint8_t> bytes(sizeof(Told));
      std::memcpy(bytes.data(), this, sizeof(Told));
      return bytes;
    }
    // kInternal when it has another length.
    static Result<Told> Decode(std::span<const uint8_t> bytes) {
      Told told;
      if (bytes.size() != sizeof(Told)) {
        return Status::Internal("counts of transfers have " + std::to_string(bytes.size()) +
                                " bytes, expected " + std::to_string(sizeof(Told)));
      }
      std::memcpy(&told, bytes.data(), sizeof(Told));
      return told;
    }
  };

  void Resize(int size) { peers_.resize(static_cast<size_t>(size)); }
  void BeginSend(int peer) { ++Of(peer).begun; }
  void EndSend(int peer) { ++Of(peer).told.sent; }
  void EndReceive(int peer) { ++Of(peer).told.received; }

  const Told& ToldTo(int peer) const { return peers_[static_cast<size_t>(peer)].told; }
  // Whether a receive, or a send, that is under way can still complete, given what the peer has
  // told when it left.
  bool MayReceive(int peer, const Told& told) const { return ToldTo(peer).received < told.sent; }
  bool MaySend(int peer, const Told& told) const {
    return peers_[static_cast<size_t>(peer)].begun <= told.received;
  }

 private:
  struct Peer {
    Told told;
    uint64_t begun = 0;  // Sends.
  };
  Peer& Of(int peer) { return peers_[static_cast<size_t>(peer)]; }

  std::vector<Peer> peers_;
};

}  // namespace mydist
