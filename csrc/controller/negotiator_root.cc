// What only the root's Negotiator does: deciding.
#include <algorithm>
#include <utility>

#include "controller/mismatch_text.h"
#include "controller/negotiator.h"
#include "controller/stall_text.h"

namespace mydist {
namespace {

// Looking for look-alikes among more than this costs more than it helps.
constexpr size_t kMaxCompared = 200;
// Warnings given in full at one time; the rest is counted.
constexpr size_t kMaxWarnings = 20;

StreamItem ErrorItem(StatusCode code, const Request& request, std::string text) {
  StreamItem item;
  item.kind = StreamKind::kError;
  item.code = code;
  item.name = request.name;
  item.text = std::move(text);
  return item;
}

StreamItem StallItem(std::string name, std::string text) {
  StreamItem item;
  item.kind = StreamKind::kStall;
  item.name = std::move(name);
  item.text = std::move(text);
  return item;
}

}  // namespace

Status Negotiator::Decide(TimePoint now, std::vector<StreamItem>& items) {
  if (departed_) return Status::Ok();
  while (!invalid_slots_.empty()) {
    StreamItem item;
    item.kind = StreamKind::kInvalidate;
    item.slot = *invalid_slots_.begin();
    MYDIST_RETURN_IF_ERROR(Emit(std::move(item), now, items));
  }
  // Applying an item may take further ones out of the queue.
  while (!complete_.empty()) {
    ReadyTensor tensor = std::move(complete_.front());
    complete_.pop_front();
    MYDIST_RETURN_IF_ERROR(Release(std::move(tensor), now, items));
  }
  MYDIST_RETURN_IF_ERROR(DecideStalls(now, items));
  return DecideGroupStalls(now, items);
}

Status Negotiator::Emit(StreamItem item, TimePoint now, std::vector<StreamItem>& items) {
  items.push_back(std::move(item));
  return Apply(items.back(), now);
}

Status Negotiator::Release(ReadyTensor tensor, TimePoint now, std::vector<StreamItem>& items) {
  const std::string group = tensor.request().group;
  const GroupGate::Held released = gate_.Pass(std::move(tensor));
  if (released.members.empty()) {
    GroupGate::Held* held = gate_.Find(group);
    if (held->wait == 0) held->wait = group_stalls_.Start(group, now, now);
    return Status::Ok();
  }
  group_stalls_.Stop(released.wait);
  for (const ReadyTensor& member : released.members) {
    if (member.agreement == nullptr) return EmitFailure(released.members, now, items);
  }
  for (const ReadyTensor& member : released.members) {
    MYDIST_RETURN_IF_ERROR(EmitReady(member, now, items));
  }
  return Status::Ok();
}

Status Negotiator::EmitReady(const ReadyTensor& tensor, TimePoint now,
                             std::vector<StreamItem>& items) {
  StreamItem item;
  const auto slot = cache_.Find(tensor.request().name);
  // An earlier item of this very batch may have evicted what was complete by its slot.
  if (slot && cache_.At(*slot) == tensor.agreement) {
    item.kind = StreamKind::kReadySlot;
    item.slot = *slot;
  } else {
    item.kind = StreamKind::kReadyAgreement;
    item.agreement = tensor.agreement;
  }
  return Emit(std::move(item), now, items);
}

Status Negotiator::EmitFailure(const std::vector<ReadyTensor>& members, TimePoint now,
                               std::vector<StreamItem>& items) {
  std::string cause;
  for (const ReadyTensor& member : members) {
    if (member.agreement == nullptr && cause.empty()) {
      cause = MismatchText(member.disagreement, options_.hosts);
    }
  }
  for (const ReadyTensor& member : members) {
    const Request& request = member.request();
    const std::string text = member.agreement == nullptr
                                 ? MismatchText(member.disagreement, options_.hosts)
                                 : GroupFailureText(request.name, request.group, cause);
    StreamItem item = ErrorItem(StatusCode::kMismatch, request, text);
    // Ranks that disagree on the group itself may have members nobody else will ever submit.
    for (const Variant& variant : member.disagreement.variants) {
      const std::string& group = variant.request.group;
      const bool known =
          std::find(item.groups.begin(), item.groups.end(), group) != item.groups.end();
      if (members.size() == 1 && !group.empty() && !known) item.groups.push_back(group);
    }
    MYDIST_RETURN_IF_ERROR(Emit(std::move(item), now, items));
  }
  return Status::Ok();
}

Status Negotiator::DecideStalls(TimePoint now, std::vector<StreamItem>& items) {
  const std::vector<StallEvent> events = pending_.TakeDue(now);
  if (events.empty()) return Status::Ok();
  const std::vector<WaitingTensor> others = WaitingTensors();
  size_t warning_count = 0;
  for (const StallEvent& event : events) {
    const auto waiting = pending_.Look(event.name);
    if (!waiting) continue;  // Ended by an earlier item of this loop.
    if (!event.expired && ++warning_count > kMaxWarnings) continue;
    std::string text = StallText(*waiting, event.waited, {&options_.hosts, &others});
    StreamItem item = event.expired
                          ? ErrorItem(StatusCode::kTimeout, waiting->request, std::move(text))
                          : StallItem(event.name, std::move(text));
    if (event.expired && !waiting->request.group.empty()) {
      item.groups.push_back(waiting->request.group);
    }
    MYDIST_RETURN_IF_ERROR(Emit(std::move(item), now, items));
  }
  if (warning_count <= kMaxWarnings) return Status::Ok();
  const std::string more = std::to_string(warning_count - kMaxWarnings);
  return Emit(StallItem("", more + " more tensors wait for ranks that are not ready."), now, items);
}

Status Negotiator::DecideGroupStalls(TimePoint now, std::vector<StreamItem>& items) {
  for (const StallEvent& event : group_stalls_.TakeDue(now)) {
    const GroupGate::Held* held = gate_.Find(event.name);
    if (held == nullptr || held->members.empty()) continue;
    const Request request = held->members.front().request();
    std::string text = GroupStallText(request, held->members.size(), event.waited);
    StreamItem item = event.expired ? ErrorItem(StatusCode::kTimeout, request, std::move(text))
                                    : StallItem(request.name, std::move(text));
    if (event.expired) item.groups.push_back(event.name);
    MYDIST_RETURN_IF_ERROR(Emit(std::move(item), now, items));
  }
  return Status::Ok();
}

std::vector<WaitingTensor> Negotiator::WaitingTensors() const {
  std::vector<WaitingTensor> waiting;
  for (const std::string& name : pending_.WaitingNames()) {
    if (waiting.size() == kMaxCompared) break;
    if (auto tensor = pending_.Look(name)) waiting.push_back(*std::move(tensor));
  }
  return waiting;
}

}  // namespace mydist
