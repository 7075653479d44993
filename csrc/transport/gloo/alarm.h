// Alarm: calls a function once, from a thread of its own, unless it is destroyed before. For waits
// in Gloo that must end in time: its own limits break all connections when they pass.
#pragma once

#include <functional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/signal_block.h"

namespace mydist {

class Alarm {
 public:
  // `ring` does not throw. Throws std::system_error when there is no thread to be had.
  Alarm(Duration delay, std::function<void()> ring)
      : end_(Now() + delay), ring_(std::move(ring)), thread_(Start()) {}
  // After it `ring` is not called, nor running.
  ~Alarm() {
    {
      MutexLock lock(mutex_);
      is_off_ = true;
      switched_off_.NotifyOne();
    }
    thread_.join();
  }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  bool has_rung() {
    MutexLock lock(mutex_);
    return has_rung_;
  }

 private:
  std::thread Start() {
    const SignalBlock block;
    return std::thread([this] { Run(); });
  }
  void Run() {
    {
      MutexLock lock(mutex_);
      while (!is_off_ && switched_off_.WaitUntil(mutex_, end_)) {
      }
      if (is_off_) return;
      has_rung_ = true;
    }
    ring_();
  }

  const TimePoint end_;
  const std::function<void()> ring_;
  Mutex mutex_;
  CondVar switched_off_;
  bool is_off_ MYDIST_GUARDED_BY(mutex_) = false;
  bool has_rung_ MYDIST_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // The last: it uses the others.
};

}  // namespace mydist
