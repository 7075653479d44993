#include "planner/device_team.h"

#include <string>
#include <utility>

#include "algorithms/device/device_link.h"
#include "algorithms/device/ipc_collectives.h"
#include "algorithms/device/ipc_connect.h"
#include "base/log.h"
#include "planner/path_probe.h"

namespace mydist {

DeviceTeam::DeviceTeam(const Surroundings& surroundings, DeviceSeat* seat,
                       const DeviceMembers& members)
    : surroundings_(surroundings),
      seat_(seat),
      members_(members),
      parts_(surroundings.choice->MakeStaged(members)) {}

DeviceTeam::~DeviceTeam() {
  for (const auto& link : parts_.links) surroundings_.links->Remove(link.get());
  // What fails here has nothing on the stream any more.
  const Result<EventPointer> last = seat_->device->Record(seat_->on_stream.stream);
  if (last.ok()) static_cast<void>(seat_->device->Block(**last));
}

// However long it takes: handles have completed whose results are still to come.
Status DeviceTeam::Close() {
  for (const auto& link : parts_.links) {
    MYDIST_RETURN_IF_ERROR(link->Close(kNever, seat_->on_stream.watch));
  }
  return Status::Ok();
}

Result<Collectives*> DeviceTeam::For(const BatchTraits& traits) {
  // Two ranks alone cannot agree for all.
  if (!has_agreed_ && traits.op != OpKind::kSendReceive) MYDIST_RETURN_IF_ERROR(Agree());
  return ChooseFor(traits, parts_.choices);
}

Status DeviceTeam::Agree() {
  MYDIST_ASSIGN_OR_RETURN(const DeviceAgreement agreed, surroundings_.choice->Agree(members_));
  if (agreed.nccl.version != 0 || agreed.direct) {
    MYDIST_ASSIGN_OR_RETURN(parts_, surroundings_.choice->Make(members_, agreed));
    for (const auto& link : parts_.links) surroundings_.links->Add(link);
  }
  IpcPath ipc{.limit_bytes = 0, .why = agreed.ipc.why};
  if (agreed.ipc.use != GpuIpcChoice::kOff) {
    MYDIST_ASSIGN_OR_RETURN(ipc, TryIpc(agreed.ipc.use));
  }
  has_agreed_ = true;
  Announce(agreed, ipc);
  return Status::Ok();
}

// The link is among all others before anything waits for it: a lost rank ends it. Where a trial has
// failed, the next would take as long and leave another board behind.
Result<DeviceTeam::IpcPath> DeviceTeam::TryIpc(GpuIpcChoice use) {
  MYDIST_ASSIGN_OR_RETURN(std::string known,
                          FirstFailure(seat_->ipc_trial, *members_.on_host, members_.set->size()));
  if (!known.empty()) return IpcPath{.limit_bytes = 0, .why = std::move(known)};
  MYDIST_ASSIGN_OR_RETURN(const IpcConnection connection,
                          surroundings_.choice->ConnectWithinHost(members_, use));
  if (connection.link == nullptr) return IpcPath{.limit_bytes = 0, .why = connection.why_not};
  parts_.links.push_back(connection.link);
  surroundings_.links->Add(connection.link);
  MYDIST_ASSIGN_OR_RETURN(const std::string why_not, TryOut(*connection.link));
  if (!why_not.empty()) {
    LeaveOut(connection.link, why_not);
    return IpcPath{.limit_bytes = 0, .why = why_not};
  }
  trial_memory_.reset();
  IpcPath path{.limit_bytes = kIpcHalfBytes, .why = "MYDIST_GPU_IPC=on"};
  if (use == GpuIpcChoice::kAuto) {
    MYDIST_ASSIGN_OR_RETURN(path.limit_bytes, MeasureIpc(connection.link));
    path.why = "as measured";
  }
  if (path.limit_bytes > 0) {
    parts_.choices.insert(parts_.choices.begin(),
                          std::make_unique<IpcCollectives>(connection.link, path.limit_bytes));
    return path;
  }
  MYDIST_RETURN_IF_ERROR(connection.link->Close(kNever, seat_->on_stream.watch));
  surroundings_.links->Remove(connection.link.get());
  parts_.links.pop_back();
  path.why = "it is not faster here, as measured";
  return path;
}

Result<std::string> DeviceTeam::TryOut(IpcLink& link) {
  const Result<uint8_t*> memory = ReserveForTrial();
  return TryIpcLink({.link = &link,
                     .seat = seat_->on_stream,
                     .exchange = members_.on_host,
                     .prepared = memory.status(),
                     .memory = memory.ok() ? *memory : nullptr,
                     .pinned = trial_memory_.get(),
                     .patience = surroundings_.choice->ipc_patience()});
}

Result<uint8_t*> DeviceTeam::ReserveForTrial() {
  MYDIST_ASSIGN_OR_RETURN(trial_memory_, seat_->device->AllocatePinned(kIpcTrialBytes));
  return seat_->fusion_memory.Reserve(kIpcTrialBytes);
}

// It is no failure of the job: what looks after links must not find it. Its kernel ends by itself
// now, and is not waited for: on the stream it may be behind what waits for the program.
void DeviceTeam::LeaveOut(const std::shared_ptr<IpcLink>& link, const std::string& why) {
  seat_->ipc_trial = Status::Internal("a trial has failed before: " + why);
  surroundings_.links->Remove(link.get());
  link->Abort(Status::Aborted(why));
  left_out_ = link;
  parts_.links.pop_back();
}

Result<int64_t> DeviceTeam::MeasureIpc(const std::shared_ptr<IpcLink>& link) {
  MYDIST_ASSIGN_OR_RETURN(uint8_t* const memory, seat_->fusion_memory.Reserve(kIpcHalfBytes));
  IpcCollectives over_ipc(link, kIpcHalfBytes);
  return MeasureIpcLimit({.seat = seat_->on_stream,
                          .memory = memory,
                          .over_ipc = &over_ipc,
                          .otherwise = parts_.choices.front().get(),
                          .exchange = members_.on_host,
                          .size = members_.set->size()});
}

void DeviceTeam::Announce(const DeviceAgreement& agreed, const IpcPath& ipc) const {
  const ProcessSet& set = *members_.set;
  const std::string path = surroundings_.choice->Describe(set, agreed);
  std::string small;
  std::string why = agreed.nccl.why;
  if (ipc.limit_bytes > 0) {
    small = "from GPU to GPU up to " + std::to_string(ipc.limit_bytes >> 10) + " KiB (" + ipc.why +
            "), else ";
  } else if (!ipc.why.empty()) {
    why += "; nothing goes from GPU to GPU: " + ipc.why;
  }
  const bool is_global = set.id == kGlobalProcessSet;
  surroundings_.facts->Put(
      set.id,
      {is_global ? "GPU path" : "GPU path of set " + std::to_string(set.id), small + path, why});
  if (members_.index != 0) return;
  const std::string line = "tensors on GPUs of process set " + std::to_string(set.id) +
                           " are reduced " + small + (agreed.nccl.version != 0 ? "over " : "") +
                           path + ": " + why;
  const bool is_direct = surroundings_.choice->ReducesDirectly(set, agreed);
  if (agreed.nccl.version == 0 && !is_direct && set.size() > 1) {
    MYDIST_LOG(kWarning) << line;
  } else {
    MYDIST_LOG(kInfo) << line;
  }
}

}  // namespace mydist
