#include "fakes/fake_stream.h"

#include <algorithm>
#include <utility>

namespace mydist::testing {

FakeStream::FakeStream(StreamState* state, int actor, uint64_t seed)
    : state_(state), actor_(actor), random_(seed), thread_([this] { Run(); }) {}

void FakeStream::PutWork(std::function<void()> work) {
  ++put_count_;
  items_.push_back({std::move(work), nullptr});
  news_.NotifyAll();
}

void FakeStream::PutWait(std::shared_ptr<const StreamPoint> point) {
  ++put_count_;
  items_.push_back({nullptr, std::move(point)});
  news_.NotifyAll();
}

void FakeStream::Demand(int64_t position) {
  if (position <= demanded_) return;
  demanded_ = position;
  news_.NotifyAll();
}

void FakeStream::Await(int64_t position) {
  Demand(position);
  while (!state_->is_lost && !HasReached(position)) progress_.Wait(state_->mutex);
}

void FakeStream::Run() {
  MutexLock lock(state_->mutex);
  while (true) {
    WaitUntilDue();
    if (items_.empty()) return;
    Item item = std::move(items_.front());
    items_.pop_front();
    Do(std::move(item));
    ++done_count_;
    progress_.NotifyAll();
  }
}

// Until there is an item that may be done, or never will be one again.
void FakeStream::WaitUntilDue() {
  while (true) {
    const bool is_due = state_->is_stopping || state_->is_lost || state_->pace == Pace::kRandom ||
                        done_count_ < demanded_;
    if (items_.empty() ? state_->is_stopping : is_due) return;
    news_.Wait(state_->mutex);
  }
}

void FakeStream::Do(Item item) {
  if (item.waits_for != nullptr) {
    item.waits_for->stream->Await(item.waits_for->position);
  } else if (!state_->is_lost) {
    state_->mutex.Unlock();
    Dawdle();
    item.work();
    item.work = nullptr;  // With what it holds, while nobody waits for us.
    state_->mutex.Lock();
  }
}

void FakeStream::Dawdle() {
  if (state_->pace == Pace::kLazy || random_() % 4 != 0) return;
  for (uint64_t turns = random_() % 16; turns > 0; --turns) std::this_thread::yield();
}

}  // namespace mydist::testing
