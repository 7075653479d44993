#include "planner/device_team.h"

#include <string>

#include "algorithms/device/device_link.h"
#include "base/log.h"

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
  MYDIST_ASSIGN_OR_RETURN(const NcclChoice agreed, surroundings_.choice->Agree(members_));
  if (agreed.version != 0) {
    MYDIST_ASSIGN_OR_RETURN(parts_, surroundings_.choice->MakeOverNccl(members_));
    for (const auto& link : parts_.links) surroundings_.links->Add(link);
  }
  has_agreed_ = true;
  Announce(agreed);
  return Status::Ok();
}

void DeviceTeam::Announce(const NcclChoice& agreed) const {
  const ProcessSet& set = *members_.set;
  const std::string path = surroundings_.choice->Describe(set, agreed);
  const bool is_global = set.id == kGlobalProcessSet;
  surroundings_.facts->Put(
      set.id,
      {is_global ? "GPU path" : "GPU path of set " + std::to_string(set.id), path, agreed.why});
  if (members_.index != 0) return;
  const std::string line = "tensors on GPUs of process set " + std::to_string(set.id) +
                           " are reduced " + (agreed.version != 0 ? "over " : "") + path + ": " +
                           agreed.why;
  if (agreed.version == 0 && set.size() > 1) {
    MYDIST_LOG(kWarning) << line;
  } else {
    MYDIST_LOG(kInfo) << line;
  }
}

}  // namespace mydist
