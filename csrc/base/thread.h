// StartThread: starts a thread of our own, which takes no signals and has a name in debuggers.
#pragma once

#include <pthread.h>

#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/signal_block.h"
#include "base/status.h"

namespace mydist {

// `name`: of at most 15 bytes. `body` does not throw. kInternal, naming what the thread is for,
// when the system has no thread left.
inline Result<std::thread> StartThread(const char* name, const std::string& purpose,
                                       std::function<void()> body) {
  const SignalBlock block;
  try {
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (const std::system_error& error) {
    return Status::Internal("cannot start a thread " + purpose + ": " + error.what() +
                            ". Check the limit on processes (ulimit -u).");
  }
}

}  // namespace mydist
