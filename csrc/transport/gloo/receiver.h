// Receiver: the thread that waits for control frames of one peer and passes them to the mailbox.
// One thread per peer, because Gloo can wait for one connection only, and only a wait on that very
// connection notices that it broke. It sleeps in the kernel; an idle job costs nothing.
// Owned by the control plane.
#pragma once

#include <thread>

#include "base/mutex.h"
#include "transport/gloo/mesh.h"
#include "transport/gloo/outbox.h"

namespace mydist {

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

}  // namespace mydist
