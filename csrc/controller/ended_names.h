// EndedNames: errors a child may not have seen yet. Pure; owned by the Negotiator of one vertex.
// What a child reported before it applied an error belongs to the attempt that error ended and
// must not count for the next one. (Cached tensors need no entry: the error frees their slot.)
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "controller/messages/stream.h"

namespace mydist {

class EndedNames {
 public:
  // `position`: of the stream after the error.
  void Add(StreamItem error, uint64_t position) { errors_.push_back({std::move(error), position}); }

  // Whether a report made at `position` speaks of an ended attempt.
  bool Covers(const Request& request, uint64_t position) const {
    return std::any_of(errors_.begin(), errors_.end(), [&](const Entry& entry) {
      return position < entry.position && Ends(entry.error, request);
    });
  }

  // All children have reported at `position` or later.
  void Purge(uint64_t position) {
    std::erase_if(errors_, [&](const Entry& entry) { return entry.position <= position; });
  }

  bool empty() const { return errors_.empty(); }

 private:
  struct Entry {
    StreamItem error;
    uint64_t position;
  };
  std::vector<Entry> errors_;
};

}  // namespace mydist
