// The decisions that only the root's Negotiator makes.
#include <algorithm>

#include "controller/messages/stall_text.h"
#include "controller/negotiator.h"

namespace mydist {
namespace {

// Looking for look-alikes among more than this costs more than it helps.
constexpr size_t kMaxCompared = 200;

StreamItem ErrorItem(StatusCode code, const Request& request, std::string text) {
  const bool is_pair = request.op == OpKind::kSendReceive;
  return {.kind = StreamKind::kError,
          .code = code,
          .name = request.name,
          .text = std::move(text),
          .ranks = is_pair ? request.ranks : std::vector<int32_t>(),
          .op = request.op};
}

std::string JoinConflictText(const Request& request, int32_t rank,
                             const std::vector<std::string>& hosts) {
  std::string text = CallText(request) + " needs " + RankText(rank, hosts) + ", ";
  if (HasRoot(request.op)) text += "its root, ";
  text += "but that rank has called join() and contributes no data until all ranks have joined. ";
  if (ChangesProcessSets(request.op)) return text + "Change process sets before or after join().";
  return text + "Choose a rank that still has data, or call it before that rank joins.";
}

StreamItem StallItem(std::string name, std::string text, std::vector<int32_t> missing = {}) {
  return {.kind = StreamKind::kStall,
          .name = std::move(name),
          .text = std::move(text),
          .missing = std::move(missing)};
}

}  // namespace

Status Negotiator::Decide(TimePoint now, std::vector<StreamItem>& items) {
  if (closed_) return Status::Ok();
  while (!invalid_slots_.empty()) {
    MYDIST_RETURN_IF_ERROR(
        Emit({.kind = StreamKind::kInvalidate, .slot = *invalid_slots_.begin()}, items));
  }
  // Applying an item may take further ones out of the queue, or end the set.
  while (!complete_.empty() && !closed_) {
    ReadyTensor tensor = std::move(complete_.front());
    complete_.pop_front();
    MYDIST_RETURN_IF_ERROR(Release(std::move(tensor), now, items));
  }
  if (closed_) return Status::Ok();  // The others know no such set behind the item that ends it.
  MYDIST_RETURN_IF_ERROR(DecideStalls(now, items));
  return DecideGroupStalls(now, items);
}

Status Negotiator::Emit(StreamItem item, std::vector<StreamItem>& items) {
  item.process_set = set_.id;
  items.push_back(std::move(item));
  return Apply(items.back());
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
    if (!DisagreementOf(member).variants.empty()) return EmitFailure(released.members, items);
  }
  for (const ReadyTensor& member : released.members) {
    const Request& request = member.request();
    if (HasUncountableRows(*member.agreement)) {
      std::string text = CallText(request) +
                         ": the rows of all ranks together exceed 2^62 bytes. Pass fewer rows.";
      MYDIST_RETURN_IF_ERROR(
          Emit(ErrorItem(StatusCode::kInvalidArgument, request, std::move(text)), items));
    } else if (std::string conflict = JoinConflict(request); !conflict.empty()) {
      MYDIST_RETURN_IF_ERROR(
          Emit(ErrorItem(StatusCode::kMismatch, request, std::move(conflict)), items));
    } else {
      MYDIST_RETURN_IF_ERROR(EmitReady(member, items));
    }
  }
  return Status::Ok();
}

// Why this op cannot run without a rank that has joined, as an error text; empty: it can.
std::string Negotiator::JoinConflict(const Request& request) const {
  if (!participation_.anybody_joined()) return "";
  if (Reduces(request.op) && request.reduce_op == ReduceOp::kProduct && request.prescale != 1.0) {
    return CallText(request) +
           " is a Product with a prescale_factor, and ranks that have called join() cannot "
           "contribute to it. Scale the tensor before the call, or use postscale_factor.";
  }
  for (const int32_t rank : set_.ranks) {
    if (!participation_.HasJoined(rank)) continue;
    const bool is_root = HasRoot(request.op) && request.root_rank == rank;
    const bool gives =
        is_root && (request.op == OpKind::kBroadcast || request.op == OpKind::kScatter);
    const bool talks = request.op == OpKind::kSendReceive && TakesPart(request, rank);
    if (!gives && !talks && !ChangesProcessSets(request.op)) continue;
    return JoinConflictText(request, rank, options_.hosts);
  }
  return "";
}

