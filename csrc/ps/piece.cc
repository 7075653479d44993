#include "ps/piece.h"

#include <algorithm>
#include <utility>

#include "kernels/reduction.h"

namespace mydist::ps {
namespace {

std::span<const float> Floats(const Payload& payload) {
  return {reinterpret_cast<const float*>(payload.bytes().data()),
          payload.bytes().size() / sizeof(float)};
}

}  // namespace

Piece::Piece(const TableSpec& spec)
    : spec_(spec), clocks_(spec.workers()), updates_read_(static_cast<size_t>(spec.workers())) {
  Result<std::unique_ptr<UpdateRule>> rule = MakeRule(spec.rule, spec.workers());
  MYDIST_CHECK(rule.ok());  // The spec has been checked.
  rule_ = std::move(rule).value();
}

void Piece::Push(int worker, Payload gradient, bool pulls, OnAnswer reply) {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return ReplyTo(reply, failure_);
  if (const Status fits = CheckPush(worker, gradient); !fits.ok()) return ReplyTo(reply, fits);
  if (spec_.consistency == Consistency::kSync) {
    PushToClock(worker, std::move(gradient), pulls, std::move(reply));
  } else {
    PushAlone(worker, std::move(gradient), pulls, std::move(reply));
  }
}

Status Piece::CheckPush(int worker, const Payload& gradient) const {
  const std::string where = "table '" + spec_.name + "'";
  if (!rule_->TakesGradients()) {
    return Status::InvalidArgument(where +
                                   " has no rule that applies a push; create it with one, "
                                   "such as md.ps.SGD(lr=0.1) or md.ps.Assign()");
  }
  if (clocks_.HasFinished(worker)) {
    return Status::InvalidArgument(where + ": a push follows finish() of this worker");
  }
  if (spec_.consistency == Consistency::kSync && clocks_.Of(worker) > applied_ + kMaxLead) {
    return Status::InvalidArgument(where +
                                   ": a push does not wait for the one before, which is "
                                   "ahead of other workers");
  }
  return gradient.bytes().empty() ? Status::Ok() : CheckGradient(gradient);
}

void Piece::PushToClock(int worker, Payload gradient, bool pulls, OnAnswer reply) {
  const int64_t clock = clocks_.Push(worker);
  Payload request = pulls ? RequestOf(gradient) : Payload();
  if (clock < applied_) {  // Others have covered it. Its next push is one of the present clock.
    clocks_.CatchUp(worker, applied_);
  } else {
    const auto index = static_cast<size_t>(clock - applied_);
    while (open_.size() <= index) {
      open_.push_back({std::vector<std::optional<Payload>>(updates_read_.size()), 0});
    }
    OpenClock& open = open_[index];
    ++open.count;
    const bool is_last = index == 0 && IsComplete(open);
    if (!is_last && pulls) gradient.Hold();
    if (!is_last && !pulls) gradient.Copy();
    open.gradients[static_cast<size_t>(worker)] = std::move(gradient);
  }
  request.Copy();
  const int64_t needed = pulls ? clock + 1 : clock + 1 - kMaxLead;
  waiting_.push_back({worker, needed, std::move(request), std::move(reply), pulls, Now()});
  ApplyCompleteClocks();
  // Not before: the worker writes its next gradient where this one may still be read.
  WakeWaiting();
}

void Piece::PushAlone(int worker, Payload gradient, bool pulls, OnAnswer reply) {
  clocks_.Push(worker);
  if (!gradient.bytes().empty()) {
    const Payload* const one = &gradient;
    ApplyTimed({&one, 1}, {worker, updates_, updates_read_[static_cast<size_t>(worker)]});
    ++updates_;
  }
  if (pulls) {
    ReplyOrWait({worker, clocks_.Of(worker), std::move(gradient), std::move(reply), true, Now()});
  } else {
    ReplyTo(reply, Status::Ok());
  }
  WakeWaiting();
}

void Piece::Pull(int worker, Payload request, OnAnswer reply) {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return ReplyTo(reply, failure_);
  if (const Status fits = CheckRequest(request); !fits.ok()) return ReplyTo(reply, fits);
  ReplyOrWait({worker, clocks_.Of(worker), std::move(request), std::move(reply), true, Now()});
}

void Piece::Finish(int worker) {
  MutexLock lock(mutex_);
  clocks_.Finish(worker);
  ApplyCompleteClocks();
  WakeWaiting();
}

void Piece::Resume(int worker) {
  MutexLock lock(mutex_);
  clocks_.Resume(worker);
}

void Piece::Lose(int worker, const Status& why) {
  MutexLock lock(mutex_);
  if (clocks_.HasFinished(worker) || !failure_.ok()) return;
  if (spec_.consistency == Consistency::kSync && ++lost_ > spec_.bound) {
    failure_ = why;
    for (const Waiting& waiting : std::exchange(waiting_, {})) ReplyTo(waiting.reply, why);
    open_.clear();
    return;
  }
  clocks_.Finish(worker);
  ApplyCompleteClocks();
  WakeWaiting();
}

Status Piece::SetRule(std::unique_ptr<UpdateRule> rule) {
  MutexLock lock(mutex_);
  if (rule->StateFloats(1) != rule_->StateFloats(1)) {
    return Status::InvalidArgument("table '" + spec_.name +
                                   "': these options need another state than the table has; "
                                   "create a table with them");
  }
  rule_ = std::move(rule);
  return Status::Ok();
}

void Piece::ApplyTimed(std::span<const Payload* const> gradients, const PushInfo& push) {
  const TimePoint begin = Now();
  Apply(gradients, push);
  applied_in_ = Now() - begin;
}

bool Piece::IsComplete(const OpenClock& open) const {
  int expected = open.count;
  for (int worker = 0; worker < clocks_.workers(); ++worker) {
    if (!clocks_.HasFinished(worker) && clocks_.Of(worker) <= applied_) ++expected;
  }
  // Workers that have left are covered first.
  const int needed = std::min(expected, clocks_.workers() - static_cast<int>(spec_.bound));
  return open.count > 0 && open.count >= needed;
}

void Piece::ApplyCompleteClocks() {
  while (!open_.empty() && IsComplete(open_.front())) {
    const OpenClock open = std::move(open_.front());
    open_.pop_front();
    std::vector<const Payload*> gradients;
    for (const std::optional<Payload>& gradient : open.gradients) {
      if (gradient && !gradient->bytes().empty()) gradients.push_back(&*gradient);
    }
    if (!gradients.empty()) {
      ApplyTimed(gradients, {0, updates_, updates_, true});
      ++updates_;
    }
    ++applied_;
    WakeWaiting();
  }
}

bool Piece::IsReady(const Waiting& waiting) const {
  switch (spec_.consistency) {
    case Consistency::kSync:
      return waiting.clock <= applied_;
    case Consistency::kSsp:
      return clocks_.Lowest() == Clocks::kForever ||
             waiting.clock - clocks_.Lowest() <= spec_.bound;
    case Consistency::kAsync:
      return true;
  }
  return true;
}

void Piece::ReplyOrWait(Waiting waiting) {
  if (IsReady(waiting)) return GiveAnswer(waiting);
  waiting.request.Copy();
  waiting_.push_back(std::move(waiting));
}

void Piece::GiveAnswer(const Waiting& waiting) {
  Answer answer{Status::Ok(), {}, updates_, clocks_.Lowest(), Now() - waiting.since, applied_in_};
  if (waiting.pulls) answer.parameters = Read(waiting.worker, waiting.request);
  waiting.reply(answer);
  if (waiting.pulls) updates_read_[static_cast<size_t>(waiting.worker)] = updates_;
}

void Piece::ReplyTo(const OnAnswer& reply, const Status& status) {
  reply({status, {}, updates_, clocks_.Lowest(), Duration::zero(), applied_in_});
}

void Piece::WakeWaiting() {
  std::deque<Waiting> still;
  for (Waiting& waiting : waiting_) {
    if (IsReady(waiting)) {
      GiveAnswer(waiting);
    } else {
      still.push_back(std::move(waiting));
    }
  }
  waiting_.swap(still);
}

std::string Piece::WorkerText(int worker) const {
  return "rank " + std::to_string(spec_.ranks[static_cast<size_t>(worker)]);
}

Status Piece::WhyWaits(int worker) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const Waiting& waiting) { return waiting.worker == worker; });
  if (found == waiting_.end()) return Status::Ok();
  const int slowest = clocks_.Slowest();
  if (slowest < 0) return Status::Ok();
  return Status::Timeout(WorkerText(worker) + " at clock " + std::to_string(clocks_.Of(worker)) +
                         " waits for " + WorkerText(slowest) + " at " +
                         std::to_string(clocks_.Of(slowest)) + " (" + ConsistencyText(spec_) + ")")
      .About({.ranks = {spec_.ranks[static_cast<size_t>(slowest)]}, .finding = kLateFinding});
}

