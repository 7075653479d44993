// Arena: the memory that the ranks of one host share, as one of them sees it.
// Owned by the ShmPort; used by the thread that drives the engine. Made at the start by all ranks
// of the job together; ranks are indices among the host's ranks, in rank order, unless said
// otherwise. The arena tells which ranks are alive: a dead rank has lost its lock.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "base/status.h"
#include "memory/shm/arena_file.h"
#include "memory/shm/arena_heap.h"
#include "memory/shm/arena_layout.h"

namespace mydist::shm {

struct ArenaOptions {
  std::vector<int> ranks;  // Of the job on this host, ascending.
  int index = 0;           // Of this rank among them.
  std::string host;        // For error messages.
  // Where the file is made.
  std::string directory = "/dev/shm";
  // Two halves of this much for each rank. They and the chunks in flight should stay in the L2
  // cache.
  int64_t slot_bytes = int64_t{512} << 10;
  // For each ordered pair of ranks; 0: less the more ranks there are.
  int64_t ring_bytes = 0;
  // For the control plane.
  int64_t control_bytes = 0;
  // Whether that memory is there only from ReserveControl on.
  bool is_control_late = false;
  // Address space for each rank's part of the heap: kAutomaticZone, or 0 for no heap.
  static constexpr int64_t kAutomaticZone = -1;
  int64_t zone_bytes = kAutomaticZone;
  // False as if the ranks did not see each other's processes: the file then needs a name.
  bool sees_processes = true;
  // Whether there is no core for each rank of the host; said by all alike.
  bool is_crowded = false;
  // Whether peers may read and write private tensors through the kernel, where it lets them; unset:
  // where it is faster than through slots.
  std::optional<bool> cross_memory_attach{};
};

// Gives every rank's bytes, in rank order of the job, to every rank; collective and blocking.
using ArenaExchange =
    std::function<Result<std::vector<std::vector<uint8_t>>>(const std::vector<uint8_t>& mine)>;

class MYDIST_EXPORT Arena {
 public:
  struct Establishment {
    std::unique_ptr<Arena> arena;  // Null when there is none, on all ranks of the host alike.
    std::string reason;            // Why not.
    bool is_everywhere = false;    // Whether there is one on every host of the job.
  };

  // Three rounds of `exchange`, which all ranks of the job take part in; five when some rank can
  // only find the file by a name. That is gone when this returns, and also when a rank is killed
  // meanwhile (decision 0006).
  // The errors are those of the exchange.
  static Result<Establishment> Establish(const ArenaOptions& options,
                                         const ArenaExchange& exchange);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int index() const { return index_; }
  int size() const { return layout_.ranks(); }
  const std::vector<int>& ranks() const { return ranks_; }  // Of the job.
  // The index here of a rank of the job; nothing when it is on another host.
  std::optional<int> IndexOf(int rank) const;
  const ArenaLayout& layout() const { return layout_; }
  // Whether there is no core for each of them, so that a rank that waits had better sleep.
  bool is_crowded() const { return is_crowded_; }
  // Null when there is none, on all ranks of the host alike.
  const std::shared_ptr<ArenaHeap>& heap() const { return heap_; }
  // What a caller that wants to allocate is told when there is none.
  Status NoHeap(int64_t bytes) const;
  // Whether this rank is the one that is to say so: one of the host does, once.
  bool ClaimsWarning() const {
    return !At<HostLine>(ArenaLayout::HostLinePlace()).has_warned.exchange(true);
  }
  // Why there is no heap; else empty.
  const std::string& heap_refusal() const { return heap_refusal_; }
  // Why the ranks cannot reach each other's private memory; else empty. Of the host alike.
  const std::string& attach_refusal() const { return attach_refusal_; }
  // Whether they should even where there is a way through slots; of the host alike.
  bool prefers_attach() const { return prefers_attach_; }
  // Whether all ranks of the host accept barriers of the one about to sleep; see Waking (waiter.h).
  bool SleepersOrder() const;

