// PulseWatch: which of the watched ranks have died or fallen silent, judged by their heartbeats.
// Pure: the caller tells the time. Owned by Heartbeat; used by its thread.
// Silence is counted in looks of this rank, and a look that comes late counts no more than one in
// time: a machine that is busy or was paused as a whole makes no peer look dead.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "world/peer_findings.h"

namespace mydist {

struct PulsePeer {
  int rank = 0;
  bool is_here = false;  // On this host, so that no network is between.
};

class PulseWatch {
 public:
  // `limit`, above zero: the longest silence of a rank that lives.
  PulseWatch(const std::vector<PulsePeer>& peers, Duration limit);

  // Counts a heartbeat of peers[index]. Returns false for a copy: its number is not above that of
  // the last one.
  bool Hear(size_t index, uint64_t number);
  // Its host says that no process takes our heartbeats any more.
  void Refuse(size_t index);
  // To be called at NextLook, and after a refusal that is news, when what has come has been heard.
  // What is new; each peer once.
  std::vector<PeerFinding> Look(TimePoint now);
  TimePoint NextLook() const { return next_look_; }
  // There is reason to fear that a peer has died: the next looks follow soon.
  void Hurry(TimePoint now);
  // Whether a refusal of this peer would be news.
  bool AwaitsRefusal(size_t index) const;
  bool IsFound(size_t index) const { return peers_[index].is_found; }

  // Peers that have never been heard for `limit`, so that their silence means nothing; each once.
  std::vector<int> TakeUnheard();

 private:
  struct Peer : PulsePeer {
    uint64_t last_number = 0;
    bool is_heard = false;  // Ever. A network may let no heartbeat through.
    bool is_found = false;
    bool is_refused = false;  // Since the last heartbeat, at an earlier look.
    bool is_refused_now = false;
    Duration silence{};
  };
  Duration NextInterval() const;

  const Duration limit_;
  const Duration interval_;
  std::vector<Peer> peers_;
  TimePoint looked_at_ = kNever;
  Duration watched_{};     // As silence is counted.
  int hurried_looks_ = 0;  // Still to come.
  bool has_told_unheard_ = false;
  TimePoint next_look_ = kPast;
};

}  // namespace mydist
