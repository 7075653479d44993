#include "job/pulse_watch.h"

#include <algorithm>

namespace mydist {
namespace {

// An idle rank wakes up so often at most.
constexpr Duration kLongestInterval = std::chrono::seconds(1);
constexpr int kLooksInLimit = 10;
// At first, and to make sure of a refusal: a peer that has just been restarted, or left in order,
// is told apart from a dead one by what else comes meanwhile.
constexpr Duration kShortInterval = std::chrono::milliseconds(100);
constexpr Duration kFirstTime = std::chrono::seconds(1);
constexpr int kHurriedLooks = 4;

}  // namespace

PulseWatch::PulseWatch(const std::vector<PulsePeer>& peers, Duration limit)
    : limit_(limit), interval_(std::min(kLongestInterval, limit / kLooksInLimit)) {
  for (const PulsePeer& peer : peers) peers_.push_back({peer});
}

bool PulseWatch::Hear(size_t index, uint64_t number) {
  Peer& peer = peers_[index];
  if (number <= peer.last_number) return false;
  peer.last_number = number;
  peer.is_heard = true;
  peer.is_refused = peer.is_refused_now = false;
  peer.silence = Duration::zero();
  return true;
}

void PulseWatch::Refuse(size_t index) { peers_[index].is_refused_now = true; }

std::vector<PeerFinding> PulseWatch::Look(TimePoint now) {
  const bool is_first = next_look_ == kPast;
  const Duration counted =
      is_first ? Duration::zero() : std::min(next_look_, now) - std::min(looked_at_, now);
  watched_ += counted;
  if (hurried_looks_ > 0) --hurried_looks_;
  std::vector<PeerFinding> findings;
  for (Peer& peer : peers_) {
    if (peer.is_found || !peer.is_heard) continue;
    peer.silence += counted;  // What this look has heard may be as old as the look before.
    // A firewall between hosts may refuse heartbeats of a peer that lives; then its own still come.
    const bool is_quiet = peer.is_here || hurried_looks_ > 0 || peer.silence > 2 * interval_;
    const bool is_dead = peer.is_refused && peer.is_refused_now && is_quiet;
    peer.is_refused = peer.is_refused || peer.is_refused_now;
    peer.is_refused_now = false;
    if (!is_dead && peer.silence < limit_) continue;
    peer.is_found = true;
    findings.push_back({.rank = peer.rank,
                        .kind = is_dead ? PeerFinding::Kind::kDead : PeerFinding::Kind::kSilent,
                        .silence = peer.silence});
  }
  looked_at_ = now;
  next_look_ = now + NextInterval();
  return findings;
}

Duration PulseWatch::NextInterval() const {
  const bool hurries = std::any_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    const bool is_new = !peer.is_heard && watched_ < kFirstTime;
    return !peer.is_found && (is_new || (peer.is_heard && peer.is_refused));
  });
  return hurries || hurried_looks_ > 0 ? std::min(kShortInterval, interval_) : interval_;
}

void PulseWatch::Hurry(TimePoint now) {
  hurried_looks_ = kHurriedLooks;
  next_look_ = std::min(next_look_, now);
}

bool PulseWatch::AwaitsRefusal(size_t index) const {
  const Peer& peer = peers_[index];
  return peer.is_heard && !peer.is_refused && !peer.is_found;
}

std::vector<int> PulseWatch::TakeUnheard() {
  std::vector<int> unheard;
  if (has_told_unheard_ || watched_ < limit_) return unheard;
  has_told_unheard_ = true;
  for (const Peer& peer : peers_) {
    if (!peer.is_heard) unheard.push_back(peer.rank);
  }
  return unheard;
}

}  // namespace mydist
