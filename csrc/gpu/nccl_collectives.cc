#include "gpu/nccl_collectives.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/element.h"

namespace mydist {
namespace {

using nccl::Comm;
using nccl::ElementType;
using nccl::Outcome;
using nccl::ReductionKind;

constexpr ElementType kByte = ElementType::kUint8;

// The outcome of several calls of one group: the first failure.
class Outcomes {
 public:
  void Add(Outcome outcome) {
    if (!IsFailure(outcome_)) outcome_ = outcome;
  }
  Outcome first_failure() const { return IsFailure(outcome_) ? outcome_ : Outcome::kSuccess; }

 private:
  Outcome outcome_ = Outcome::kSuccess;
};

bool AreEqual(std::span<const int64_t> counts) {
  return std::all_of(counts.begin(), counts.end(),
                     [&](int64_t count) { return count == counts[0]; });
}

int64_t At(std::span<const int64_t> counts, int rank) { return counts[static_cast<size_t>(rank)]; }

size_t NumbersIn(const NcclReduction& plan, int64_t element_count) {
  return static_cast<size_t>(element_count * plan.numbers_per_element);
}

}  // namespace

NcclCollectives::NcclCollectives(StreamSeat seat, NcclCommunicator* communicator)
    : seat_(seat),
      communicator_(communicator),
      rank_(communicator->rank()),
      size_(communicator->size()),
      scratch_(seat) {}

bool NcclCollectives::Supports(const BatchTraits& traits) const {
  if (traits.device != seat_.device->index()) return false;
  if (Reduces(traits.op)) return NcclReduces(traits.reduce_op, traits.dtype);
  if (traits.op == OpKind::kSendReceive) return communicator_->is_open();
  return !ChangesProcessSets(traits.op);
}

Status NcclCollectives::Allreduce(void* data, int64_t count, const Reduction& reduction) {
  MYDIST_ASSIGN_OR_RETURN(const NcclReduction plan, Plan("allreduce", reduction));
  MYDIST_RETURN_IF_ERROR(communicator_->Open());
  if (count == 0) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(Scale(data, data, count, reduction.dtype, plan.before));
  MYDIST_RETURN_IF_ERROR(ReduceInGroup("allreduce", plan, [&](Comm comm, ReductionKind kind) {
    return api().AllReduce(data, data, NumbersIn(plan, count), plan.type, kind, comm, stream());
  }));
  return Scale(data, data, count, reduction.dtype, plan.after);
}

Status NcclCollectives::Reduce(const void* input, void* output, int64_t count,
                               const Reduction& reduction, int root) {
  MYDIST_ASSIGN_OR_RETURN(const NcclReduction plan, Plan("reduce", reduction));
  MYDIST_RETURN_IF_ERROR(communicator_->Open());
  if (count == 0) return Status::Ok();
  const bool is_root = rank_ == root;
  if (!plan.before.IsOne()) {
    void* scaled = output;
    if (!is_root) {
      MYDIST_ASSIGN_OR_RETURN(scaled, scratch_.Reserve(count * SizeOf(reduction.dtype)));
    }
    MYDIST_RETURN_IF_ERROR(Scale(input, scaled, count, reduction.dtype, plan.before));
    input = scaled;
  }
  MYDIST_RETURN_IF_ERROR(ReduceInGroup("reduce", plan, [&](Comm comm, ReductionKind kind) {
    return api().Reduce(input, is_root ? output : nullptr, NumbersIn(plan, count), plan.type, kind,
                        root, comm, stream());
  }));
  return is_root ? Scale(output, output, count, reduction.dtype, plan.after) : Status::Ok();
}

Status NcclCollectives::Reducescatter(const void* input, void* output,
                                      std::span<const int64_t> counts, const Reduction& reduction) {
  MYDIST_ASSIGN_OR_RETURN(const NcclReduction plan, Plan("reducescatter", reduction));
  MYDIST_RETURN_IF_ERROR(communicator_->Open());
  const int64_t count = Total(counts);
  if (count == 0) return Status::Ok();
  if (!plan.before.IsOne()) {
    MYDIST_ASSIGN_OR_RETURN(uint8_t* const scaled,
                            scratch_.Reserve(count * SizeOf(reduction.dtype)));
    MYDIST_RETURN_IF_ERROR(Scale(input, scaled, count, reduction.dtype, plan.before));
    input = scaled;
  }
  if (AreEqual(counts)) {
    MYDIST_RETURN_IF_ERROR(ReduceInGroup("reducescatter", plan, [&](Comm comm, ReductionKind kind) {
      return api().ReduceScatter(input, output, NumbersIn(plan, counts[0]), plan.type, kind, comm,
                                 stream());
    }));
  } else {
    MYDIST_RETURN_IF_ERROR(ReducescatterUneven(AsBytes(input), output, counts, plan));
  }
  return Scale(output, output, At(counts, rank_), reduction.dtype, plan.after);
}

// A Reduce to each rank: NCCL has no uneven reduce-scatter. In one group, so that they share the
// links, and every contribution still leaves its rank once.
Status NcclCollectives::ReducescatterUneven(const uint8_t* input, void* output,
                                            std::span<const int64_t> counts,
                                            const NcclReduction& plan) {
  return ReduceInGroup("reducescatter", plan, [&](Comm comm, ReductionKind kind) {
    Outcomes outcomes;
    for (int root = 0; root < size_; ++root) {
      const int64_t count = At(counts, root);
      if (count == 0) continue;
      const int64_t offset = OffsetOf(counts, root) * plan.element_bytes;
      outcomes.Add(api().Reduce(input + offset, root == rank_ ? output : nullptr,
                                NumbersIn(plan, count), plan.type, kind, root, comm, stream()));
    }
    return outcomes.first_failure();
  });
}

Status NcclCollectives::Allgather(const void* input, void* output,
                                  std::span<const int64_t> byte_counts) {
  MYDIST_RETURN_IF_ERROR(communicator_->Open());
  if (Total(byte_counts) == 0) return Status::Ok();
  if (!AreEqual(byte_counts)) return GatherUneven(input, AsBytes(output), byte_counts);
  return communicator_->Group("allgather", [&](Comm comm) {
    return api().AllGather(input, output, static_cast<size_t>(byte_counts[0]), kByte, comm,
                           stream());
  });
}

// A Broadcast from each rank, in one group: every byte leaves its rank once, where sending it to
// each peer would take size - 1 times as much; and newer NCCLs make one operation of the group.
Status NcclCollectives::GatherUneven(const void* input, uint8_t* output,
                                     std::span<const int64_t> byte_counts) {
  return communicator_->Group("allgather", [&](Comm comm) {
    Outcomes outcomes;
    for (int root = 0; root < size_; ++root) {
      const int64_t bytes = At(byte_counts, root);
      if (bytes == 0) continue;
      uint8_t* const part = output + OffsetOf(byte_counts, root);
      outcomes.Add(api().Broadcast(root == rank_ ? input : part, part, static_cast<size_t>(bytes),
                                   kByte, root, comm, stream()));
    }
    return outcomes.first_failure();
  });
}

Status NcclCollectives::Gather(const void* input, void* output,
                               std::span<const int64_t> byte_counts, int root) {
  MYDIST_RETURN_IF_ERROR(communicator_->Open());
  const int64_t own_bytes = At(byte_counts, rank_);
  if (rank_ != root) return own_bytes == 0 ? Status::Ok() : Send(input, own_bytes, root);
  MYDIST_RETURN_IF_ERROR(
      CopyOwn(input, Advance(AsBytes(output), OffsetOf(byte_counts, rank_)), own_bytes));
  return Exchange("gather", {}, {AsBytes(output), byte_counts});
}

Status NcclCollectives::Scatter(const void* input, std::span<const int64_t> byte_counts,
                                void* output, int root) {
  MYDIST_RETURN_IF_ERROR(communicator_->Open());
  const int64_t own_bytes = At(byte_counts, rank_);
  if (rank_ != root) return own_bytes == 0 ? Status::Ok() : Receive(output, own_bytes, root);
  MYDIST_RETURN_IF_ERROR(
      CopyOwn(Advance(AsBytes(input), OffsetOf(byte_counts, rank_)), output, own_bytes));
  return Exchange("scatter", {AsBytes(input), byte_counts}, {});
}

Status NcclCollectives::Send(const void* data, int64_t bytes, int peer) {
  if (bytes == 0) return Status::Ok();
  return communicator_->Group("send", [&](Comm comm) {
    return api().Send(data, static_cast<size_t>(bytes), kByte, peer, comm, stream());
  });
}

Status NcclCollectives::Receive(void* data, int64_t bytes, int peer) {
  if (bytes == 0) return Status::Ok();
  return communicator_->Group("receive", [&](Comm comm) {
    return api().Recv(data, static_cast<size_t>(bytes), kByte, peer, comm, stream());
  });
}

Status NcclCollectives::Broadcast(void* data, int64_t bytes, int root) {
  MYDIST_RETURN_IF_ERROR(communicator_->Open());
  if (bytes == 0) return Status::Ok();
  return communicator_->Group("broadcast", [&](Comm comm) {
    return api().Broadcast(data, data, static_cast<size_t>(bytes), kByte, root, comm, stream());
  });
}

Status NcclCollectives::Alltoall(const void* input, std::span<const int64_t> send_bytes,
                                 void* output, std::span<const int64_t> receive_bytes) {
  MYDIST_RETURN_IF_ERROR(communicator_->Open());
  MYDIST_RETURN_IF_ERROR(CopyOwn(Advance(AsBytes(input), OffsetOf(send_bytes, rank_)),
                                 Advance(AsBytes(output), OffsetOf(receive_bytes, rank_)),
                                 At(send_bytes, rank_)));
  return Exchange("alltoall", {AsBytes(input), send_bytes}, {AsBytes(output), receive_bytes});
}

Status NcclCollectives::Exchange(const char* what, const Parts<const uint8_t>& outgoing,
                                 const Parts<uint8_t>& incoming) {
  return communicator_->Group(what, [&](Comm comm) {
    Outcomes outcomes;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      if (const int64_t bytes = outgoing.BytesOf(peer); bytes > 0) {
        outcomes.Add(api().Send(outgoing.memory + OffsetOf(outgoing.byte_counts, peer),
                                static_cast<size_t>(bytes), kByte, peer, comm, stream()));
      }
      if (const int64_t bytes = incoming.BytesOf(peer); bytes > 0) {
        outcomes.Add(api().Recv(incoming.memory + OffsetOf(incoming.byte_counts, peer),
                                static_cast<size_t>(bytes), kByte, peer, comm, stream()));
      }
    }
    return outcomes.first_failure();
  });
}

