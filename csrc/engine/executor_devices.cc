// What the Executor does for tensors on GPUs.
#include <algorithm>

#include "engine/executor.h"
#include "engine/submission.h"

namespace mydist {
namespace {

// How often is asked whether work without a waiting caller has failed.
constexpr std::chrono::milliseconds kCheckPeriod{100};
// There may be thousands.
constexpr std::chrono::milliseconds kPeerCheckPeriod{10};

}  // namespace

// Without a link no device waits for another rank.
Status Executor::News() {
  if (links_.empty()) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(sources_.news());
  MYDIST_RETURN_IF_ERROR(links_.Check());
  const TimePoint now = Now();
  if (now < next_peer_check_) return Status::Ok();
  next_peer_check_ = now + kPeerCheckPeriod;
  return CheckPeers();
}

// A control plane does not tell that a rank has ended in order or with an error: the others learn
// it when they need that rank. Here they need it.
Status Executor::CheckPeers() {
  for (const auto& [id, team] : teams_) {
    if (team.on_device == nullptr) continue;
    for (const int rank : team.set.ranks) {
      if (rank != rank_) MYDIST_RETURN_IF_ERROR(sources_.check_peer(rank));
    }
  }
  return Status::Ok();
}

void Executor::RemoveProcessSet(ProcessSetId id) {
  const auto found = teams_.find(id);
  if (found == teams_.end()) return;
  const auto& on_device = found->second.on_device;
  if (on_device != nullptr && removal_.ok()) removal_ = on_device->Close();
  if (!removal_.ok()) {
    next_check_ = TimePoint::min();  // The engine ends, and aborts the links, before the team goes.
    return;
  }
  teams_.erase(found);
  facts_.Remove(id);
}

DeviceTeam& Executor::OnDevice(Team& team, DeviceSeat* seat) {
  if (team.on_device == nullptr) {
    team.on_device = std::make_unique<DeviceTeam>(
        DeviceTeam::Surroundings{.choice = sources_.on_devices, .links = &links_, .facts = &facts_},
        seat,
        DeviceMembers{.seat = seat,
                      .set = &team.set,
                      .index = team.index,
                      .transport = TransportOf(team),
                      .on_host = team.collectives.front().get()});
  }
  return *team.on_device;
}

Status Executor::ExecuteOnDevices(Team& team, Group group, const ActivitySink& activity) {
  for (const AgreedTensor& tensor : group) {
    MYDIST_RETURN_IF_ERROR(PlaceNeutral(team, tensor.pending->submission));
  }
  if (team.set.size() > 1) return ExecuteOnDevice(team, group, activity);
  // A lone rank has no peer that would have to split it in the same way, and nothing to gain from
  // packing what stays where it lies.
  for (const AgreedTensor& tensor : group) {
    MYDIST_RETURN_IF_ERROR(ExecuteOnDevice(team, {&tensor, 1}, activity));
  }
  return Status::Ok();
}

// Without an order it was made for this rank, in host memory, as the rank has joined.
Status Executor::PlaceNeutral(const Team& team, Submission& submission) {
  if (submission.order != nullptr) return Status::Ok();
  MYDIST_ASSIGN_OR_RETURN(const int home, devices_.Home(local_rank_));
  MYDIST_ASSIGN_OR_RETURN(DeviceSeat* const seat,
                          devices_.At(sources_.sets->GpuOf(team.set.id, home)));
  return MoveNeutralTo(seat->on_stream, &submission);
}

Status Executor::ExecuteOnDevice(Team& team, Group group, const ActivitySink& activity) {
  const BatchTraits traits = TraitsOf(group);
  MYDIST_ASSIGN_OR_RETURN(DeviceSeat * seat, devices_.At(traits.device));
  MYDIST_RETURN_IF_ERROR(seat->passing.FreePassed(*seat->device));
  MYDIST_ASSIGN_OR_RETURN(Collectives* const chosen, OnDevice(team, seat).For(traits));
  MYDIST_RETURN_IF_ERROR(WaitForInputs(*seat, group));
  seat_ = seat;
  const Status status = Run(team, group,
                            {.rank = team.index,
                             .size = team.set.size(),
                             .collectives = chosen,
                             .numbers = team.collectives.front().get(),
                             .memory = &seat->fusion_memory,
                             .activity = activity,
                             .pack_bytes = &pack_bytes_});
  seat_ = nullptr;
  // Also of what has failed: the stream may still use the memory.
  const Status marked = MarkEnd(*seat, group);
  return status.ok() ? marked : status;
}

Status Executor::WaitForInputs(const DeviceSeat& seat, Group group) const {
  for (const AgreedTensor& tensor : group) {
    const DeviceOrder& order = *tensor.pending->submission.order;
    if (order.ready == nullptr) continue;
    MYDIST_RETURN_IF_ERROR(seat.device->Wait(seat.on_stream.stream, *order.ready));
  }
  return Status::Ok();
}

Status Executor::MarkEnd(DeviceSeat& seat, Group group) {
  MYDIST_ASSIGN_OR_RETURN(seat.last_batch, seat.device->Record(seat.on_stream.stream));
  for (const AgreedTensor& tensor : group) {
    Submission& submission = tensor.pending->submission;
    submission.order->done = seat.last_batch;
    // Nobody waits for the end of what this rank only takes part in.
    if (submission.order->ready == nullptr) {
      seat.passing.Keep(submission.keep_alive, seat.last_batch);
    }
  }
  // What only goes through the host cannot fail any more.
  if (!links_.empty()) next_check_ = std::min(next_check_, Now() + kCheckPeriod);
  return Status::Ok();
}

Result<void*> Executor::Allocate(const Submission& submission, const Shape& shape) {
  MYDIST_ASSIGN_OR_RETURN(void* const memory, submission.allocate(shape));
  if (seat_ != nullptr && submission.order->allocated != nullptr) {
    MYDIST_RETURN_IF_ERROR(
        seat_->device->Wait(seat_->on_stream.stream, *submission.order->allocated));
  }
  return memory;
}

Status Executor::CheckDevices(TimePoint now) {
  MYDIST_RETURN_IF_ERROR(removal_);
  if (now < next_check_) return Status::Ok();
  next_check_ = kNever;
  MYDIST_ASSIGN_OR_RETURN(const bool are_idle, devices_.AreIdle());
  if (are_idle) return Status::Ok();
  next_check_ = now + kCheckPeriod;
  MYDIST_RETURN_IF_ERROR(links_.Check());
  return CheckPeers();
}

void Executor::EndDevices(const Status& why, TimePoint deadline) {
  next_check_ = kNever;
  if (why.ok()) {
    links_.Close(deadline);
  } else {
    links_.Abort(why);
  }
}

}  // namespace mydist
