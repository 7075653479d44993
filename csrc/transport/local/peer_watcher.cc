#include "transport/local/peer_watcher.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/process.h"
#include "base/thread.h"

namespace mydist::local {
namespace {

// Where a peer cannot be waited for.
constexpr int kLookInterval_ms = 250;

}  // namespace

Result<std::unique_ptr<PeerWatcher>> PeerWatcher::Start(const shm::Arena* arena, OnEnd on_end) {
  std::unique_ptr<PeerWatcher> watcher(new PeerWatcher(arena, std::move(on_end)));
  const int stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop < 0) {
    return Status::Internal("cannot monitor the other ranks of this host: eventfd: " +
                            std::generic_category().message(errno) +
                            ". Check the limit on open files (ulimit -n).");
  }
  watcher->polled_.push_back({stop, POLLIN, 0});
  watcher->peers_.push_back(-1);
  for (int peer = 0; peer < arena->size(); ++peer) {
    if (!arena->IsThisProcess(peer)) watcher->Watch(peer);
  }
  MYDIST_ASSIGN_OR_RETURN(watcher->thread_,
                          StartThread("mydist-watcher", "that watches the other ranks of this host",
                                      [raw = watcher.get()] { raw->Run(); }));
  return watcher;
}

PeerWatcher::~PeerWatcher() {
  if (thread_.joinable()) {
    const uint64_t stop = 1;
    [[maybe_unused]] const ssize_t written = write(polled_.front().fd, &stop, sizeof stop);
    thread_.join();
  }
  for (const pollfd& entry : polled_) {
    if (entry.fd >= 0) close(entry.fd);
  }
}

void PeerWatcher::Watch(int peer) {
  const int descriptor = OpenProcess(peer);
  polled_.push_back({descriptor, POLLIN, 0});
  peers_.push_back(peer);
  if (descriptor >= 0 || !is_event_driven_) return;
  is_event_driven_ = false;
  MYDIST_LOG(kInfo) << "the kernel does not report the end of " << arena_->Name(peer)
                    << "; a thread checks every " << kLookInterval_ms << " ms";
}

// The pid is another process's by now if the peer has ended; then it does not hold the lock.
int PeerWatcher::OpenProcess(int peer) const {
  const std::optional<pid_t> holder = arena_->LockHolder(peer);
  if (!holder || *holder <= 0) return -1;
  const int descriptor = OpenPidfd(*holder);
  if (descriptor < 0) return -1;
  if (arena_->LockHolder(peer) == holder) return descriptor;
  close(descriptor);
  return -1;
}

void PeerWatcher::Run() {
  for (;;) {
    bool has_unpollable = false;
    for (size_t i = 1; i < polled_.size();) {
      // The descriptor is no process any more; the code that reused its number closes it.
      if ((polled_[i].revents & (POLLNVAL | POLLERR)) != 0) polled_[i].fd = -1;
      if (!HasEnded(i)) {
        has_unpollable = has_unpollable || polled_[i].fd < 0;
        ++i;
        continue;
      }
      if (polled_[i].fd >= 0) close(polled_[i].fd);
      on_end_(std::exchange(peers_[i], peers_.back()));
      polled_[i] = polled_.back();
      polled_.pop_back();
      peers_.pop_back();
    }
    poll(polled_.data(), polled_.size(), has_unpollable ? kLookInterval_ms : -1);
    if (polled_.front().revents != 0) return;
  }
}

bool PeerWatcher::HasEnded(size_t i) const {
  return polled_[i].fd >= 0 ? polled_[i].revents != 0 : arena_->HasEnded(peers_[i]);
}

}  // namespace mydist::local