Status NcclCollectives::Barrier() {
  if (barrier_byte_ == nullptr) {
    MYDIST_ASSIGN_OR_RETURN(barrier_byte_, seat_.device->Allocate(1));
  }
  MYDIST_RETURN_IF_ERROR(communicator_->Group("barrier", [&](Comm comm) {
    return api().AllReduce(barrier_byte_.get(), barrier_byte_.get(), 1, kByte, ReductionKind::kMax,
                           comm, stream());
  }));
  MYDIST_ASSIGN_OR_RETURN(const EventPointer over, seat_.device->Record(seat_.stream));
  MYDIST_RETURN_IF_ERROR(WaitWatched(*seat_.device, *over, seat_.watch));
  // The stream goes on after an abort as well.
  return communicator_->Check();
}

template <typename Calls>
Status NcclCollectives::ReduceInGroup(const char* what, const NcclReduction& plan,
                                      const Calls& calls) {
  return communicator_->Group(what, [&](Comm comm) {
    if (!plan.multiplier) return calls(comm, plan.kind);
    auto scalar = NcclScalarOf(*plan.multiplier, plan.type);
    ReductionKind multiplied{};
    const Outcome made = api().RedOpCreatePreMulSum(&multiplied, scalar.data(), plan.type,
                                                    nccl::ScalarResidence::kHostImmediate, comm);
    if (IsFailure(made)) return made;
    Outcomes outcomes;
    outcomes.Add(calls(comm, multiplied));
    // NCCL takes from it what it needs while it is called.
    outcomes.Add(api().RedOpDestroy(multiplied, comm));
    return outcomes.first_failure();
  });
}