Status Negotiator::EmitReady(const ReadyTensor& tensor, std::vector<StreamItem>& items) {
  const auto slot = cache_.Find(tensor.request().name);
  // An earlier item of this very batch may have evicted what was complete by its slot.
  if (slot && cache_.At(*slot) == tensor.agreement) {
    return Emit({.kind = StreamKind::kReadySlot, .slot = *slot}, items);
  }
  return Emit({.kind = StreamKind::kReadyAgreement, .agreement = tensor.agreement}, items);
}

// Why a tensor fails: its variants. None: it does not.
Readiness Negotiator::DisagreementOf(const ReadyTensor& tensor) const {
  if (tensor.agreement == nullptr) return tensor.disagreement;
  if (tensor.request().values == InputValues::kAccepted) return {};
  Variant of_all{tensor.request(), {}};
  for (const int32_t rank : set_.ranks) {
    if (!participation_.HasJoined(rank)) of_all.ranks.push_back(rank);
  }
  return {.variants = {std::move(of_all)}};
}

Status Negotiator::EmitFailure(const std::vector<ReadyTensor>& members,
                               std::vector<StreamItem>& items) {
  Readiness first;
  for (const ReadyTensor& member : members) {
    if (first.variants.empty()) first = DisagreementOf(member);
  }
  const std::string cause = first.variants.empty() ? "" : MismatchText(first, options_.hosts);
  for (const ReadyTensor& member : members) {
    const Request& request = member.request();
    const Readiness disagreement = DisagreementOf(member);
    const bool fails_with_group = disagreement.variants.empty();
    const std::string text = fails_with_group ? GroupFailureText(request.name, request.group, cause)
                                              : MismatchText(disagreement, options_.hosts);
    StreamItem item = ErrorItem(StatusCode::kMismatch, request, text);
    item.missing = RanksNotAccepted(fails_with_group ? first : disagreement);
    // Ranks that disagree on the group itself may have members that no other rank will ever submit.
    for (const Variant& variant : disagreement.variants) {
      const std::string& group = variant.request.group;
      const bool known =
          std::find(item.groups.begin(), item.groups.end(), group) != item.groups.end();
      if (members.size() == 1 && !group.empty() && !known) item.groups.push_back(group);
    }
    MYDIST_RETURN_IF_ERROR(Emit(std::move(item), items));
  }
  return Status::Ok();
}

Status Negotiator::DecideStalls(TimePoint now, std::vector<StreamItem>& items) {
  const std::vector<StallEvent> events = pending_.TakeDue(now);
  if (events.empty()) return Status::Ok();
  const std::vector<WaitingTensor> others = options_.all_waiting();
  StallContext context{&options_.hosts, options_.pids, &others, {}};
  StallWarnings warnings(&context);
  for (const StallEvent& event : events) {
    const auto waiting = pending_.Look(event.name);
    if (!waiting) continue;  // Ended by an earlier item of this loop.
    if (!event.expired) {
      warnings.Add(*waiting, event.waited);
      continue;
    }
    StreamItem item = ErrorItem(StatusCode::kTimeout, waiting->request,
                                StallText(*waiting, event.waited, context));
    item.missing = waiting->missing;
    item.hint = HintFor(*waiting, others, now, event.waited);
    if (!waiting->request.group.empty()) item.groups.push_back(waiting->request.group);
    MYDIST_RETURN_IF_ERROR(Emit(std::move(item), items));
  }
  for (auto& [name, text, missing] : std::move(warnings).Take()) {
    MYDIST_RETURN_IF_ERROR(
        Emit(StallItem(std::move(name), std::move(text), std::move(missing)), items));
  }
  return Status::Ok();
}

// Of two names for one tensor, one runs out of time before the other, which then has no near miss.
std::string Negotiator::HintFor(const WaitingTensor& tensor,
                                const std::vector<WaitingTensor>& others, TimePoint now,
                                Duration waited) {
  const auto past = near_misses_.find(tensor.request.name);
  if (const WaitingTensor* const other = FindNearMiss(tensor, others)) {
    const bool is_of_set = other->request.process_set == tensor.request.process_set;
    if (is_of_set && near_misses_.size() < kMaxCompared) {
      near_misses_[other->request.name] = {now, NearMissHint(*other, tensor)};
    }
    return NearMissHint(tensor, *other);
  }
  if (past == near_misses_.end()) return "";
  const auto [found, hint] = std::move(past->second);
  near_misses_.erase(past);
  return found >= now - waited ? hint : "";  // It may have come since, and wait again.
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
    MYDIST_RETURN_IF_ERROR(Emit(std::move(item), items));
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
