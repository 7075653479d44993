#include "ps/port/io_threads.h"

#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include "base/thread.h"

namespace mydist::ps {
namespace {

// In a series of calls whose callers do the work, the thread is not woken between two of them.
// After so long it notices again by itself that a connection has broken.
constexpr Duration kAway = std::chrono::milliseconds(100);

}  // namespace

Result<std::shared_ptr<Io>> Io::Start(int threads, const char* name) {
  MYDIST_CHECK(threads > 0);
  std::shared_ptr<IoThreads> io;
  try {
    // A forked child has none of the threads, so it leaves the rest alone.
    io.reset(new IoThreads(threads), [](IoThreads* made) {
      if (getpid() == made->process()) delete made;
    });
  } catch (const std::exception& error) {  // Asio tells it in no other way.
    return Status::Internal(std::string("the parameter server cannot wait for its sockets: ") +
                            error.what() + ". Check the limit on open files (ulimit -n).");
  }
  MYDIST_RETURN_IF_ERROR(io->StartThreads(threads, name));
  return std::shared_ptr<Io>(std::move(io));
}

Status IoThreads::StartThreads(int threads, const char* name) {
  for (int i = 0; i < threads; ++i) {
    char full[16];
    std::snprintf(full, sizeof(full), "%.13s%d", name, i % 100);
    MYDIST_ASSIGN_OR_RETURN(
        std::thread thread,
        StartThread(full, "for connections of the parameter server", [this] { RunThread(); }));
    threads_.push_back(std::move(thread));
  }
  return Status::Ok();
}

IoThreads::~IoThreads() {
  for (const std::thread& thread : threads_) {
    MYDIST_CHECK(thread.get_id() != std::this_thread::get_id());
  }
  {
    MutexLock lock(place_);
    is_ending_ = true;
    place_changed_.NotifyAll();
  }
  if (!threads_.empty()) EndMembers();
  context_.stop();
  for (std::thread& thread : threads_) thread.join();
}

void IoThreads::RunThread() {
  if (!is_drivable_) {
    context_.run();
    return;
  }
  while (!context_.stopped()) {
    TakePlace();
    context_.run_one();
    LeavePlace();
  }
}

void IoThreads::TakePlace() {
  MutexLock lock(place_);
  while (!is_ending_) {
    if (is_driven_) {
      is_called_ = true;
      place_changed_.Wait(place_);
      is_called_ = false;
    } else {
      if (Now() >= back_at_) break;
      place_changed_.WaitUntil(place_, back_at_);
    }
  }
  has_thread_ = true;
}

void IoThreads::LeavePlace() {
  MutexLock lock(place_);
  has_thread_ = false;
  if (is_driven_) place_changed_.NotifyAll();
}

bool IoThreads::Drive(const std::function<bool()>& is_over, const std::function<bool()>& is_idle,
                      TimePoint deadline) {
  MYDIST_CHECK(is_drivable_);
  if (process_ != getpid()) return false;  // The thread is not in a forked child.
  {
    MutexLock lock(place_);
    if (is_driven_) {
      is_wanted_ = true;
      return false;
    }
    is_driven_ = true;
    if (has_thread_) asio::post(context_, [] {});  // It may sleep.
    while (has_thread_) place_changed_.Wait(place_);
  }
  while (!is_over() && Now() < deadline) {
    deadline == kNever ? context_.run_one() : context_.run_one_until(deadline);
  }
  const TimePoint back_at = is_idle() ? Now() + kAway : kPast;
  MutexLock lock(place_);
  is_driven_ = false;
  // Another caller may have come since the look at what is in flight, and waits for the thread.
  back_at_ = std::exchange(is_wanted_, false) ? kPast : back_at;
  if (is_called_ || back_at_ == kPast) place_changed_.NotifyAll();
  return true;
}

void IoThreads::Attend() {
  MutexLock lock(place_);
  back_at_ = kPast;
  if (is_driven_) {
    is_wanted_ = true;
    asio::post(context_, [] {});
  } else if (!has_thread_) {
    place_changed_.NotifyAll();
  }
}

void IoThreads::EndMembers() {
  std::vector<std::shared_ptr<IoMember>> members;
  {
    MutexLock lock(mutex_);
    for (const auto& [_, member] : members_) {
      if (auto alive = member.lock()) members.push_back(std::move(alive));
    }
  }
  for (const auto& member : members) {
    member->End(Status::Aborted("the threads of the connection have ended"));
  }
  MutexLock lock(mutex_);
  while (!members_.empty()) changed_.Wait(mutex_);
}

void IoThreads::Post(std::function<void()> body, Duration delay) {
  if (delay <= Duration::zero()) {
    asio::post(context_, std::move(body));
    return;
  }
  auto timer = std::make_shared<asio::steady_timer>(context_, delay);
  timer->async_wait([timer, body = std::move(body)](const asio::error_code& error) {
    if (!error) body();
  });
}

void IoThreads::Add(const std::shared_ptr<IoMember>& member) {
  MutexLock lock(mutex_);
  members_.emplace(member.get(), member);
}

void IoThreads::Remove(IoMember* member) {
  MutexLock lock(mutex_);
  members_.erase(member);
  if (members_.empty()) changed_.NotifyAll();
}

}  // namespace mydist::ps
