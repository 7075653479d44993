// IoThreads: the Io of Asio, and what lives on it.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "ps/port/link.h"

namespace mydist::ps {

// What is on an Io and has to end before it: connections and listeners.
class IoMember {
 public:
  virtual ~IoMember() = default;
  // Begins its end, if that has not begun yet. Any thread.
  virtual void End(const Status& why) = 0;
};

class IoThreads final : public Io {
 public:
  explicit IoThreads(int threads) : context_(threads), is_drivable_(threads == 1) {}
  ~IoThreads() override;

  pid_t process() const { return process_; }
  Status StartThreads(int threads, const char* name);
  void Post(std::function<void()> body, Duration delay) override;
  bool Drive(const std::function<bool()>& is_over, const std::function<bool()>& is_idle,
             TimePoint deadline) override;
  void Attend() override MYDIST_EXCLUDES(place_);

  // Not while the Io ends: the pointer to it that the caller has keeps it.
  void Add(const std::shared_ptr<IoMember>& member);
  // The last thing that a member does with the Io.
  void Remove(IoMember* member);

  // Not to be used by a member that has been removed.
  asio::io_context& context() { return context_; }

 private:
  void EndMembers();
  void RunThread();
  // The thread has its place again, or is to end.
  void TakePlace() MYDIST_EXCLUDES(place_);
  void LeavePlace() MYDIST_EXCLUDES(place_);

  const pid_t process_ = getpid();
  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  std::vector<std::thread> threads_;

  // Of an Io with one thread: either it or a caller runs the context.
  Mutex place_;
  CondVar place_changed_;
  const bool is_drivable_;
  bool is_driven_ MYDIST_GUARDED_BY(place_) = false;   // A caller has the place or waits for it.
  bool has_thread_ MYDIST_GUARDED_BY(place_) = false;  // The thread has it.
  bool is_wanted_ MYDIST_GUARDED_BY(place_) = false;   // Has to come back after this drive.
  bool is_called_ MYDIST_GUARDED_BY(place_) = false;   // Whether the thread waits to be woken.
  bool is_ending_ MYDIST_GUARDED_BY(place_) = false;
  TimePoint back_at_ MYDIST_GUARDED_BY(place_) = kPast;  // When it takes the place again.

  Mutex mutex_;
  CondVar changed_;
  std::map<IoMember*, std::weak_ptr<IoMember>> members_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist::ps