DensePiece::DensePiece(const TableSpec& spec, std::span<const float> start)
    : Piece(spec), parameters_(start.begin(), start.end()) {
  MutexLock lock(mutex_);
  state_.resize(static_cast<size_t>(rule_->StateFloats(static_cast<int64_t>(start.size()))));
  rule_->Begin(parameters_, state_);
}

Status DensePiece::CheckGradient(const Payload& gradient) const {
  if (gradient.bytes().size() == parameters_.size() * sizeof(float)) return Status::Ok();
  return Status::InvalidArgument("table '" + spec_.name + "': a piece of " +
                                 std::to_string(parameters_.size()) + " elements got " +
                                 std::to_string(gradient.bytes().size()) + " bytes, expected " +
                                 std::to_string(parameters_.size() * sizeof(float)));
}

Status DensePiece::CheckRequest(const Payload& request) const {
  if (request.bytes().empty()) return Status::Ok();
  return Status::InvalidArgument("table '" + spec_.name + "' has no rows to name in a pull");
}

void DensePiece::Apply(std::span<const Payload* const> gradients, const PushInfo& push) {
  if (gradients.size() == 1) {
    rule_->Apply(parameters_, Floats(*gradients[0]), state_, push);
    return;
  }
  std::vector<const void*> sources;
  for (const Payload* const gradient : gradients) sources.push_back(gradient->bytes().data());
  // Of the thread: one of each piece would take as much as the table.
  thread_local std::vector<float> mean;
  mean.resize(parameters_.size());
  const Reduction reduction{.divisor = static_cast<int64_t>(sources.size())};
  ReduceInRankOrder(sources, mean.data(), static_cast<int64_t>(mean.size()), reduction);
  rule_->Apply(parameters_, mean, state_, push);
}

std::span<const float> DensePiece::Read(int worker, const Payload&) {
  rule_->OnPull(parameters_, state_, worker);
  return parameters_;
}

}  // namespace mydist::ps
