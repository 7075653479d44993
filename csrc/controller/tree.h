// Tree: how the ranks form the tree of coordinators. Pure.
// The root is rank 0; on one host the parent of rank r is (r - 1) / radix. Of several hosts each
// has such a tree of its own, with its lowest rank on top, and those form one with each other: what
// passes between hosts does so once. A vertex sees its subtree as lanes: lane 0 is the rank itself,
// lane i its i-th child with everything below it. For a process set the same tree is used,
// restricted to the set's members: lanes without any are left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mydist {

struct Lane {
  int32_t peer = 0;            // The rank whose messages this lane takes in.
  std::vector<int32_t> ranks;  // All it speaks for, ascending.
};

struct Vertex {
  int32_t rank = 0;
  int32_t parent = -1;           // -1: the root.
  std::vector<Lane> lanes;       // Ascending by peer; lane 0 is the vertex itself if is_member.
  std::vector<int32_t> members;  // Ranks of all lanes together, ascending.
  bool is_member = true;         // Whether the vertex's own rank is one of them.

  bool is_root() const { return parent < 0; }
  bool has_children() const { return lanes.size() > (is_member ? 1 : 0); }
  std::optional<size_t> LaneOf(int32_t peer) const;
};

// 0 <= rank < size, radix >= 1: the most children of a vertex. `hosts`: of each rank, or empty; the
// same on all ranks.
Vertex MakeVertex(int32_t rank, int32_t size, int32_t radix,
                  const std::vector<std::string>& hosts = {});

// What the vertex sees of the ranks of a process set (ascending).
Vertex Restrict(const Vertex& vertex, const std::vector<int32_t>& set_ranks);

}  // namespace mydist
