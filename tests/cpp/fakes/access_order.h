// AccessOrder: which accesses to memory are ordered behind which, by vector clocks. An actor is
// whoever does things one after the other: a stream or a thread of the host.
// Pure bookkeeping without threads; FakeDevice owns it and holds its lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mydist::testing {

// How far each actor had come, as far as somebody knows.
class VectorClock {
 public:
  bool Knows(int actor, int64_t time) const { return TimeOf(actor) >= time; }
  int64_t TimeOf(int actor) const;
  // One more step of `actor`, which is the owner of this clock; returns its time.
  int64_t Tick(int actor);
  void Learn(const VectorClock& other);

 private:
  std::vector<int64_t> times_;  // By actor; those beyond the end are at 0.
};

// One use of some bytes: what it was, and when.
struct Access {
  std::shared_ptr<const std::string> what;
  int actor = 0;
  int64_t time = 0;
};

enum class Use { kRead, kWrite };

// The accesses to one piece of memory which later ones have to be ordered behind: of every byte the
// last write, and the last read of each actor since then.
class AccessMap {
 public:
  explicit AccessMap(int64_t bytes) : bytes_(bytes) { cells_[0]; }

  struct Conflict {
    Access earlier;
    Use use = Use::kRead;  // Of the earlier one.
    int64_t offset = 0;    // Of the first byte that both use.
  };

  // The first earlier access that may not be in progress while `use` touches the bytes from `begin`
  // to `end`, and that `clock` does not know to be over.
  std::optional<Conflict> Find(int64_t begin, int64_t end, Use use, const VectorClock& clock) const;
  void Note(int64_t begin, int64_t end, Use use, const Access& access);

 private:
  struct Cell {
    std::optional<Access> write;
    std::vector<Access> reads;
  };

  void Split(int64_t offset);

  const int64_t bytes_;
  std::map<int64_t, Cell> cells_;  // By the first byte; up to the next one.
};

}  // namespace mydist::testing
