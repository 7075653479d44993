// WaitTicker: interrupts a wait in Gloo again and again, so that who waits can look whether it
// should: Gloo's own limits break all connections when they pass.
// Owned by the GlooTransport. Begin and End by whoever drives the engine; the tick comes from a
// thread of its own, which sleeps while nobody waits.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/signal_block.h"

namespace mydist {

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
      // Either this thread sees the beginning of a wait, or who begins sees that it sleeps.
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

}  // namespace mydist
