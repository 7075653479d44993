// Tree: how the ranks form the tree of coordinators. Pure.
// Parent of rank r is (r - 1) / radix, the root is rank 0. A vertex sees its subtree as lanes:
// lane 0 is the rank itself, lane i its i-th child with everything below it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace mydist {

struct Lane {
  int32_t peer = 0;            // The rank whose messages this lane takes in.
  std::vector<int32_t> ranks;  // All it speaks for, ascending.
};

struct Vertex {
  int32_t rank = 0;
  int32_t parent = -1;           // -1: the root.
  std::vector<Lane> lanes;       // Lane 0 is the vertex itself.
  std::vector<int32_t> members;  // Ranks of all lanes together, ascending.

  bool is_root() const { return parent < 0; }
  std::optional<size_t> LaneOf(int32_t peer) const;
};

// 0 <= rank < size, radix >= 1.
Vertex MakeVertex(int32_t rank, int32_t size, int32_t radix);

}  // namespace mydist
