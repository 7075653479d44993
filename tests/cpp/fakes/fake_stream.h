// FakeStream: a queue of work and the thread that does it, in order, when it likes.
// Owned by a FakeDevice, whose lock all its streams share.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "base/mutex.h"
#include "fakes/access_order.h"

namespace mydist::testing {

class FakeStream;

enum class Pace {
  // At once, or a little later: between operations a thread gives way a random number of times.
  kRandom,
  // As late as possible: nothing is done before somebody blocks on an event behind it.
  kLazy,
};

// A point of a stream: over when so many items of it are done.
struct StreamPoint {
  FakeStream* stream = nullptr;
  int64_t position = 0;
  VectorClock clock;  // Of whoever is behind it.
};

// What the streams of a device have in common.
struct StreamState {
  Mutex& mutex;  // Of all devices of the process.
  Pace pace = Pace::kRandom;
  bool is_lost MYDIST_GUARDED_BY(mutex) = false;      // What is queued is dropped.
  bool is_stopping MYDIST_GUARDED_BY(mutex) = false;  // Everything is due.
};

class FakeStream {
 public:
  FakeStream(StreamState* state, int actor, uint64_t seed);
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;

  int actor() const { return actor_; }
  VectorClock& clock() { return clock_; }  // Under the lock.

  // The caller holds the lock.
  void PutWork(std::function<void()> work);
  void PutWait(std::shared_ptr<const StreamPoint> point);
  int64_t put_count() const { return put_count_; }
  bool HasReached(int64_t position) const { return done_count_ >= position; }
  // What lies before `position` has to be done some time, in a lazy stream too.
  void Demand(int64_t position);
  // Demands it and waits for it, or for the device to be lost.
  void Await(int64_t position);
  void Wake() { news_.NotifyAll(), progress_.NotifyAll(); }  // The state has changed.

  // Without the lock. The state is stopping; streams may wait for each other until all have joined.
  void Join() { thread_.join(); }

 private:
  struct Item {
    std::function<void()> work;
    std::shared_ptr<const StreamPoint> waits_for;
  };

  void Run();
  void WaitUntilDue() MYDIST_REQUIRES(state_->mutex);
  void Do(Item item) MYDIST_REQUIRES(state_->mutex);
  void Dawdle();

  StreamState* const state_;
  const int actor_;
  std::mt19937_64 random_;  // Of the thread.
  CondVar news_;            // For the thread.
  CondVar progress_;        // For whoever waits for it.
  VectorClock clock_;       // The next item is ordered behind all this.
  std::deque<Item> items_;
  int64_t put_count_ = 0;
  int64_t done_count_ = 0;
  int64_t demanded_ = 0;
  std::thread thread_;
};

}  // namespace mydist::testing
