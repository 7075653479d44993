// Ring: which server holds which piece of a table, by consistent hashing with bounded loads. Pure.
// Source: Karger et al. 1997 (the ring); Mirrokni, Thorup and Zadimoghaddam, arXiv:1608.01350 (the
// bound: a server holds at most (1 + ε) times the mean, and the next one on the ring takes the
// rest).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/export.h"

namespace mydist::ps {

// Of all that all workers must compute alike: it is not the library's, and never changes.
MYDIST_EXPORT uint64_t HashText(std::string_view text);
MYDIST_EXPORT uint64_t HashNumbers(uint64_t a, uint64_t b);

class MYDIST_EXPORT Ring {
 public:
  static constexpr int kVirtualNodes = 128;
  static constexpr double kSlack = 0.1;  // ε

  // `servers`: the numbers of those that hold pieces; at least one, each once.
  explicit Ring(std::span<const int> servers, int virtual_nodes = kVirtualNodes);

  // The server of each of a table's pieces, whose sizes are all equal (but for the last one's).
  std::vector<int> Place(std::string_view table, int64_t pieces) const;
  // The server of a row of a table: rows go by blocks of 256. Without a bound, as no one knows how
  // many rows there will be.
  int PlaceRow(uint64_t table_hash, int64_t row) const;

  const std::vector<int>& servers() const { return servers_; }

 private:
  struct Node {
    uint64_t hash;
    int index;  // In servers_.
  };
  size_t FirstAt(uint64_t hash) const;

  std::vector<int> servers_;
  std::vector<Node> nodes_;  // By hash.
};

}  // namespace mydist::ps
