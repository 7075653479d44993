#include "memory/shm/arena.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "memory/shm/arena_handshake.h"
#include "memory/shm/bell.h"
#include "memory/shm/peer_memory.h"
#include "world/departure.h"

namespace mydist::shm {
namespace {

const Nonce& ThisProcess() {
  static const Nonce kNonce = RandomNonce();
  return kNonce;
}

// Equal shares of what there is, so that ranks that need the same find it alike; together not more
// than address spaces bear.
int64_t ZoneBytes(const ArenaOptions& options) {
  constexpr int64_t kMostBytes = int64_t{1} << 40;
  int64_t bytes = options.zone_bytes;
  if (bytes == ArenaOptions::kAutomaticZone) {
    bytes = std::min(ArenaFile::RoomOf(options.directory).tensor_bytes(), kMostBytes) /
            static_cast<int64_t>(options.ranks.size());
  }
  return RoundDown(bytes, kHeapGrainBytes);
}

}  // namespace

Result<Arena::Establishment> Arena::Establish(const ArenaOptions& options,
                                              const ArenaExchange& exchange) {
  return Handshake(options, exchange).Run();
}

void Arena::AppendHeap(const ArenaOptions& options) {
  const int64_t zone_bytes = ZoneBytes(options);
  if (zone_bytes == 0) return;
  const Status extended = file_->Extend(layout_.HeapBase() + zone_bytes * size());
  if (extended.ok()) header().zone_bytes = zone_bytes;
}

Status Arena::NoHeap(int64_t bytes) const {
  if (header().zone_bytes <= 0) {
    // A rank's part of the heap would have been of whole grains.
    return file_->NoRoomForTensors(RoundUp(bytes, kHeapGrainBytes), size());
  }
  return Status::Internal("shared memory holds no tensors: " + heap_refusal_);
}

void Arena::MapHeap() {
  const int64_t zone_bytes = header().zone_bytes;
  if (zone_bytes <= 0) {
    heap_refusal_ = "the file system has no room for them";
    return;
  }
  if ((file_->length_bytes() - layout_.HeapBase()) / size() < zone_bytes) {
    heap_refusal_ =
        "the shared file is shorter than its header says; do all ranks run the same build?";
    return;
  }
  auto heap = ArenaHeap::Map(file_, {layout_.HeapBase(), zone_bytes, size()}, index_);
  if (heap.ok()) {
    heap_ = *std::move(heap);
  } else {
    heap_refusal_ = heap.status().message();
  }
}

std::string Arena::ProbePeers(const ArenaOptions& options) const {
  if (options.cross_memory_attach == CrossMemoryAttach::kOff)
    return "switched off by MYDIST_CROSS_MEMORY_ATTACH";
  for (int peer = 0; peer < size(); ++peer) {
    const RankLine& line = rank_line(peer);
    const std::string refusal = cross_memory::Probe(static_cast<pid_t>(line.pid.load()),
                                                    line.probe_address.load(), line.process);
    if (!refusal.empty()) return Name(peer) + ": " + refusal;
  }
  return "";
}

std::optional<int> Arena::IndexOf(int rank) const {
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end() || *found != rank) return std::nullopt;
  return static_cast<int>(found - ranks_.begin());
}

bool Arena::AnyPrefersAttach() const {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank_line(rank).prefers_attach.load()) return true;
  }
  return false;
}

bool Arena::SleepersOrder() const {
  for (int rank = 0; rank < size(); ++rank) {
    if (!rank_line(rank).accepts_sleeper_barriers.load()) return false;
  }
  return true;
}

Arena::~Arena() { Leave(""); }

Status Arena::Enter(const ArenaOptions& options) {
  MYDIST_RETURN_IF_ERROR(file_->Lock(index_));
  RankLine& line = rank_line(index_);
  line.pid.store(getpid());
  line.process = ThisProcess();
  line.probe_address.store(cross_memory::ProbeAddress(line.process));
  line.accepts_sleeper_barriers.store(!is_crowded_ && AcceptSleeperBarriers());
  // Slots take a wait for each chunk, and then each wait is a sleep.
  line.prefers_attach.store(is_crowded_ || options.cross_memory_attach == CrossMemoryAttach::kOn);
  line.presence.store(Presence::kHere);
  MapHeap();
  return Status::Ok();
}

void Arena::Leave(const std::string& why) {
  std::atomic<Presence>& presence = rank_line(index_).presence;
  // No rank waits for one that could not enter.
  if (presence.load() != Presence::kHere) return;
  LastWords& words = last_words(index_);
  words.length = static_cast<uint32_t>(std::min(why.size(), words.text.size()));
  std::copy_n(why.begin(), words.length, words.text.begin());
  presence.store(Presence::kLeft);
  for (int peer = 0; peer < size(); ++peer) RingBell(bell(peer));
}

std::string Arena::WhyLeft(int peer) const {
  if (rank_line(peer).presence.load() != Presence::kLeft) return "";
  const LastWords& words = last_words(peer);
  // No more than there is, whatever a peer has written.
  return {words.text.data(), std::min<size_t>(words.length, words.text.size())};
}

Status Arena::CheckPeers(std::span<const int> all, std::span<const int> needed) const {
  for (const int peer : all) {
    if (!IsDead(peer)) continue;
    return Status::PeerLost(Name(peer) +
                            " has died during a collective in shared memory; see its output")
        .About(FailureOf(peer));
  }
  for (const int peer : needed) {
    if (rank_line(peer).presence.load() != Presence::kLeft) continue;
    return PeerHasLeft(ranks_[static_cast<size_t>(peer)], Name(peer), WhyLeft(peer));
  }
  return Status::Ok();
}

// In this order: a rank that leaves in between does not count as dead.
bool Arena::IsDead(int peer) const {
  return HasEnded(peer) && rank_line(peer).presence.load() == Presence::kHere;
}

bool Arena::HasEnded(int peer) const { return !LockHolder(peer) && !IsThisProcess(peer); }

bool Arena::IsThisProcess(int peer) const {
  const RankLine& line = rank_line(peer);
  // A forked process has its parent's nonce.
  return line.process == ThisProcess() && line.pid.load() == getpid();
}

Failure Arena::FailureOf(int peer) const {
  return {.ranks = {ranks_[static_cast<size_t>(peer)]},
          .host = host_,
          .pid = rank_line(peer).pid.load()};
}

std::string Arena::Name(int peer) const {
  return "rank " + std::to_string(ranks_[static_cast<size_t>(peer)]) + " (host " + host_ +
         ", pid " + std::to_string(rank_line(peer).pid.load()) + ")";
}

}  // namespace mydist::shm
