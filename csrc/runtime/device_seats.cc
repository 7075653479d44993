#include "runtime/device_seats.h"

#include <string>
#include <utility>

#include "base/log.h"

namespace mydist {
namespace {

Status WaitFor(const DeviceSeat& seat) {
  MYDIST_ASSIGN_OR_RETURN(const EventPointer last, seat.device->Record(seat.stream));
  return seat.device->Block(*last);
}

}  // namespace

DeviceSeats::~DeviceSeats() {
  for (const auto& [index, seat] : seats_) {
    if (const Status waited = WaitFor(seat); !waited.ok()) {
      MYDIST_LOG(kDebug) << "leaving GPU " << index << ": " << waited.message();
    }
  }
}

Result<DeviceSeat*> DeviceSeats::At(int index) {
  const auto found = seats_.find(index);
  if (found != seats_.end()) return &found->second;
  if (!source_) {
    return Status::Internal("a tensor on GPU " + std::to_string(index) +
                            " has come to a job that has no GPUs");
  }
  MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, source_(index));
  MYDIST_ASSIGN_OR_RETURN(const StreamHandle stream, device->CreateStream());
  const StreamSeat on_stream{device.get(), stream};
  MYDIST_ASSIGN_OR_RETURN(auto staging, StagingPipeline::Open(on_stream));
  DeviceSeat seat{std::move(device), stream, DeviceMemory(on_stream), std::move(staging)};
  return &seats_.emplace(index, std::move(seat)).first->second;
}

}  // namespace mydist
