// PeerWatcher: notices that the process of a peer on this host has ended, however it did.
// Owned by the plane. One thread, asleep in the kernel until a peer ends; where the kernel does not
// offer that, it looks a few times a second.
#pragma once

#include <poll.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/status.h"
#include "memory/shm/arena.h"

namespace mydist::local {

class PeerWatcher {
 public:
  // Called on the watcher's thread, once for each peer that ends; an index in the arena.
  using OnEnd = std::function<void(int peer)>;

  // `arena` outlives the watcher. kInternal when there is no thread or descriptor to be had.
  static Result<std::unique_ptr<PeerWatcher>> Start(const shm::Arena* arena, OnEnd on_end);
  ~PeerWatcher();
  PeerWatcher(const PeerWatcher&) = delete;
  PeerWatcher& operator=(const PeerWatcher&) = delete;

  // Whether all peers can be waited for, so that an idle watcher never wakes up.
  bool IsEventDriven() const { return is_event_driven_; }

 private:
  PeerWatcher(const shm::Arena* arena, OnEnd on_end) : arena_(arena), on_end_(std::move(on_end)) {}
  // A descriptor that polls readable when the process of `peer` ends; -1 when there is none.
  int OpenProcess(int peer) const;
  void Watch(int peer);
  void Run();
  // Whether the peer behind entry `i` of polled_ has ended.
  bool HasEnded(size_t i) const;

  const shm::Arena* const arena_;
  const OnEnd on_end_;
  bool is_event_driven_ = true;
  // The descriptor to stop by, then one for each peer that has not ended; -1: poll ignores it.
  std::vector<pollfd> polled_;
  std::vector<int> peers_;  // The peer of each entry; the first has none.
  std::thread thread_;
};

}  // namespace mydist::local
