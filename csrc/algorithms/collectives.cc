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

Status Collectives::Allreduce(void*, int64_t, const Reduction&) {
  return Unsupported(OpKind::kAllreduce);
}

Status Collectives::Allgather(const void*, void*, std::span<const int64_t>) {
  return Unsupported(OpKind::kAllgather);
}

Status Collectives::Reduce(const void*, void*, int64_t, const Reduction&, int) {
  return Unsupported(OpKind::kReduce);
}

Status Collectives::AdasumAllreduce(void*, std::span<const int64_t>, const Reduction&) {
  return Unsupported(OpKind::kAllreduce);
}

Status Collectives::Gather(const void*, void*, std::span<const int64_t>, int) {
  return Unsupported(OpKind::kGather);
}

Status Collectives::Scatter(const void*, std::span<const int64_t>, void*, int) {
  return Unsupported(OpKind::kScatter);
}

Status Collectives::Send(const void*, int64_t, int) { return Unsupported(OpKind::kSendReceive); }

Status Collectives::Receive(void*, int64_t, int) { return Unsupported(OpKind::kSendReceive); }

Status Collectives::Broadcast(void*, int64_t, int) { return Unsupported(OpKind::kBroadcast); }

Status Collectives::Alltoall(const void*, std::span<const int64_t>, void*,
                             std::span<const int64_t>) {
  return Unsupported(OpKind::kAlltoall);
}

Status Collectives::Reducescatter(const void*, void*, std::span<const int64_t>, const Reduction&) {
  return Unsupported(OpKind::kReducescatter);
}

Status Collectives::Barrier() { return Unsupported(OpKind::kBarrier); }

Status ForwardingCollectives::Allreduce(void* data, int64_t count, const Reduction& reduction) {
  return Inner(Reducing(OpKind::kAllreduce, reduction)).Allreduce(data, count, reduction);
}

Status ForwardingCollectives::Allgather(const void* input, void* output,
                                        std::span<const int64_t> byte_counts) {
  return Inner(Moving(OpKind::kAllgather)).Allgather(input, output, byte_counts);
}

Status ForwardingCollectives::Reduce(const void* input, void* output, int64_t count,
                                     const Reduction& reduction, int root) {
  return Inner(Reducing(OpKind::kReduce, reduction)).Reduce(input, output, count, reduction, root);
}

Status ForwardingCollectives::AdasumAllreduce(void* data, std::span<const int64_t> counts,
                                              const Reduction& reduction) {
  return Inner(Reducing(OpKind::kAllreduce, reduction)).AdasumAllreduce(data, counts, reduction);
}

Status ForwardingCollectives::Gather(const void* input, void* output,
                                     std::span<const int64_t> byte_counts, int root) {
  return Inner(Moving(OpKind::kGather)).Gather(input, output, byte_counts, root);
}

Status ForwardingCollectives::Scatter(const void* input, std::span<const int64_t> byte_counts,
                                      void* output, int root) {
  return Inner(Moving(OpKind::kScatter)).Scatter(input, byte_counts, output, root);
}

Status ForwardingCollectives::Send(const void* data, int64_t bytes, int peer) {
  return Inner(Moving(OpKind::kSendReceive)).Send(data, bytes, peer);
}

Status ForwardingCollectives::Receive(void* data, int64_t bytes, int peer) {
  return Inner(Moving(OpKind::kSendReceive)).Receive(data, bytes, peer);
}

Status ForwardingCollectives::Broadcast(void* data, int64_t bytes, int root) {
  return Inner(Moving(OpKind::kBroadcast)).Broadcast(data, bytes, root);
}

Status ForwardingCollectives::Alltoall(const void* input, std::span<const int64_t> send_bytes,
                                       void* output, std::span<const int64_t> receive_bytes) {
  return Inner(Moving(OpKind::kAlltoall)).Alltoall(input, send_bytes, output, receive_bytes);
}

Status ForwardingCollectives::Reducescatter(const void* input, void* output,
                                            std::span<const int64_t> counts,
                                            const Reduction& reduction) {
  return Inner(Reducing(OpKind::kReducescatter, reduction))
      .Reducescatter(input, output, counts, reduction);
}

Status ForwardingCollectives::Barrier() { return Inner(Moving(OpKind::kBarrier)).Barrier(); }

FirstOf::FirstOf(std::vector<std::unique_ptr<Collectives>> choices) : choices_(std::move(choices)) {
  MYDIST_CHECK(!choices_.empty());
}

Collectives* FirstOf::Find(const BatchTraits& traits) const {
  const auto found = std::find_if(choices_.begin(), choices_.end(),
                                  [&](const auto& choice) { return choice->Supports(traits); });
  return found == choices_.end() ? nullptr : found->get();
}

Collectives& FirstOf::Inner(const BatchTraits& traits) const {
  Collectives* const found = Find(traits);
  return found == nullptr ? *choices_.back() : *found;
}

}  // namespace mydist
