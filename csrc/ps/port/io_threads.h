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
  explicit IoThreads(int threads) : context_(threads) {}
  ~IoThreads() override;

  pid_t process() const { return process_; }
  Status StartThreads(int threads, const char* name);
  void Post(std::function<void()> body, Duration delay) override;

  // Not while the Io ends: the pointer to it that the caller has keeps it.
  void Add(const std::shared_ptr<IoMember>& member);
  // The last thing that a member does with the Io.
  void Remove(IoMember* member);

  // Not to be used by a member that has been removed.
  asio::io_context& context() { return context_; }

 private:
  void EndMembers();

  const pid_t process_ = getpid();
  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  std::vector<std::thread> threads_;

  Mutex mutex_;
  CondVar changed_;
  std::map<IoMember*, std::weak_ptr<IoMember>> members_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist::ps