Result<NcclReduction> NcclCollectives::Plan(const char* what, const Reduction& reduction) const {
  if (NcclReduces(reduction.op, reduction.dtype)) return NcclReductionOf(reduction, size_);
  return Status::Internal("NCCL was chosen for " + std::string(what) + " by " +
                          std::string(ReduceOpName(reduction.op)) + " of " +
                          std::string(DataTypeName(reduction.dtype)) +
                          ", which it does not support. This is a bug of mydist: please report it");
}

Status NcclCollectives::Scale(const void* source, void* target, int64_t count, DataType dtype,
                              Factor factor) {
  if (count == 0 || (factor.IsOne() && source == target)) return Status::Ok();
  const ConvertSegment segment{source, target, count};
  return seat_.device->Convert({&segment, 1}, {dtype, dtype, factor}, seat_.stream);
}

Status NcclCollectives::CopyOwn(const void* source, void* target, int64_t bytes) {
  if (bytes == 0 || source == target) return Status::Ok();
  return seat_.device->Copy(target, source, bytes, seat_.stream);
}

DeviceConnection ConnectNccl(const nccl::NcclApi* api, const DevicePeers& peers) {
  auto communicator = std::make_shared<NcclCommunicator>(
      NcclSeat{.api = api,
               .device = peers.seat.device,
               .set_name = peers.name,
               .rank = peers.rank,
               .size = peers.size,
               .watch = peers.seat.watch},
      [exchange = peers.exchange](nccl::UniqueId* id) {
        return exchange->Broadcast(id->internal, sizeof(id->internal), 0);
      });
  auto collectives = std::make_unique<NcclCollectives>(peers.seat, communicator.get());
  return {std::move(communicator), std::move(collectives)};
}

}  // namespace mydist
