#include "algorithms/device/device_space.h"

namespace mydist {

bool DeviceSpace::Supports(const BatchTraits& traits) const {
  if (traits.device != seat_.device->index()) return false;
  return !Reduces(traits.op) || (folds_ && FoldsOnDevice(traits.reduce_op, traits.dtype));
}

Status DeviceSpace::Copy(void* target, const void* source, int64_t bytes) {
  if (bytes == 0 || target == source) return Status::Ok();
  return seat_.device->Copy(target, source, bytes, seat_.stream);
}

Status DeviceSpace::Fold(const RankFold& fold) {
  return fold.count == 0 ? Status::Ok() : seat_.device->Fold(fold, seat_.stream);
}

// What is received may be in use on the stream as well: hence the wait also where nothing is sent.
Status DeviceSpace::Exchange(TransferBatch& transfers) {
  if (transfers.empty()) return Status::Ok();
  const Status moved = [&]() -> Status {
    MYDIST_ASSIGN_OR_RETURN(const EventPointer before, seat_.device->Record(seat_.stream));
    MYDIST_RETURN_IF_ERROR(WaitWatched(*seat_.device, *before, seat_.watch));
    return seat_.device->CallWithCurrent([&] { return transfers.Exchange(); });
  }();
  transfers.Forget();  // Also where it did not come to an exchange.
  return moved;
}

}  // namespace mydist
