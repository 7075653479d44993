// SignalBlock: while it lives, the calling thread takes no signals, and threads it starts never do.
// Signals belong to the program's own threads: a handler must not run on ours, and a closed socket
// must be an error there, not a SIGPIPE. Signals that report a crash stay open, so that a crash
// handler can say where it was.
#pragma once

#include <signal.h>

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

// DefaultFloatEnvironment: for its lifetime this thread computes as a fresh process does, whatever
// its program has set (flushing of denormals, rounding). Results must not depend on which thread of
// which rank computes them.

#if defined(__SSE__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace mydist {

class DefaultFloatEnvironment {
 public:
#if defined(__SSE__)
  DefaultFloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~DefaultFloatEnvironment() { _mm_setcsr(saved_); }
#else
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
#endif
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if defined(__SSE__)
  static constexpr unsigned kDefault = 0x1f80;  // All exceptions masked, nothing else set.
  const unsigned saved_;
#else
  std::fenv_t saved_;
#endif
};

}  // namespace mydist
