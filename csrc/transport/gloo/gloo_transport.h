// GlooTransport: Transport over a Gloo mesh. Posts all transfers, then waits for each; all use one
// slot, in which Gloo keeps the order per pair of ranks. A slow peer is not a dead one: only the
// watchdog ends a wait for it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/signal_block.h"
#include "transport/control_plane.h"
#include "transport/gloo/mesh.h"
#include "transport/transport.h"

namespace mydist {

// WaitTicker: interrupts a wait in Gloo again and again, so that the waiting thread can look
// whether it should: Gloo's own limits break all connections when they pass.
// Owned by the GlooTransport. Begin and End by the thread that drives the engine; the tick comes
// from a thread of its own, which sleeps while no wait is under way.
class WaitTicker {
 public:
  // `tick` does not throw. Throws std::system_error when there is no thread to be had.
  WaitTicker(Duration interval, std::function<void()> tick)
      : interval_(interval), tick_(std::move(tick)), thread_(Start()) {}
  // After it `tick` is not called, nor running.
  ~WaitTicker() {
    {
      MutexLock lock(mutex_);
      is_over_ = true;
      changed_.NotifyOne();
    }
    thread_.join();
  }
  WaitTicker(const WaitTicker&) = delete;
  WaitTicker& operator=(const WaitTicker&) = delete;

  // A wait begins: `tick` comes after the interval, and again, until End.
  void Begin(TimePoint now) {
    begin_.store(now);
    if (!sleeps_long_.load()) return;
    MutexLock lock(mutex_);
    sleeps_long_.store(false);
    changed_.NotifyOne();
  }
  void End() { begin_.store(kNever); }

 private:
  std::thread Start() {
    const SignalBlock block;
    return std::thread([this] { Run(); });
  }
  void Run() MYDIST_EXCLUDES(mutex_) {
    TimePoint last = kPast;
    while (SleepUntilDue(last)) {
      tick_();
      last = Now();
    }
  }
  // False: it is over.
  bool SleepUntilDue(TimePoint last) {
    MutexLock lock(mutex_);
    while (!is_over_) {
      // Either this thread sees the beginning of a wait, or the one that begins it sees that this
      // one sleeps.
      sleeps_long_.store(begin_.load() == kNever);
      const TimePoint begin = begin_.load();
      if (begin == kNever) {
        if (sleeps_long_.load()) changed_.Wait(mutex_);
        continue;
      }
      const TimePoint due = std::max(begin, last) + interval_;
      if (Now() >= due) return true;
      changed_.WaitUntil(mutex_, due);
    }
    return false;
  }

  const Duration interval_;
  const std::function<void()> tick_;
  std::atomic<TimePoint> begin_{kNever};  // Of the wait in progress; kNever: there is none.
  std::atomic<bool> sleeps_long_{false};  // Until Begin.
  Mutex mutex_;
  CondVar changed_;
  bool is_over_ MYDIST_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // The last: it uses the others.
};

// Receiver: the thread that waits for control frames of one peer and passes them to the mailbox.
// One thread per peer, because Gloo can wait for one connection only, and only a wait on that very
// connection notices that it broke. It sleeps in the kernel; an idle job costs nothing.
// Owned by the control plane.
class Receiver {
 public:
  // Starts the thread. `mesh` must outlive the receiver.
  Receiver(Mesh* mesh, int peer);
  // Interrupts the wait and joins the thread.
  ~Receiver();
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

 private:
  void Run();
  // Takes one frame. False when no more come: goodbye, stopped, or the connection broke.
  bool TakeFrame();
  bool Handle(const Frame& frame, Bytes payload);
  void HandleGoodbye(const Frame& frame, const Bytes& words);
  // Waits for a receive posted on `buffer`. False when the destructor interrupts.
  bool Await(gloo::transport::UnboundBuffer* buffer) MYDIST_EXCLUDES(mutex_);

  Mesh* const mesh_;
  const int peer_;
  Bytes eager_;
  GlooBuffer eager_buffer_;
  Mutex mutex_;
  bool stopping_ MYDIST_GUARDED_BY(mutex_) = false;
  gloo::transport::UnboundBuffer* waited_for_ MYDIST_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

class GlooTransport final : public Transport {
 public:
  explicit GlooTransport(std::shared_ptr<Mesh> mesh)
      : mesh_(std::move(mesh)), ticker_(kLookInterval, [this] { mesh_->states().Interrupt(); }) {}

  int rank() const override { return mesh_->rank(); }
  int size() const override { return mesh_->size(); }
  void SetWatchdog(Watchdog* watchdog) override { watchdog_ = watchdog; }
  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override;

  // Longest piece a transfer is sent in; must be the same on all ranks. Process-wide, for tests.
  static std::atomic<int64_t> chunk_bytes;

 private:
  struct Posted {
    int peer = -1;
    GlooBuffer buffer;
    int64_t pieces = 0;
    bool is_receive = false;
  };

  Status PostAll(std::span<const SendTransfer> sends, std::span<const ReceiveTransfer> receives);
  void Post(int peer, void* data, int64_t bytes, bool is_receive);
  Status AwaitAll();
  Status AwaitPiece(Posted& posted);
  // False: interrupted. Throws when the connection breaks.
  static bool AwaitOrInterrupted(Posted& posted);
  // It goes on no longer: says goodbye with the reason.
  Status GiveUp(const Status& error);
  // A transfer with `peer` failed: what is reported of it.
  Status ReportLoss(int peer, const char* what);
  // Never OK. The connection to `peer` broke: waits for what its receiver thread knows about the
  // cause.
  Status Verdict(int peer, const char* what);

  const std::shared_ptr<Mesh> mesh_;
  Watchdog* watchdog_ = nullptr;
  std::vector<Posted> posted_;  // Empty between calls; kept for its memory.
  WaitTicker ticker_;           // The last: its thread uses the mesh.
};

// GlooControlPlane: ControlPlane over a Gloo mesh. Sends go out on the caller's thread, one
// receiver thread per peer fills the mailbox, Await waits for the mailbox only; nothing polls.
class GlooControlPlane final : public ControlPlane {
 public:
  explicit GlooControlPlane(std::shared_ptr<Mesh> mesh);

  Status Send(int peer, Bytes payload) override;
  Status CheckPeer(int peer) override;
  Result<std::optional<IncomingMessage>> Receive() override { return mesh_->mailbox().Take(); }
  void Await(TimePoint deadline) override { mesh_->mailbox().Await(deadline); }
  void Wake() override { mesh_->mailbox().Wake(); }
  void Attend(bool attended) override { mesh_->mailbox().Attend(attended); }
  void SetFarewell(const std::string& why) override { mesh_->SetFarewell(why); }
  std::string FarewellOf(int peer) const override { return mesh_->states().farewell(peer); }
  Status Close(TimePoint deadline) override { return mesh_->SayGoodbye(deadline); }

 private:
  const std::shared_ptr<Mesh> mesh_;
  std::vector<std::unique_ptr<Receiver>> receivers_;
};

}  // namespace mydist
