#include "algorithms/collectives.h"

#include <algorithm>
#include <string>
#include <utility>

namespace mydist {
namespace {

Status Unsupported(OpKind op) {
  return Status::Internal("an algorithm was chosen for " + std::string(OpKindName(op)) +
                          ", which it does not support. This is a bug of mydist: please report it");
}

BatchTraits Reducing(OpKind op, const Reduction& reduction) {
  return {.op = op, .dtype = reduction.dtype, .reduce_op = reduction.op, .device = -1, .bytes = 0};
}

BatchTraits Moving(OpKind op) {
  return {
      .op = op, .dtype = DataType::kUint8, .reduce_op = ReduceOp::kSum, .device = -1, .bytes = 0};
}

}  // namespace

template <typename Call>
Status Collectives::Forward(const BatchTraits& traits, Call call) {
  Collectives* const inner = Inner(traits);
  return inner == nullptr ? Unsupported(traits.op) : call(*inner);
}

Status Collectives::Allreduce(void* data, int64_t count, const Reduction& reduction) {
  return Forward(Reducing(OpKind::kAllreduce, reduction),
                 [&](Collectives& inner) { return inner.Allreduce(data, count, reduction); });
}

Status Collectives::Allgather(const void* input, void* output,
                              std::span<const int64_t> byte_counts) {
  return Forward(Moving(OpKind::kAllgather),
                 [&](Collectives& inner) { return inner.Allgather(input, output, byte_counts); });
}

Status Collectives::Reduce(const void* input, void* output, int64_t count,
                           const Reduction& reduction, int root) {
  return Forward(Reducing(OpKind::kReduce, reduction), [&](Collectives& inner) {
    return inner.Reduce(input, output, count, reduction, root);
  });
}

Status Collectives::AdasumAllreduce(void* data, std::span<const int64_t> counts,
                                    const Reduction& reduction) {
  return Forward(Reducing(OpKind::kAllreduce, reduction), [&](Collectives& inner) {
    return inner.AdasumAllreduce(data, counts, reduction);
  });
}

Status Collectives::Gather(const void* input, void* output, std::span<const int64_t> byte_counts,
                           int root) {
  return Forward(Moving(OpKind::kGather), [&](Collectives& inner) {
    return inner.Gather(input, output, byte_counts, root);
  });
}

Status Collectives::Scatter(const void* input, std::span<const int64_t> byte_counts, void* output,
                            int root) {
  return Forward(Moving(OpKind::kScatter), [&](Collectives& inner) {
    return inner.Scatter(input, byte_counts, output, root);
  });
}

Status Collectives::Send(const void* data, int64_t bytes, int peer) {
  return Forward(Moving(OpKind::kSendReceive),
                 [&](Collectives& inner) { return inner.Send(data, bytes, peer); });
}

Status Collectives::Receive(void* data, int64_t bytes, int peer) {
  return Forward(Moving(OpKind::kSendReceive),
                 [&](Collectives& inner) { return inner.Receive(data, bytes, peer); });
}

Status Collectives::Broadcast(void* data, int64_t bytes, int root) {
  return Forward(Moving(OpKind::kBroadcast),
                 [&](Collectives& inner) { return inner.Broadcast(data, bytes, root); });
}

Status Collectives::Alltoall(const void* input, std::span<const int64_t> send_bytes, void* output,
                             std::span<const int64_t> receive_bytes) {
  return Forward(Moving(OpKind::kAlltoall), [&](Collectives& inner) {
    return inner.Alltoall(input, send_bytes, output, receive_bytes);
  });
}

Status Collectives::Reducescatter(const void* input, void* output, std::span<const int64_t> counts,
                                  const Reduction& reduction) {
  return Forward(Reducing(OpKind::kReducescatter, reduction), [&](Collectives& inner) {
    return inner.Reducescatter(input, output, counts, reduction);
  });
}

Status Collectives::Barrier() {
  return Forward(Moving(OpKind::kBarrier), [](Collectives& inner) { return inner.Barrier(); });
}

FirstOf::FirstOf(std::vector<std::unique_ptr<Collectives>> choices) : choices_(std::move(choices)) {
  MYDIST_CHECK(!choices_.empty());
}

Collectives* FirstOf::Find(const BatchTraits& traits) const {
  const auto found = std::find_if(choices_.begin(), choices_.end(),
                                  [&](const auto& choice) { return choice->Supports(traits); });
  return found == choices_.end() ? nullptr : found->get();
}

Collectives* FirstOf::Inner(const BatchTraits& traits) const {
  Collectives* const found = Find(traits);
  return found == nullptr ? choices_.back().get() : found;
}

}  // namespace mydist
