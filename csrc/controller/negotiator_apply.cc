// What every vertex's Negotiator does with an item of the stream: applying.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "controller/negotiator.h"
#include "controller/rank_list.h"
#include "controller/report_check.h"

namespace mydist {
namespace {

bool EndsAny(const StreamItem& error, const Readiness& readiness) {
  return std::any_of(readiness.variants.begin(), readiness.variants.end(),
                     [&](const Variant& variant) { return Ends(error, variant.request); });
}

}  // namespace

Status Negotiator::Apply(const StreamItem& item, TimePoint now) {
  ++position_;
  switch (item.kind) {
    case StreamKind::kBoundary:
      ApplyBoundary(now);
      return Status::Ok();
    case StreamKind::kReadySlot:
      return ApplyReadySlot(item.slot);
    case StreamKind::kReadyAgreement:
      return ApplyAgreement(item.agreement);
    case StreamKind::kError:
      ApplyError(item);
      return Status::Ok();
    case StreamKind::kInvalidate:
      return ApplyInvalidate(item.slot);
    case StreamKind::kStall: {
      Response& response = Respond(ResponseKind::kStall);
      response.name = item.name;
      response.status = Status::Timeout(item.text);
      return Status::Ok();
    }
    case StreamKind::kDeparted:
      ApplyDeparture(item);
      return Status::Ok();
    case StreamKind::kFinished:
      Respond(ResponseKind::kFinished);
      return Status::Ok();
    case StreamKind::kTimelineStart:
      Respond(ResponseKind::kTimelineStart).flag = item.flag;
      return Status::Ok();
    case StreamKind::kTimelineStop:
      Respond(ResponseKind::kTimelineStop);
      return Status::Ok();
  }
  return Status::Internal("the stream has an item of unknown kind");
}

Response& Negotiator::Respond(ResponseKind kind) {
  Response& response = responses_.emplace_back();
  response.kind = kind;
  response.process_set = options_.process_set;
  return response;
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
  if (!own) {
    return Status::Internal("the root announced tensor '" + agreement->request.name +
                            "' as ready, which this rank has not submitted");
  }
  // Memory is read and written as the agreement says.
  if (!MatchesAgreement(*own, *agreement, vertex_.rank)) {
    return Status::Internal("the root announced tensor '" + agreement->request.name +
                            "' as ready, but not as this rank has submitted it");
  }
  Respond(ResponseKind::kReady).agreement = agreement;
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
  if (const auto slot = cache_.SlotFor(agreement->request.name)) {
    if (cache_.At(*slot) != nullptr) LoseSlot(*slot);
    cache_.Assign(*slot, agreement, position_);
  }
  return ApplyReady(agreement);
}

Status Negotiator::ApplyInvalidate(uint32_t slot) {
  if (cache_.At(slot) == nullptr) {
    return Status::Internal("the root invalidated cache slot " + std::to_string(slot) +
                            ", which is empty");
  }
  LoseSlot(slot);
  cache_.Free(slot, position_);
  return Status::Ok();
}

void Negotiator::ApplyError(const StreamItem& item) {
  for (const uint32_t slot : cache_.EndedBy(item)) {
    LoseSlot(slot);
    cache_.Free(slot, position_);
  }
  pending_.Drop(item);
  for (const uint64_t wait : gate_.Drop(item)) group_stalls_.Stop(wait);
  std::erase_if(ready_requests_,
                [&](const Readiness& readiness) { return EndsAny(item, readiness); });
  std::erase_if(complete_, [&](const ReadyTensor& tensor) {
    return Ends(item, tensor.request()) || EndsAny(item, tensor.disagreement);
  });
  if (vertex_.lanes.size() > 1) ended_.Add(item, position_);
  std::vector<std::string> ended = own_.End(item);
  // The others gave up waiting for this rank: it has to miss its turn, or its next submission would
  // be paired with a later one of theirs.
  const bool missed = ended.empty() && item.code == StatusCode::kTimeout;
  if (missed) ended.push_back(item.name);
  for (std::string& name : ended) {
    Response& response = Respond(ResponseKind::kError);
    response.name = std::move(name);
    response.status = Status(item.code, item.text);
    if (missed) response.groups = item.groups;
  }
}

void Negotiator::ApplyDeparture(const StreamItem& item) {
  departed_ = true;
  own_.Clear();
  pending_.Clear();
  gate_.Clear();
  group_stalls_.Clear();
  ready_slots_.clear();
  ready_requests_.clear();
  invalid_slots_.clear();
  complete_.clear();
  Response& response = Respond(ResponseKind::kDeparted);
  response.rank = item.rank;
  response.status = Status::Aborted("rank " + std::to_string(item.rank) +
                                    HostListText({&item.rank, 1}, options_.hosts) +
                                    " has left the job: " + item.text);
}

void Negotiator::LoseSlot(uint32_t slot) {
  const std::shared_ptr<const Agreement> agreement = cache_.At(slot);
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
