// Mutex, MutexLock and CondVar with clang thread-safety annotations.
// Every field shared between threads says MYDIST_GUARDED_BY(its mutex); clang then proves the lock
// is held (-Wthread-safety). CondVar waits on CLOCK_MONOTONIC, so a stepped wall clock has no say.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/clock.h"

#if defined(__clang__)
#define MYDIST_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define MYDIST_THREAD_ANNOTATION(x)
#endif

#define MYDIST_CAPABILITY(name) MYDIST_THREAD_ANNOTATION(capability(name))
#define MYDIST_SCOPED_CAPABILITY MYDIST_THREAD_ANNOTATION(scoped_lockable)
#define MYDIST_GUARDED_BY(mutex) MYDIST_THREAD_ANNOTATION(guarded_by(mutex))
#define MYDIST_REQUIRES(...) MYDIST_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define MYDIST_EXCLUDES(...) MYDIST_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define MYDIST_ACQUIRE(...) MYDIST_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define MYDIST_RELEASE(...) MYDIST_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define MYDIST_TRY_ACQUIRE(...) MYDIST_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define MYDIST_NO_THREAD_SAFETY_ANALYSIS MYDIST_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace mydist {

class MYDIST_CAPABILITY("mutex") Mutex {
 public:
  void Lock() MYDIST_ACQUIRE() { mutex_.lock(); }
  void Unlock() MYDIST_RELEASE() { mutex_.unlock(); }
  bool TryLock() MYDIST_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class MYDIST_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) MYDIST_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() MYDIST_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits may return early, so callers loop on their condition while holding the mutex.
class CondVar {
 public:
  void Wait(Mutex& mutex) MYDIST_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  // False when `deadline` passed, which kNever does not.
  bool WaitUntil(Mutex& mutex, TimePoint deadline) MYDIST_REQUIRES(mutex) {
    if (deadline == kNever) {
      Wait(mutex);
      return true;
    }
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }

  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace mydist
