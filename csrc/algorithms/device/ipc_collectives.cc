#include "algorithms/device/ipc_collectives.h"

#include <algorithm>

#include "kernels/element.h"

namespace mydist {
namespace {

// What a rank may read of others' memory in one shot; beyond, a second meeting costs less.
constexpr int64_t kOneShotReadBytes = int64_t{2} << 20;

}  // namespace

bool IpcCollectives::Supports(const BatchTraits& traits) const {
  return traits.device == link_->device() && traits.op == OpKind::kAllreduce &&
         traits.bytes <= limit_bytes_ && FoldsOnDevice(traits.reduce_op, traits.dtype);
}

Status IpcCollectives::Allreduce(void* data, int64_t count, const Reduction& reduction) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  // All slices of two ranks are as much to read as the whole.
  const bool in_two_shots =
      link_->size() > 2 && count > kOneShotReadBytes / element_bytes / (link_->size() - 1);
  const int64_t most = kIpcHalfBytes / element_bytes;
  for (int64_t done = 0; done < count; done += most) {
    MYDIST_RETURN_IF_ERROR(link_->Allreduce(AsBytes(data) + done * element_bytes,
                                            std::min(most, count - done), reduction, in_two_shots));
  }
  return Status::Ok();
}

}  // namespace mydist
