#include "algorithms/shm/shm_collectives.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/element.h"

// Runs a direct algorithm among `peers`; goes on when the tensors cannot be reached.
#define MYDIST_RETURN_IF_DONE_AMONG(peers, expression)               \
  do {                                                               \
    const ::mydist::Result<bool> done_ = (expression);               \
    if (!done_.ok()) return direct_.Settle(done_.status(), (peers)); \
    if (*done_) return ::mydist::Status::Ok();                       \
  } while (false)
#define MYDIST_RETURN_IF_DONE(expression) MYDIST_RETURN_IF_DONE_AMONG(team_.peers, expression)

namespace mydist::shm {

ShmCollectives::ShmCollectives(ShmPort* port, std::vector<int> members, const ShmLimits& limits)
    : team_(port, std::move(members)),
      slots_(team_),
      direct_(team_),
      transport_(&port->transport(), team_.members),
      rest_(&transport_),
      limits_(limits),
      is_direct_(limits.direct && direct_.IsPossible()) {}

Status ShmCollectives::Allreduce(void* data, int64_t count, const Reduction& reduction) {
  const int64_t bytes = count * SizeOf(reduction.dtype);
  if (count == 0) return Status::Ok();
  if (team_.size == 1) return rest_.Allreduce(data, count, reduction);
  if (bytes <= limits_.message_bytes) {
    return slots_.MessageAllreduce(AsBytes(data), count, reduction);
  }
  const bool may_copy =
      bytes <= team_.steps().slot_bytes() && bytes <= limits_.one_shot_bytes / (team_.size - 1);
  if (is_direct_ && !(may_copy && IsSmall(bytes))) {
    MYDIST_RETURN_IF_DONE(direct_.Allreduce(AsBytes(data), count, reduction, may_copy));
  }
  return may_copy ? slots_.OneShotAllreduce(AsBytes(data), count, reduction)
                  : slots_.TwoShotAllreduce(AsBytes(data), count, reduction);
}

Status ShmCollectives::Reduce(const void* input, void* output, int64_t count,
                              const Reduction& reduction, int root) {
  if (is_direct_ && team_.size > 1 && !IsSmall(count * SizeOf(reduction.dtype))) {
    MYDIST_RETURN_IF_DONE(direct_.Reduce(AsBytes(input), AsBytes(output), count, reduction, root));
  }
  return rest_.Reduce(input, output, count, reduction, root);
}

Status ShmCollectives::Reducescatter(const void* input, void* output,
                                     std::span<const int64_t> counts, const Reduction& reduction) {
  if (team_.size == 1) return rest_.Reducescatter(input, output, counts, reduction);
  if (is_direct_ && !IsSmall(Total(counts) * SizeOf(reduction.dtype))) {
    MYDIST_RETURN_IF_DONE(
        direct_.Reducescatter(AsBytes(input), AsBytes(output), counts, reduction));
  }
  return slots_.Reducescatter(input, output, counts, reduction);
}

Status ShmCollectives::Allgather(const void* input, void* output,
                                 std::span<const int64_t> byte_counts) {
  CopyBytes(Advance(AsBytes(output), OffsetOf(byte_counts, team_.rank)), input,
            byte_counts[static_cast<size_t>(team_.rank)]);
  if (team_.size == 1) return Status::Ok();
  if (is_direct_ && !IsSmall(Total(byte_counts))) {
    MYDIST_RETURN_IF_DONE(direct_.Allgather(AsBytes(input), AsBytes(output), byte_counts));
  }
  return slots_.Allgather(input, output, byte_counts);
}

Status ShmCollectives::Gather(const void* input, void* output, std::span<const int64_t> byte_counts,
                              int root) {
  if (is_direct_ && team_.size > 1 && !IsSmall(Total(byte_counts))) {
    MYDIST_RETURN_IF_DONE(direct_.Gather(AsBytes(input), AsBytes(output), byte_counts, root));
  }
  return rest_.Gather(input, output, byte_counts, root);
}

// How much there is, only the root knows; so it is for Alltoall.
Status ShmCollectives::Scatter(const void* input, std::span<const int64_t> byte_counts,
                               void* output, int root) {
  if (is_direct_ && team_.size > 1) {
    MYDIST_RETURN_IF_DONE(direct_.Scatter(AsBytes(input), byte_counts, AsBytes(output), root));
  }
  return rest_.Scatter(input, byte_counts, output, root);
}

Status ShmCollectives::Send(const void* data, int64_t bytes, int peer) {
  if (is_direct_ && bytes > limits_.slot_bytes) {
    const std::array<int, 1> peers{team_.member(peer)};
    MYDIST_RETURN_IF_DONE_AMONG(peers, direct_.Send(AsBytes(data), bytes, peer));
  }
  return rest_.Send(data, bytes, peer);
}

Status ShmCollectives::Receive(void* data, int64_t bytes, int peer) {
  if (is_direct_ && bytes > limits_.slot_bytes) {
    const std::array<int, 1> peers{team_.member(peer)};
    MYDIST_RETURN_IF_DONE_AMONG(peers, direct_.Receive(AsBytes(data), bytes, peer));
  }
  return rest_.Receive(data, bytes, peer);
}

Status ShmCollectives::Broadcast(void* data, int64_t bytes, int root) {
  if (team_.size == 1 || bytes == 0) return Status::Ok();
  if (is_direct_ && !IsSmall(bytes)) {
    MYDIST_RETURN_IF_DONE(direct_.Broadcast(AsBytes(data), bytes, root));
  }
  return slots_.Broadcast(data, bytes, root);
}

Status ShmCollectives::Alltoall(const void* input, std::span<const int64_t> send_bytes,
                                void* output, std::span<const int64_t> receive_bytes) {
  if (is_direct_ && team_.size > 1) {
    MYDIST_RETURN_IF_DONE(
        direct_.Alltoall(AsBytes(input), send_bytes, AsBytes(output), receive_bytes));
  }
  return rest_.Alltoall(input, send_bytes, output, receive_bytes);
}

}  // namespace mydist::shm
