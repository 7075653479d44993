// Ranks: the processes that a C++ benchmark runs in: forked from the program, or started by mpirun.
// Owned by main; every call but rank() and size() is collective and blocks. One thread per rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"

namespace mydist::bench {

using Bytes = std::vector<uint8_t>;

class Ranks {
 public:
  virtual ~Ranks() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Every rank's bytes, in rank order.
  virtual Result<std::vector<Bytes>> Exchange(const Bytes& mine) = 0;
  // All leave within a microsecond, as long as each has a core.
  virtual void Barrier() = 0;
  // The last call: waits for what this rank has started; the exit code of the program.
  virtual int Finish(bool success) = 0;

 protected:
  Ranks(int rank, int size) : rank_(rank), size_(size) {}

 private:
  const int rank_;
  const int size_;
};

// Forks size - 1 times; returns in every rank.
Result<std::unique_ptr<Ranks>> ForkRanks(int size);

// The ranks of the MPI job that this process is in; null when it is in none, or without MPI.
std::unique_ptr<Ranks> MpiRanks();

// Restricts this process to one of the cores it may use: the rank-th, counted round.
Status PinToCore(int rank);

}  // namespace mydist::bench
