// RunAsRanks: N ranks as N threads of one test process, with an in-memory rendezvous.
#pragma once

#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "transport/factory.h"

namespace mydist {

// Serves BootstrapExchange to the threads of one job.
class InMemoryRendezvous {
 public:
  explicit InMemoryRendezvous(int size) : size_(static_cast<size_t>(size)) {}

  BootstrapExchange ForRank(int rank) {
    return [this, rank, round = 0](const Bytes& mine) mutable -> Result<std::vector<Bytes>> {
      MutexLock lock(mutex_);
      std::map<int, Bytes>& blobs = rounds_[round++];
      blobs[rank] = mine;
      changed_.NotifyAll();
      while (blobs.size() < size_) changed_.Wait(mutex_);
      std::vector<Bytes> all;
      for (const auto& [source, blob] : blobs) all.push_back(blob);
      return all;
    };
  }

 private:
  const size_t size_;
  Mutex mutex_;
  CondVar changed_;
  std::map<int, std::map<int, Bytes>> rounds_ MYDIST_GUARDED_BY(mutex_);
};

inline void RunAsRanks(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace mydist
