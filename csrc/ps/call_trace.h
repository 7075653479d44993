// CallTrace: what the timeline shows of one call on a table: how long it took, and on each server
// how long it waited for other workers and what the updates took. Notes come one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/export.h"
#include "ps/frame.h"

namespace mydist::ps {

// Something that lasted, for the timeline.
struct Span {
  std::string lane;
  std::string name;
  TimePoint begin;
  Duration duration{};
  std::string text;
};
using OnSpan = std::function<void(const Span& span)>;

class MYDIST_EXPORT CallTrace {
 public:
  // `servers`: their numbers, by lane. `parts`: the answers that make the call complete.
  CallTrace(std::string table, std::string name, std::vector<int> servers, int64_t parts,
            OnSpan on_span)
      : table_(std::move(table)),
        name_(std::move(name)),
        servers_(std::move(servers)),
        shares_(servers_.size()),
        remaining_(parts),
        on_span_(std::move(on_span)) {}

  // An answer of a server; `staleness` of the gradient that it was about, -1: none. The last one
  // gives the spans.
  void Note(size_t lane, const Frame& answer, int64_t staleness);

 private:
  struct Share {
    int64_t parts = 0;
    Duration applied{};
    Duration waited{};  // The longest.
    TimePoint end{};
  };
  void Give() const;

  const std::string table_;
  const std::string name_;
  const std::vector<int> servers_;
  std::vector<Share> shares_;
  int64_t remaining_;
  int64_t staleness_ = -1;
  const OnSpan on_span_;
  const TimePoint begin_ = Now();
};

}  // namespace mydist::ps
