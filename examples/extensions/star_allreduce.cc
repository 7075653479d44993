// An algorithm and a setting from outside mydist: an allreduce in which one rank reduces for all.
//
//     MYDIST_PLUGINS=$PWD/libstar_allreduce.so MYDIST_ALGORITHM=star mydistrun -np 2 python
//     train.py
//
// Every rank sends its tensor to the centre, which folds them in rank order and sends the result
// back: two messages one after the other and no more than one rank that reduces. The centre moves
// size - 1 times the tensor in and out, so this is for small tensors, if for anything.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "job/extension.h"

namespace {

using namespace mydist;

constexpr const char* kCentreVariable = "MYDIST_STAR_CENTRE";

class StarAllreduce final : public Collectives {
 public:
  StarAllreduce(Transport* transport, int centre) : transport_(transport), centre_(centre) {}

  // All else is done by the algorithms of mydist.
  bool Supports(const BatchTraits& traits) const override {
    return traits.op == OpKind::kAllreduce && traits.reduce_op != ReduceOp::kAdasum &&
           traits.device < 0;
  }

  Status Allreduce(void* data, int64_t count, const Reduction& reduction) override {
    const int64_t bytes = count * SizeOf(reduction.dtype);
    const SendTransfer result{centre_, data, bytes};
    if (transport_->rank() != centre_) {
      MYDIST_RETURN_IF_ERROR(transport_->Exchange({&result, 1}, {}));
      const ReceiveTransfer reduced{centre_, data, bytes};
      return transport_->Exchange({}, {&reduced, 1});
    }
    // What the others have, rank by rank; our own stays where it is.
    contributions_.resize(static_cast<size_t>(bytes) * static_cast<size_t>(transport_->size()));
    std::vector<const void*> sources;
    std::vector<ReceiveTransfer> receives;
    for (int rank = 0; rank < transport_->size(); ++rank) {
      uint8_t* const room = contributions_.data() + bytes * rank;
      sources.push_back(rank == centre_ ? data : room);
      if (rank != centre_) receives.push_back({rank, room, bytes});
    }
    MYDIST_RETURN_IF_ERROR(transport_->Exchange({}, receives));
    ReduceInRankOrder(sources, data, count, reduction);
    std::vector<SendTransfer> sends;
    for (const ReceiveTransfer& receive : receives) sends.push_back({receive.peer, data, bytes});
    return transport_->Exchange(sends, {});
  }

 private:
  Transport* const transport_;
  const int centre_;
  std::vector<uint8_t> contributions_;
};

bool IsRank(const std::string& text) {
  return text.size() <= 6 && text.find_first_not_of("0123456789") == std::string::npos;
}

std::unique_ptr<Collectives> Make(const AlgorithmSite& site) {
  if (site.transport == nullptr) return nullptr;  // One rank.
  const auto set = site.config.extra.find(kCentreVariable);
  const int centre = set == site.config.extra.end() ? 0 : std::stoi(set->second);
  return std::make_unique<StarAllreduce>(site.transport, centre % site.transport->size());
}

Status AddRows() {
  MYDIST_RETURN_IF_ERROR(RegisterKnob(
      {.knob = {kCentreVariable, "an integer from 0 to 999999", "0"}, .is_allowed = IsRank}));
  // On several hosts ours fold host by host, so the bits of this one differ there.
  return RegisterAlgorithm({.name = "star", .make = Make, .keeps_rank_order = false});
}

}  // namespace

MYDIST_EXTENSION(AddRows)
