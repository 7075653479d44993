#include "algorithms/device/ipc_link.h"

#include <utility>

#include "base/status.h"

namespace mydist {

IpcLink::IpcLink(Parts parts) : parts_(std::move(parts)) {}

IpcLink::~IpcLink() {
  if (is_closed_) {
    parts_.port->Recycle(parts_.own);
  } else {
    Abort(Status::Aborted("the link between the GPUs of " + parts_.name + " is gone"));
  }
}

Status IpcLink::Ended() const {
  MutexLock lock(mutex_);
  return ended_;
}

void IpcLink::End(const Status& why) {
  MutexLock lock(mutex_);
  if (ended_.ok()) ended_ = why;
}

Status IpcLink::Allreduce(void* data, int64_t count, const Reduction& reduction,
                          bool in_two_shots) {
  MYDIST_RETURN_IF_ERROR(Ended());
  return Launch({.input = data,
                 .output = data,
                 .count = count,
                 .reduction = reduction,
                 .in_two_shots = in_two_shots});
}

Status IpcLink::Launch(IpcAllreduce job) {
  job.rank = parts_.rank;
  job.size = parts_.size;
  job.most_blocks = parts_.most_blocks;
  for (int rank = 0; rank < parts_.size; ++rank) {
    const auto index = static_cast<size_t>(rank);
    job.boards[index] = rank == parts_.rank ? parts_.own.memory : parts_.others[index].get();
  }
  job.abort_word = reinterpret_cast<const uint32_t*>(parts_.abort_word.get());
  job.epoch = ++epoch_;
  const Status launched = parts_.port->Allreduce(job, parts_.seat.stream);
  // The others count this launch, or will wait for it in vain.
  if (!launched.ok()) Abort(launched);
  return launched;
}

void IpcLink::Abort(const Status& why) {
  MYDIST_CHECK(!why.ok());
  End(why);
  __atomic_store_n(reinterpret_cast<uint32_t*>(parts_.abort_word.get()), 1, __ATOMIC_RELEASE);
}

Status IpcLink::Close(TimePoint deadline, const WaitWatch& watch) {
  MYDIST_RETURN_IF_ERROR(Ended());
  const Status parted = Farewell(deadline, watch);
  if (!parted.ok()) {
    Abort(parted);
    return parted;
  }
  is_closed_ = true;
  End(Status::Aborted("the link between the GPUs of " + parts_.name + " was closed"));
  return Status::Ok();
}

// Ranks meet once more. Whoever has come has read what it will ever read, and the flag it brings is
// the last it writes.
Status IpcLink::Farewell(TimePoint deadline, const WaitWatch& watch) {
  MYDIST_RETURN_IF_ERROR(Launch({}));
  MYDIST_ASSIGN_OR_RETURN(const EventPointer end, parts_.seat.device->Record(parts_.seat.stream));
  const WaitWatch until_deadline = [&] {
    if (Now() >= deadline) {
      return Status::Timeout("not all ranks of " + parts_.name + " have closed their GPUs' link");
    }
    return watch ? watch() : Status::Ok();
  };
  return WaitWatched(*parts_.seat.device, *end, until_deadline);
}

}  // namespace mydist
