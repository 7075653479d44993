// How every vertex's Negotiator applies an item of the stream.
#include <algorithm>
#include <optional>

#include "controller/negotiator.h"

namespace mydist {
namespace {

bool EndsAny(const StreamItem& error, const Readiness& readiness) {
  return std::any_of(readiness.variants.begin(), readiness.variants.end(),
                     [&](const Variant& variant) { return Ends(error, variant.request); });
}

}  // namespace

Status Negotiator::Apply(const StreamItem& item) {
  ++stream_->position;
  switch (item.kind) {
    case StreamKind::kReadySlot:
      return ApplyReadySlot(item.slot);
    case StreamKind::kReadyAgreement:
      return ApplyAgreement(item.agreement);
    case StreamKind::kError:
      ApplyError(item);
      return Status::Ok();
    case StreamKind::kInvalidate:
      return ApplyInvalidate(item.slot);
    case StreamKind::kStall:
      Respond({.kind = ResponseKind::kStall,
               .name = item.name,
               .status = Status::Timeout(item.text).About(
                   {.ranks = {item.missing.begin(), item.missing.end()}})});
      return Status::Ok();
    default:  // About the whole job.
      return Status::Internal("a process set was given an item of the stream that is not for it");
  }
}

void Negotiator::Respond(Response response) {
  response.process_set = set_.id;
  stream_->responses.push_back(std::move(response));
}

// Only at a boundary: what lost its slot may have been answered later in the same batch.
void Negotiator::ApplyBoundary(TimePoint now) {
  for (const Request& request : own_.TakeLost()) {
    const bool is_new = AddRequest(0, MakeReadiness(request), now);
    MYDIST_CHECK(is_new);
  }
}

Status Negotiator::ApplyReady(const std::shared_ptr<const Agreement>& agreement) {
  const std::optional<Request> own = own_.Answer(agreement->request.name);
  stream_->history.Add(agreement);
  if (!vertex_.is_member || !TakesPart(agreement->request, vertex_.rank)) {
    // The end of a set concerns all ranks.
    if (closed_) Respond({.kind = ResponseKind::kReady, .agreement = agreement});
    return Status::Ok();
  }
  // A rank that has joined takes part in everything, without having submitted it.
  if (!own && !participation_.HasJoined(vertex_.rank)) {
    return Status::Internal("the root announced tensor '" + agreement->request.name +
                            "' as ready, which this rank has not submitted");
  }
  // A vertex above others has told of it when all of these had.
  if (own && !vertex_.is_root() && vertex_.has_children() &&
      pending_.IsReady(agreement->request.name, 0)) {
    return Status::Internal("the root announced tensor '" + agreement->request.name +
                            "' as ready, which ranks below this one have not submitted");
  }
  // Memory is read and written as the agreement says.
  if (own && !MatchesAgreement(*own, *agreement, own_index_)) {
    return Status::Internal("the root announced tensor '" + agreement->request.name +
                            "' as ready, but not as this rank has submitted it");
  }
  Respond({.kind = ResponseKind::kReady, .agreement = agreement});
  return Status::Ok();
}

Status Negotiator::ApplyReadySlot(uint32_t slot) {
  const std::shared_ptr<const Agreement> agreement = cache_.At(slot);
  if (agreement == nullptr) {
    return Status::Internal("the root announced cache slot " + std::to_string(slot) +
                            " as ready, which is empty");
  }
  cache_.Touch(slot);
  return ApplyReady(agreement);
}

Status Negotiator::ApplyAgreement(const std::shared_ptr<const Agreement>& agreement) {
  const bool cached = IsCacheable(agreement->request.op);
  const auto slot = cached ? cache_.SlotFor(agreement->request.name) : std::nullopt;
  if (slot) {
    if (cache_.At(*slot) != nullptr) LoseSlot(*slot);
    cache_.Assign(*slot, agreement, stream_->position);
  }
  if (agreement->request.op == OpKind::kRemoveProcessSet) closed_ = true;
  MYDIST_RETURN_IF_ERROR(ApplyReady(agreement));
  if (!slot) stream_->history.Reset();  // Never comes again, whatever its number.
  return Status::Ok();
}

Status Negotiator::ApplyInvalidate(uint32_t slot) {
  if (cache_.At(slot) == nullptr) {
    return Status::Internal("the root invalidated cache slot " + std::to_string(slot) +
                            ", which is empty");
  }
  // Ranks that were ready for it under the old terms report it again in full.
  std::erase_if(complete_,
                [&](const ReadyTensor& tensor) { return tensor.agreement == cache_.At(slot); });
  LoseSlot(slot);
  cache_.Free(slot, stream_->position);
  return Status::Ok();
}

void Negotiator::ApplyError(const StreamItem& item) {
  stream_->history.Reset();
  const auto is_ended = [&item](const Agreement& agreement) {
    return Ends(item, agreement.request);
  };
  for (const uint32_t slot : cache_.Where(is_ended)) {
    LoseSlot(slot);
    cache_.Free(slot, stream_->position);
  }
  pending_.Drop(item);
  for (const uint64_t wait : gate_.Drop(item)) group_stalls_.Stop(wait);
  std::erase_if(ready_requests_,
                [&](const Readiness& readiness) { return EndsAny(item, readiness); });
  std::erase_if(complete_, [&](const ReadyTensor& tensor) {
    return Ends(item, tensor.request()) || EndsAny(item, tensor.disagreement);
  });
  if (vertex_.has_children()) ended_.Add(item, stream_->position);
  std::vector<std::string> ended = own_.End(item);
  // The others gave up waiting for this rank: it has to miss its turn, or its next submission would
  // be paired with a later one of theirs.
  const bool takes_part = vertex_.is_member && !participation_.HasJoined(vertex_.rank) &&
                          (item.ranks.empty() || std::find(item.ranks.begin(), item.ranks.end(),
                                                           vertex_.rank) != item.ranks.end());
  if (ended.empty() && item.code == StatusCode::kTimeout && takes_part) missed_.push_back(item);
  for (std::string& name : ended) {
    Respond({.kind = ResponseKind::kError, .name = std::move(name), .status = ErrorOf(item)});
  }
}

void Negotiator::Remove() {
  for (std::string& name : own_.Clear()) {
    const std::string text = "process set " + std::to_string(set_.id) + " was removed while '" +
                             name +
                             "' was in flight in it. Wait for its tensors before you remove it.";
    Respond(
        {.kind = ResponseKind::kError, .name = std::move(name), .status = Status::Aborted(text)});
  }
  Close();
}

void Negotiator::Close() {
  closed_ = true;
  own_.Clear();
  Forget();
}

std::vector<Request> Negotiator::Freeze() {
  Forget();
  frozen_at_ = stream_->position;
  return own_.TakeAll();
}

void Negotiator::Forget() {
  pending_.Clear();
  gate_.Clear();
  group_stalls_.Clear();
  ready_slots_.clear();
  ready_requests_.clear();
  invalid_slots_.clear();
  complete_.clear();
}

void Negotiator::LoseSlot(uint32_t slot) {
  const std::shared_ptr<const Agreement> agreement = cache_.At(slot);
  stream_->history.Retire(agreement.get());
  pending_.DropSlot(slot);
  own_.SlotLost(agreement->request.name, slot);
  gate_.DropMember(*agreement);
  // Every rank will request it anew. One without a group leaves in the batch that evicts it.
  std::erase_if(complete_, [&](const ReadyTensor& tensor) {
    return tensor.agreement == agreement && !agreement->request.group.empty();
  });
  std::erase(ready_slots_, slot);
  invalid_slots_.erase(slot);
}

}  // namespace mydist
