#include "memory/shm/forked_heaps.h"

#include <pthread.h>

#include <algorithm>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "memory/shm/arena_heap.h"

namespace mydist::shm::forked_heaps {
namespace {

struct Heaps {
  Mutex mutex;  // Held while a fork is on.
  std::vector<ArenaHeap*> list MYDIST_GUARDED_BY(mutex);
};

// Never destroyed: tensors may be freed while the program exits.
Heaps& TheHeaps() {
  static Heaps* const kHeaps = new Heaps;
  return *kHeaps;
}

// The analysis follows no lock from one function to the next.
void BeforeFork() MYDIST_NO_THREAD_SAFETY_ANALYSIS {
  TheHeaps().mutex.Lock();
  for (ArenaHeap* heap : TheHeaps().list) heap->BeforeFork();
}

void AfterForkInParent() MYDIST_NO_THREAD_SAFETY_ANALYSIS {
  for (ArenaHeap* heap : TheHeaps().list) heap->AfterForkInParent();
  TheHeaps().mutex.Unlock();
}

void AfterForkInChild() MYDIST_NO_THREAD_SAFETY_ANALYSIS {
  for (ArenaHeap* heap : TheHeaps().list) heap->AfterForkInChild();
  // A child of the child gets its own memory anyway.
  TheHeaps().list.clear();
  TheHeaps().mutex.Unlock();
}

}  // namespace

void Add(ArenaHeap* heap) {
  static const bool kRegistered =
      pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild) == 0;
  if (!kRegistered) MYDIST_LOG(kWarning) << "forked children will share the gradients";
  MutexLock lock(TheHeaps().mutex);
  TheHeaps().list.push_back(heap);
}

void Remove(ArenaHeap* heap) {
  MutexLock lock(TheHeaps().mutex);
  std::erase(TheHeaps().list, heap);
}

}  // namespace mydist::shm::forked_heaps
