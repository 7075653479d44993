// DirectCollectives: collectives on tensors where they lie, in the heap or in private memory that
// peers can reach (reduce). Owned by the ShmCollectives, for a team of at least two.
// First everybody posts where its tensor is; if one of them cannot be reached, all ranks see it and
// answer false: nothing has been done, and the team goes another way. Else a last step makes sure
// that no rank returns before all have read and written.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/element.h"
#include "kernels/reduction.h"
#include "memory/fusion_buffer.h"
#include "memory/shm/peer_memory.h"
#include "transport/shm_transport.h"

namespace mydist::shm {

// ShmTeam: the ranks of one process set, seen from one of them. Owned by the ShmCollectives, shared
// by what it consists of.
struct ShmTeam {
  // `members`: indices in the arena of `port`, ascending, the own among them.
  ShmTeam(ShmPort* the_port, std::vector<int> the_members)
      : port(the_port), members(std::move(the_members)), size(static_cast<int>(members.size())) {
    for (int member_rank = 0; member_rank < size; ++member_rank) {
      if (member(member_rank) == port->index()) {
        rank = member_rank;
      } else {
        peers.push_back(member(member_rank));
      }
    }
  }

  int member(int of_rank) const { return members[static_cast<size_t>(of_rank)]; }
  SlotSteps& steps() const { return port->steps(); }
  // Of the slot step in progress.
  uint8_t* SlotOf(int of_rank) const { return steps().SlotOf(member(of_rank)); }

  ShmPort* const port;
  const std::vector<int> members;
  std::vector<int> peers;  // Members but for the own.
  const int size;
  int rank = 0;
};

class DirectCollectives {
 public:
  // `team` outlives this object.
  explicit DirectCollectives(const ShmTeam& team);

  // Whether any tensor could be reached; the same on all ranks. False: do not call the rest.
  bool IsPossible() const;

  // All: as in Collectives; kPeerLost, kInternal.

  // `may_copy`: the tensor fits into a slot and is small enough to be folded by everybody.
  Result<bool> Allreduce(uint8_t* data, int64_t count, const Reduction& reduction, bool may_copy);
  Result<bool> Reduce(const uint8_t* input, uint8_t* output, int64_t count,
                      const Reduction& reduction, int root);
  Result<bool> Reducescatter(const uint8_t* input, uint8_t* output, std::span<const int64_t> counts,
                             const Reduction& reduction);
  // The own part is in `output` already.
  Result<bool> Allgather(const uint8_t* input, uint8_t* output,
                         std::span<const int64_t> byte_counts);
  Result<bool> Gather(const uint8_t* input, uint8_t* output, std::span<const int64_t> byte_counts,
                      int root);
  Result<bool> Scatter(const uint8_t* input, std::span<const int64_t> byte_counts, uint8_t* output,
                       int root);
  Result<bool> Broadcast(uint8_t* data, int64_t bytes, int root);
  Result<bool> Alltoall(const uint8_t* input, std::span<const int64_t> send_bytes, uint8_t* output,
                        std::span<const int64_t> receive_bytes);
  // Only the two take part.
  Result<bool> Send(const uint8_t* data, int64_t bytes, int peer);
  Result<bool> Receive(uint8_t* data, int64_t bytes, int peer);

  // After one of the above has failed, before its tensors may be freed: until then those of `peers`
  // (of the arena) that are still at it may read and write them; afterwards only late writers do
  // (world/late_writes.h). This rank leaves. Gives `error`.
  Status Settle(const Status& error, std::span<const int> peers);

 private:
  // What a rank folds: `count` elements from `offset` on of everybody's input.
  struct Fold {
    const uint8_t* input;  // Own.
    uint8_t* output;       // Own, for the element at `offset`; null: only others get it.
    int64_t offset;        // In elements.
    int64_t count;
    const Reduction* reduction;
  };
  // Whom else the results go to.
  enum class Others { kNobody, kEverybody, kRoot };
  struct Receivers {
    Others who = Others::kNobody;
    int root = 0;
  };

  const PeerMemory& memory() const { return team_.port->peer_memory(); }
  // Tells everybody one message, or each peer its own; afterwards places_ has theirs.
  Status PostPlaces(const PlaceMessage& mine);
  template <typename PlaceFor>
  Status PostPlacesEach(PlaceFor place_for);
  void ReadPlaces();
  bool AnyIs(PlaceKind kind) const;
  const PlaceMessage& PlacesOf(int rank) const { return places_[static_cast<size_t>(rank)]; }
  // The whole of a peer's input.
  Status ReadFrom(int rank, uint8_t* target, int64_t bytes) const {
    return memory().Read(team_.member(rank), PlacesOf(rank).input, target, bytes);
  }
  // Returns true when no rank reads or writes a peer's tensor any more: the call is complete.
  Result<bool> End() { return End(team_.peers); }
  Result<bool> End(std::span<const int> peers) {
    has_ended_ = true;
    MYDIST_RETURN_IF_ERROR(team_.steps().Publish(peers));
    return true;
  }

  Status FoldFromAnywhere(uint8_t* data, int64_t count, const Reduction& reduction);
  Status FoldSlice(const Fold& fold, const Receivers& receivers);
  Status FoldChunk(const Fold& fold, const Receivers& receivers);
  // Input of a peer from the element at fold.offset on: where it lies, or read into the bounce.
  Result<const uint8_t*> SourceOf(int rank, const Fold& fold);
  Status CollectOutputs(const Fold& fold, const Receivers& receivers);
  bool Receives(int rank, const Receivers& receivers) const {
    return receivers.who == Others::kEverybody ||
           (receivers.who == Others::kRoot && rank == receivers.root);
  }
  int64_t ChunkCount(int64_t element_bytes) const;
  int64_t PrivateChunkBytes() const;
  uint8_t* BounceOf(int rank) const { return bounce_ + rank * PrivateChunkBytes(); }

  // What all sources of a chunk take should stay in L1 (views) or in L2 (copies of private memory).
  static constexpr int64_t kViewChunkBytes = 16 << 10;
  static constexpr int64_t kPrivateBytes = 512 << 10;

  const ShmTeam& team_;
  bool has_ended_ = false;  // The call in progress has posted its last step.
  // Kept between calls for their memory only.
  std::vector<PlaceMessage> places_;  // By rank.
  std::vector<const void*> sources_;
  std::vector<void*> outputs_;  // Of a chunk, as far as they can be seen; never empty.
  FusionBuffer bounce_buffer_;  // One chunk for each rank.
  uint8_t* bounce_ = nullptr;
};

}  // namespace mydist::shm
