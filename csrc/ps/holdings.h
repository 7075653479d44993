// Holdings: how many pieces of the open tables each server holds, for the error when one is lost.
// Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace mydist::ps {

class Holdings {
 public:
  // `pieces`: by server, in the order of the client's list.
  void Open(uint32_t table, const std::string& name, std::vector<int64_t> pieces)
      MYDIST_EXCLUDES(mutex_);
  void Close(uint32_t table) MYDIST_EXCLUDES(mutex_);

  // "12 of 48 pieces of tables fc, emb", the tables that it holds something of; empty: nothing.
  std::string TextOf(size_t server) const MYDIST_EXCLUDES(mutex_);

 private:
  struct Held {
    std::string name;
    std::vector<int64_t> pieces;
  };

  mutable Mutex mutex_;
  std::map<uint32_t, Held> tables_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist::ps
