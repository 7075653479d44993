// IpcLink: ranks of one host whose GPUs are reached from each other, once all have opened all
// boards. Launches the kernel and counts the launches (reduce); ends what waits for a lost rank.
// Owned by the engine, destroyed when its stream has passed. Allreduce, Close: whoever drives the
// engine; Check, Abort: any thread at any time. See DeviceLink.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "algorithms/device/device_link.h"
#include "base/export.h"
#include "base/mutex.h"
#include "memory/device/ipc_port.h"

namespace mydist {

class MYDIST_EXPORT IpcLink final : public DeviceLink {
 public:
  struct Parts {
    StreamSeat seat;
    IpcPort* port = nullptr;
    std::string name;  // Of the ranks, for messages.
    int rank = 0;
    int size = 1;
    int most_blocks = kMaxIpcBlocks;  // Of a launch; the same on all ranks.
    ExportedBoard own;
    std::vector<std::shared_ptr<uint8_t>> others;  // By rank; null: our own.
    std::shared_ptr<uint8_t> abort_word;           // Pinned, at 0.
  };
  explicit IpcLink(Parts parts);
  // Aborts where nobody has closed.
  ~IpcLink() override;
  IpcLink(const IpcLink&) = delete;
  IpcLink& operator=(const IpcLink&) = delete;

  int device() const { return parts_.seat.device->index(); }
  int rank() const { return parts_.rank; }
  int size() const { return parts_.size; }

  // At most kIpcHalfBytes, in place. Puts it on the stream. What has ended the link; errors of
  // IpcPort.
  Status Allreduce(void* data, int64_t count, const Reduction& reduction, bool in_two_shots);

  Status Check() override { return Ended(); }
  // Never waits: what is on the stream ends on its own then.
  void Abort(const Status& why) override;
  Status Close(TimePoint deadline, const WaitWatch& watch) override;

 private:
  Status Launch(IpcAllreduce job);
  Status Farewell(TimePoint deadline, const WaitWatch& watch);
  Status Ended() const MYDIST_EXCLUDES(mutex_);
  void End(const Status& why) MYDIST_EXCLUDES(mutex_);

  const Parts parts_;
  uint64_t epoch_ = 0;      // Of the last launch.
  bool is_closed_ = false;  // No rank uses our board.
  mutable Mutex mutex_;
  Status ended_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist
