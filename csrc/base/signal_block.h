// SignalBlock: while it lives, the calling thread takes no signals, and threads it starts never do.
// Signals belong to the program's own threads: a handler must not run on ours, and a closed socket
// must be an error there, not a SIGPIPE. Signals that report a crash stay open, so that a crash
// handler can say where it was.
#pragma once

#include <signal.h>

#include <initializer_list>

namespace mydist {

class SignalBlock {
 public:
  SignalBlock() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int crash : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&blocked, crash);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~SignalBlock() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t before_;
};

}  // namespace mydist
