// Contender: an allreduce that takes part in a comparison, or the bound it is compared with.
// Owned by the Contest, one per rank. Every call but name() is collective. Float32 sum, in place.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "ranks.h"

namespace mydist::bench {

struct Samples {
  int calls = 1;  // Timed together, each on a tensor of its own.
  int count = 1;  // Per round.
};

class Contender {
 public:
  virtual ~Contender() = default;

  // Of this contender in results, e.g. "openmpi".
  virtual std::string name() const = 0;
  // Memory of its tensors: as many bytes as it was made for.
  virtual float* memory() = 0;
  // Blocks until the `count` elements at `data`, within memory(), are sums over all ranks.
  virtual Status Allreduce(float* data, int64_t count) = 0;
  virtual Status Barrier() = 0;
  // A barrier behind the timed calls. One that counts in Barrier() does not count here.
  virtual Status AwaitOthers() { return Barrier(); }
  // What an element of `own` becomes when `sum` is the sum of all ranks' elements.
  virtual float Expected(float own, float sum) const {
    (void)own;
    return sum;
  }
  // Calls take at least tens of microseconds.
  virtual bool IsSlow() const { return false; }
  // Whether calls cost by now what they are going to cost; the same on all ranks.
  virtual bool IsSettled() const { return true; }
  // The last call, unless something failed.
  virtual Status Leave() { return Status::Ok(); }
};

// Null with a reason when it cannot run here; the same on all ranks.
struct Entry {
  std::string name;
  std::unique_ptr<Contender> contender;
  std::string reason;
};

// The collectives of the core alone: in tensors that only their own rank maps, and in tensors that
// all ranks of the host map.
Entry MakeMydist(Ranks* ranks, int64_t bytes, bool in_arena);
// The same in tensors that all ranks map, through the engine: submitted and waited for.
Entry MakeEngine(Ranks* ranks, int64_t bytes);
Entry MakeOpenMpi(Ranks* ranks, int64_t bytes);
// The ring algorithm over TCP on the loopback interface.
Entry MakeGloo(Ranks* ranks, int64_t bytes);
// T_rw: all ranks at once multiply their tensor by a constant, in place: with the widest vectors of
// the processor, or with those that every x86-64 has.
Entry MakeMemoryPass(Ranks* ranks, int64_t bytes, bool is_widest);

// Private memory, aligned to a page, its pages present.
std::shared_ptr<float> PrivateMemory(int64_t bytes);

}  // namespace mydist::bench
