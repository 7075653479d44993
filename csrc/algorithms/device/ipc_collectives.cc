#include "algorithms/device/ipc_collectives.h"

#include <algorithm>
#include <string>

#include "kernels/element.h"

namespace mydist {
namespace {

// What a rank may read of others' memory in one shot; beyond, a second meeting costs less.
constexpr int64_t kOneShotReadBytes = int64_t{2} << 20;

Status CannotDo(const char* what) {
  return Status::Internal("the kernel between GPUs of a host was asked for " + std::string(what) +
                          ", but it does allreduces only; expected the choice to fall on other "
                          "collectives. This is a bug of mydist: please report it");
}

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

Status IpcCollectives::Allgather(const void*, void*, std::span<const int64_t>) {
  return CannotDo("an allgather");
}

Status IpcCollectives::Reduce(const void*, void*, int64_t, const Reduction&, int) {
  return CannotDo("a reduce");
}

Status IpcCollectives::AdasumAllreduce(void*, std::span<const int64_t>, const Reduction&) {
  return CannotDo("adaptive summation");
}

Status IpcCollectives::Gather(const void*, void*, std::span<const int64_t>, int) {
  return CannotDo("a gather");
}

Status IpcCollectives::Scatter(const void*, std::span<const int64_t>, void*, int) {
  return CannotDo("a scatter");
}

Status IpcCollectives::Send(const void*, int64_t, int) { return CannotDo("a send"); }

Status IpcCollectives::Receive(void*, int64_t, int) { return CannotDo("a receive"); }

Status IpcCollectives::Broadcast(void*, int64_t, int) { return CannotDo("a broadcast"); }

Status IpcCollectives::Alltoall(const void*, std::span<const int64_t>, void*,
                                std::span<const int64_t>) {
  return CannotDo("an alltoall");
}

Status IpcCollectives::Reducescatter(const void*, void*, std::span<const int64_t>,
                                     const Reduction&) {
  return CannotDo("a reducescatter");
}

Status IpcCollectives::Barrier() { return CannotDo("a barrier"); }

}  // namespace mydist
