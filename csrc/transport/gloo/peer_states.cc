#include "transport/gloo/peer_states.h"

namespace mydist {

void PeerStates::MarkDeparted(int peer, const std::string& why) {
  MutexLock lock(mutex_);
  if (!why.empty()) farewells_[static_cast<size_t>(peer)] = why;
  State& state = states_[static_cast<size_t>(peer)];
  if (state == State::kOpen) state = State::kDeparted;
  if (waited_for_peer_ == peer) InterruptWait();
  changed_.NotifyAll();
}

bool PeerStates::MarkLost(int peer, const Status& reason) {
  MutexLock lock(mutex_);
  State& state = states_[static_cast<size_t>(peer)];
  const bool is_news = state != State::kLost;
  state = State::kLost;
  // Also when it is no news: it may have been taken for a consequence before.
  if (loss_.ok() && (!wait_is_bounded_ || peer == waited_for_peer_)) {
    loss_ = reason;
    cause_rank_ = peer;
  }
  if (!is_news) return false;
  InterruptWait();
  changed_.NotifyAll();
  return true;
}

bool PeerStates::Explain(int peer, const Status& reason) {
  MutexLock lock(mutex_);
  const bool tells_more = reason.failure().signal != 0 && loss_.failure().signal == 0;
  if (loss_.ok() || peer != cause_rank_ || !tells_more) return false;
  loss_ = reason;
  return true;
}

void PeerStates::Interrupt() {
  MutexLock lock(mutex_);
  InterruptWait();
}

void PeerStates::InterruptWait() {
  if (waited_for_ == nullptr) return;
  // Whichever of the two the engine is in; the flag of the other does no harm, since the transport
  // uses a buffer for one direction only.
  waited_for_->abortWaitRecv();
  waited_for_->abortWaitSend();
}

bool PeerStates::HasDeparted(int peer) const {
  MutexLock lock(mutex_);
  return states_[static_cast<size_t>(peer)] == State::kDeparted;
}

bool PeerStates::IsOpen(int peer) const {
  MutexLock lock(mutex_);
  return states_[static_cast<size_t>(peer)] == State::kOpen;
}

std::string PeerStates::farewell(int peer) const {
  MutexLock lock(mutex_);
  return farewells_[static_cast<size_t>(peer)];
}

Status PeerStates::loss() const {
  MutexLock lock(mutex_);
  return loss_;
}

int PeerStates::cause_rank() const {
  MutexLock lock(mutex_);
  return cause_rank_;
}

bool PeerStates::AwaitAllEnded(int self, TimePoint deadline) {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != self && !AwaitEnded(peer, deadline)) return false;
  }
  return true;
}

bool PeerStates::AwaitEnded(int peer, TimePoint deadline) {
  MutexLock lock(mutex_);
  const State& state = states_[static_cast<size_t>(peer)];
  while (state == State::kOpen && changed_.WaitUntil(mutex_, deadline)) {
  }
  return state != State::kOpen;
}

std::string PeerStates::OpenRanks(int self) const {
  MutexLock lock(mutex_);
  std::string ranks;
  for (size_t peer = 0; peer < states_.size(); ++peer) {
    if (static_cast<int>(peer) == self || states_[peer] != State::kOpen) continue;
    if (!ranks.empty()) ranks += ", ";
    ranks += std::to_string(peer);
  }
  return ranks;
}

PeerStates::Patience PeerStates::BeginWait(gloo::transport::UnboundBuffer* buffer, int peer) {
  MutexLock lock(mutex_);
  if (!loss_.ok()) return Patience::kNone;
  waited_for_ = buffer;
  waited_for_peer_ = peer;
  wait_is_bounded_ = states_[static_cast<size_t>(peer)] != State::kOpen;
  return wait_is_bounded_ ? Patience::kBounded : Patience::kUnbounded;
}

void PeerStates::EndWait() {
  MutexLock lock(mutex_);
  waited_for_ = nullptr;
  waited_for_peer_ = -1;
  wait_is_bounded_ = false;
}

}  // namespace mydist
