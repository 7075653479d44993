// Participation: whom a vertex waits for. Pure; owned by the Negotiator of one process set.
// Usually every rank of every lane; not those that have joined (they contribute neutral elements
// to everything until all have), and of a send/recv nobody but its two ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "controller/messages/request.h"
#include "controller/tree.h"

namespace mydist {

class Participation {
 public:
  // `vertex` must outlive this object.
  explicit Participation(const Vertex& vertex) : vertex_(vertex) {}

  // The rank has nothing to contribute from now on. Ranks the vertex does not know are ignored.
  void Join(int32_t rank);
  // All have joined, and all are back.
  void Reset() { joined_.clear(); }
  bool HasJoined(int32_t rank) const { return joined_.contains(rank); }
  bool anybody_joined() const { return !joined_.empty(); }

  // Whether some rank of the lane has not joined.
  bool Awaits(size_t lane) const;
  // The ranks of the lane that have to be ready for the request, ascending.
  std::vector<int32_t> Awaited(size_t lane, const Request& request) const;
  // Whether there is one.
  bool Awaits(size_t lane, const Request& request) const;

 private:
  bool Counts(const Request& request, int32_t rank) const {
    return !joined_.contains(rank) && TakesPart(request, rank);
  }

  const Vertex& vertex_;
  std::set<int32_t> joined_;
};

}  // namespace mydist
