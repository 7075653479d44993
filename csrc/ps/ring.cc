#include "ps/ring.h"

#include <algorithm>
#include <string>

#include "base/status.h"

namespace mydist::ps {
namespace {

constexpr int64_t kRowBlock = 256;

// The finaliser of MurmurHash3: each bit of the input changes half of the output's.
uint64_t Mix(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 33);
}

}  // namespace

// FNV-1a, mixed.
uint64_t HashText(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash ^= static_cast<uint8_t>(c);
    hash *= 0x100000001b3ULL;
  }
  return Mix(hash);
}

uint64_t HashNumbers(uint64_t a, uint64_t b) { return Mix(a ^ Mix(b + 0x9e3779b97f4a7c15ULL)); }

Ring::Ring(std::span<const int> servers, int virtual_nodes)
    : servers_(servers.begin(), servers.end()) {
  MYDIST_CHECK(!servers_.empty() && virtual_nodes > 0);
  for (size_t index = 0; index < servers_.size(); ++index) {
    const uint64_t server = HashText("server " + std::to_string(servers_[index]));
    for (int node = 0; node < virtual_nodes; ++node) {
      nodes_.push_back({HashNumbers(server, static_cast<uint64_t>(node)), static_cast<int>(index)});
    }
  }
  std::sort(nodes_.begin(), nodes_.end(), [this](const Node& a, const Node& b) {
    return a.hash != b.hash
               ? a.hash < b.hash
               : servers_[static_cast<size_t>(a.index)] < servers_[static_cast<size_t>(b.index)];
  });
}

size_t Ring::FirstAt(uint64_t hash) const {
  const auto found = std::lower_bound(nodes_.begin(), nodes_.end(), hash,
                                      [](const Node& node, uint64_t h) { return node.hash < h; });
  return found == nodes_.end() ? 0 : static_cast<size_t>(found - nodes_.begin());
}

std::vector<int> Ring::Place(std::string_view table, int64_t pieces) const {
  const auto count = static_cast<int64_t>(servers_.size());
  // Rounded up: all pieces have a place.
  const auto most = static_cast<int64_t>(
      (static_cast<double>(pieces) * (1 + kSlack)) / static_cast<double>(count) + 1 - 1e-9);
  const uint64_t table_hash = HashText(table);
  std::vector<int64_t> loads(servers_.size());
  std::vector<int> places(static_cast<size_t>(pieces));
  for (size_t piece = 0; piece < places.size(); ++piece) {
    size_t at = FirstAt(HashNumbers(table_hash, piece));
    while (loads[static_cast<size_t>(nodes_[at].index)] >= most) at = (at + 1) % nodes_.size();
    const auto index = static_cast<size_t>(nodes_[at].index);
    ++loads[index];
    places[piece] = servers_[index];
  }
  return places;
}

int Ring::PlaceRow(uint64_t table_hash, int64_t row) const {
  const auto block = static_cast<uint64_t>(row / kRowBlock);
  const size_t at = FirstAt(HashNumbers(table_hash, block));
  return servers_[static_cast<size_t>(nodes_[at].index)];
}

}  // namespace mydist::ps
