#include "ps/holdings.h"

#include <numeric>
#include <utility>

namespace mydist::ps {
namespace {

constexpr int kMostNames = 8;

}  // namespace

void Holdings::Open(uint32_t table, const std::string& name, std::vector<int64_t> pieces) {
  MutexLock lock(mutex_);
  tables_[table] = {name, std::move(pieces)};
}

void Holdings::Close(uint32_t table) {
  MutexLock lock(mutex_);
  tables_.erase(table);
}

std::string Holdings::TextOf(size_t server) const {
  MutexLock lock(mutex_);
  int64_t held = 0;
  int64_t all = 0;
  int tables = 0;
  std::string names;
  for (const auto& [number, table] : tables_) {
    if (server >= table.pieces.size() || table.pieces[server] == 0) continue;
    held += table.pieces[server];
    all += std::accumulate(table.pieces.begin(), table.pieces.end(), int64_t{0});
    if (++tables <= kMostNames) names += (tables == 1 ? "" : ", ") + table.name;
  }
  if (tables == 0) return "";
  if (tables > kMostNames) names += " and " + std::to_string(tables - kMostNames) + " more";
  return std::to_string(held) + " of " + std::to_string(all) + " pieces of table" +
         (tables == 1 ? " " : "s ") + names;
}

}  // namespace mydist::ps
