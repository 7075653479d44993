#include "fakes/fake_nccl_call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace mydist::testing {
namespace {

using Kind = FakeNcclCall::Kind;

const uint8_t* Bytes(const void* memory) { return static_cast<const uint8_t*>(memory); }

bool AreApart(const uint8_t* a, size_t a_bytes, const uint8_t* b, size_t b_bytes) {
  return a_bytes == 0 || b_bytes == 0 || a + a_bytes <= b || b + b_bytes <= a;
}

}  // namespace

bool FakeNcclCall::AgreesWith(const FakeNcclCall& other) const {
  return kind == other.kind && count == other.count && reduction == other.reduction &&
         peer == other.peer;
}

size_t FakeNcclCall::InputBytes(int rank, int size) const {
  const size_t bytes = count * SizeOf(reduction.type);
  switch (kind) {
    case Kind::kReduceScatter:
      return bytes * static_cast<size_t>(size);
    case Kind::kBroadcast:
      return rank == peer ? bytes : 0;
    case Kind::kReceive:
      return 0;
    default:
      return bytes;
  }
}

size_t FakeNcclCall::OutputBytes(int rank, int size) const {
  const size_t bytes = count * SizeOf(reduction.type);
  switch (kind) {
    case Kind::kAllGather:
      return bytes * static_cast<size_t>(size);
    case Kind::kReduce:
      return rank == peer ? bytes : 0;
    case Kind::kSend:
      return 0;
    default:
      return bytes;
  }
}

bool FakeNcclCall::IsLegal(int rank, int size) const {
  const size_t bytes = count * SizeOf(reduction.type) * static_cast<size_t>(rank);
  const uint8_t* in = Bytes(input);
  const uint8_t* out = Bytes(output);
  const size_t in_bytes = InputBytes(rank, size);
  const size_t out_bytes = OutputBytes(rank, size);
  if ((in_bytes > 0 && in == nullptr) || (out_bytes > 0 && out == nullptr)) return false;
  if (AreApart(in, in_bytes, out, out_bytes)) return true;
  if (kind == Kind::kAllGather) return in == out + bytes;
  if (kind == Kind::kReduceScatter) return out == in + bytes;
  return in == out;
}

bool FakeClique::Post(int rank, FakeNcclCall* call) {
  return call->IsTransfer() ? PostTransfer(rank, call) : PostCollective(rank, call);
}

void FakeClique::Withdraw(int rank, FakeNcclCall* call) {
  if (call->is_over) return;
  if (!call->IsTransfer()) {
    collectives_[call->position].erase(rank);
    return;
  }
  for (auto& [pair, waiting] : transfers_) std::erase(waiting, call);
}

bool FakeClique::PostCollective(int rank, FakeNcclCall* call) {
  std::map<int, FakeNcclCall*>& calls = collectives_[call->position];
  calls[rank] = call;
  if (static_cast<int>(calls.size()) < size_) return false;
  Perform(calls);
  for (const auto& [peer, done] : calls) done->is_over = true;
  collectives_.erase(call->position);
  return true;
}

bool FakeClique::PostTransfer(int rank, FakeNcclCall* call) {
  const bool sends = call->kind == Kind::kSend;
  std::deque<FakeNcclCall*>& waiting =
      transfers_[sends ? std::pair(rank, call->peer) : std::pair(call->peer, rank)];
  if (waiting.empty() || waiting.front()->kind == call->kind) {
    waiting.push_back(call);
    return false;
  }
  FakeNcclCall* other = waiting.front();
  waiting.pop_front();
  const FakeNcclCall& send = sends ? *call : *other;
  const FakeNcclCall& receive = sends ? *other : *call;
  EXPECT_EQ(send.count, receive.count) << "sent and received";
  EXPECT_EQ(send.reduction.type, receive.reduction.type) << "sent and received";
  const size_t elements = std::min(send.count, receive.count);
  std::memcpy(receive.output, send.input, elements * SizeOf(send.reduction.type));
  call->is_over = true;
  other->is_over = true;
  return true;
}

void FakeClique::Perform(const std::map<int, FakeNcclCall*>& calls) const {
  const FakeNcclCall& first = *calls.at(0);
  std::vector<const void*> inputs;
  for (const auto& [rank, call] : calls) {
    EXPECT_TRUE(call->AgreesWith(first)) << "rank " << rank << " calls another collective";
    if (!call->AgreesWith(first)) return;
    inputs.push_back(call->input);
  }
  const size_t bytes = first.count * SizeOf(first.reduction.type);
  std::vector<uint8_t> result;
  if (first.kind == Kind::kBroadcast) {
    const uint8_t* source = Bytes(calls.at(first.peer)->input);
    result.assign(source, source + bytes);
  } else if (first.kind == Kind::kAllGather) {
    for (const void* input : inputs)
      result.insert(result.end(), Bytes(input), Bytes(input) + bytes);
  } else {
    const bool scatters = first.kind == Kind::kReduceScatter;
    const size_t parts = scatters ? static_cast<size_t>(size_) : 1;
    result.resize(bytes * parts);
    Fold(inputs, result.data(), first.count * parts, first.reduction);
  }
  for (const auto& [rank, call] : calls) {
    const bool scatters = first.kind == Kind::kReduceScatter;
    const uint8_t* share = result.data() + (scatters ? bytes * static_cast<size_t>(rank) : 0);
    const size_t share_bytes = call->OutputBytes(rank, size_);
    if (share_bytes > 0) std::memcpy(call->output, share, share_bytes);
  }
}

}  // namespace mydist::testing