  RankLine& rank_line(int rank) const { return At<RankLine>(layout_.RankLineOf(rank)); }
  LastWords& last_words(int rank) const { return At<LastWords>(layout_.LastWordsOf(rank)); }
  DoneLine& done_line(int rank) const { return At<DoneLine>(layout_.DoneLineOf(rank)); }
  Bell& bell(int rank) const { return At<Bell>(layout_.BellOf(rank)); }
  VoteLine& vote(int rank) const { return At<VoteLine>(layout_.VoteLineOf(rank)); }
  PairLine& pair(int writer, int reader) const {
    return At<PairLine>(layout_.PairLineOf(writer, reader));
  }
  uint8_t* slot(int rank, int half) const { return file_->memory() + layout_.SlotOf(rank, half); }
  uint8_t* ring(int from, int to) const { return file_->memory() + layout_.RingOf(from, to); }
  // Takes memory for the control plane, for all ranks of the host, where it has none yet. kInternal
  // with the bytes needed and free. Without it a plane would end the process by a SIGBUS.
  Status ReserveControl() const {
    return file_->Reserve(layout_.ControlMemory(), layout_.bytes() - layout_.ControlMemory());
  }
  // All zeros at first.
  uint8_t* control_memory() const { return file_->memory() + layout_.ControlMemory(); }

  // "rank 3 (host a, pid 71)", and the same as data.
  std::string Name(int peer) const;
  Failure FailureOf(int peer) const;
  bool IsThisProcess(int peer) const;
  // Whether the process of `peer` is no more. Costs a system call.
  bool HasEnded(int peer) const;
  // Its pid as this process sees it, 0 where it cannot; nothing when it has ended, or is ours.
  std::optional<pid_t> LockHolder(int peer) const { return file_->LockHolder(peer); }

  // kPeerLost when one of `all` is dead or, that being the lesser cause, one of `needed` has left.
  Status CheckPeers(std::span<const int> all, std::span<const int> needed) const;
  // Tells the peers that this rank takes part no more, and why unless it is the job's end (empty).
  // The first call counts.
  void Leave(const std::string& why);
  // Why a peer that has left did so, as far as it has said.
  std::string WhyLeft(int peer) const;

 private:
  class Handshake;

  Arena(const ArenaOptions& options, const ArenaLayout& layout, std::shared_ptr<ArenaFile> file)
      : index_(options.index),
        ranks_(options.ranks),
        host_(options.host),
        is_crowded_(options.is_crowded),
        layout_(layout),
        file_(std::move(file)) {}
  Status Enter(const ArenaOptions& options);
  bool AnyPrefersAttach() const;
  // Zones for the heap, when the file system has room for any.
  void AppendHeap(const ArenaOptions& options);
  void MapHeap();
  // Why this rank cannot reach private memory of its peers, or does not want it.
  std::string ProbePeers(const ArenaOptions& options) const;
  ArenaHeader& header() const { return At<ArenaHeader>(0); }
  bool IsDead(int peer) const;

  template <typename T>
  T& At(int64_t offset) const {
    return *reinterpret_cast<T*>(file_->memory() + offset);
  }

  const int index_;
  const std::vector<int> ranks_;
  const std::string host_;
  const bool is_crowded_;
  const ArenaLayout layout_;
  const std::shared_ptr<ArenaFile> file_;
  std::shared_ptr<ArenaHeap> heap_;
  std::string heap_refusal_;
  std::string attach_refusal_;
  bool prefers_attach_ = false;
};

// What a rank has completed last, as the other ranks of its host see it, also after its death.
struct LastDone {
  uint8_t op = 0;       // An OpKind.
  uint64_t number = 0;  // Which one of its process set, from 1; 0: it has none.
  std::string name;     // Of the tensor; its beginning, where it is long.
  uint64_t turn = 0;    // Grows with each.

  bool operator==(const LastDone&) const = default;
};

// By the rank itself, on one thread. Does not allocate.
MYDIST_EXPORT void WriteDone(DoneLine& line, uint8_t op, uint64_t number, std::string_view name);
// By any rank, at any time. Nothing where it is being written, as by a rank that died meanwhile;
// number, op and name are 0 and empty where it has completed none.
MYDIST_EXPORT std::optional<LastDone> ReadDone(const DoneLine& line);

}  // namespace mydist::shm
