#include "ps/call_trace.h"

#include <algorithm>

namespace mydist::ps {

void CallTrace::Note(size_t lane, const Frame& answer, int64_t staleness) {
  Share& share = shares_[lane];
  ++share.parts;
  share.applied += std::chrono::microseconds(answer.epoch);
  share.waited = std::max<Duration>(share.waited, std::chrono::microseconds(answer.piece));
  share.end = Now();
  staleness_ = std::max(staleness_, staleness);
  if (--remaining_ == 0) Give();
}

void CallTrace::Give() const {
  std::string text = staleness_ < 0 ? "" : "staleness " + std::to_string(staleness_);
  for (size_t lane = 0; lane < shares_.size(); ++lane) {
    const Share& share = shares_[lane];
    if (share.parts == 0) continue;
    const std::string server = "server " + std::to_string(servers_[lane]);
    text += (text.empty() ? "" : ", ") + std::to_string(share.parts) + " parts on " + server;
    const std::string where = table_ + " on " + server;
    if (share.waited > Duration::zero()) {
      on_span_({where, "WAIT", std::max(begin_, share.end - share.waited - share.applied),
                share.waited, ""});
    }
    if (name_ != "PULL") {
      on_span_({where, "APPLY", std::max(begin_, share.end - share.applied), share.applied, ""});
    }
  }
  on_span_({table_, name_, begin_, Now() - begin_, text});
}

}  // namespace mydist::ps
