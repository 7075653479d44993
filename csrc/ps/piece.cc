#include "ps/piece.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/reduction.h"

namespace mydist::ps {
namespace {

// Small enough that a block of parameters, gradients, mean and state stays in a cache of the core
// while it is folded, updated and copied.
constexpr size_t kBlockElements = size_t{1} << 14;

std::span<const float> Floats(const Payload& payload) {
  return {reinterpret_cast<const float*>(payload.bytes().data()),
          payload.bytes().size() / sizeof(float)};
}

std::span<float> FloatRoom(Payload& payload) {
  return {reinterpret_cast<float*>(payload.room().data()), payload.room().size() / sizeof(float)};
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
  bool may_overwrite = false;
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
    may_overwrite = pulls && spec_.is_dense() && !gradient.bytes().empty();
    open.gradients[static_cast<size_t>(worker)] = std::move(gradient);
  }
  request.Copy();
  const int64_t needed = pulls ? clock + 1 : clock + 1 - kMaxLead;
  waiting_.push_back(
      {worker, needed, std::move(request), std::move(reply), pulls, Now(), may_overwrite});
  ApplyCompleteClocks();
  // Not before: the worker writes its next gradient where this one may still be read.
  WakeWaiting();
}

void Piece::PushAlone(int worker, Payload gradient, bool pulls, OnAnswer reply) {
  clocks_.Push(worker);
  Waiting waiting{worker, clocks_.Of(worker), {}, std::move(reply), pulls, Now()};
  if (!gradient.bytes().empty()) {
    const Payload* const one = &gradient;
    // What waits is answered with the parameters as they are later.
    if (pulls && spec_.is_dense() && IsReady(waiting)) waiting.written = &gradient;
    ApplyTimed({&one, 1}, {&waiting.written, waiting.written == nullptr ? size_t{0} : 1},
               {worker, updates_, updates_read_[static_cast<size_t>(worker)]});
    ++updates_;
  }
  if (!pulls) {
    ReplyTo(waiting.reply, Status::Ok());
  } else if (waiting.written != nullptr) {
    GiveAnswer(waiting);
  } else {
    waiting.request = std::move(gradient);
    ReplyOrWait(std::move(waiting));
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

void Piece::ApplyTimed(std::span<const Payload* const> gradients,
                       std::span<Payload* const> answered, const PushInfo& push) {
  const TimePoint begin = Now();
  std::vector<std::span<float>> copies;
  for (Payload* const gradient : answered) copies.push_back(FloatRoom(*gradient));
  Apply(gradients, copies, push);
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
    OpenClock open = std::move(open_.front());
    open_.pop_front();
    std::vector<const Payload*> gradients;
    for (const std::optional<Payload>& gradient : open.gradients) {
      if (gradient && !gradient->bytes().empty()) gradients.push_back(&*gradient);
    }
    std::vector<Payload*> answered;
    for (Waiting& waiting : waiting_) {
      if (!waiting.may_overwrite || waiting.clock != applied_ + 1) continue;
      waiting.written = &*open.gradients[static_cast<size_t>(waiting.worker)];
      answered.push_back(waiting.written);
    }
    if (!gradients.empty()) {
      ApplyTimed(gradients, answered, {0, updates_, updates_, true});
      ++updates_;
    }
    ++applied_;
    WakeWaiting();  // All that has been written; the gradients go with their clock.
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
  waiting.request.CopyAs(RequestOf(waiting.request));
  waiting_.push_back(std::move(waiting));
}

void Piece::GiveAnswer(const Waiting& waiting) {
  Answer answer{Status::Ok(), {}, updates_, clocks_.Lowest(), Now() - waiting.since, applied_in_};
  if (waiting.pulls) answer.parameters = Read(waiting.worker, waiting.request);
  if (waiting.written != nullptr) {
    answer.parameters = Floats(*waiting.written);
    answer.owner = waiting.written;
  }
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
  for (const Block& block : Blocks()) rule_->Begin(block.parameters, block.state);
}

std::vector<DensePiece::Block> DensePiece::Blocks() {
  std::vector<Block> blocks;
  size_t of_state = 0;
  for (size_t begin = 0; begin < parameters_.size(); begin += kBlockElements) {
    const size_t count = std::min(kBlockElements, parameters_.size() - begin);
    const auto state = static_cast<size_t>(rule_->StateFloats(static_cast<int64_t>(count)));
    blocks.push_back({begin, std::span(parameters_).subspan(begin, count),
                      std::span(state_).subspan(of_state, state)});
    of_state += state;
  }
  return blocks;
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

void DensePiece::Apply(std::span<const Payload* const> gradients,
                       std::span<const std::span<float>> copies, const PushInfo& push) {
  std::array<float, kBlockElements> mean;
  std::vector<const void*> sources(gradients.size());
  const Reduction reduction{.divisor = static_cast<int64_t>(gradients.size())};
  for (const Block& block : Blocks()) {
    const size_t count = block.parameters.size();
    std::span<const float> gradient = Floats(*gradients[0]).subspan(block.begin, count);
    if (gradients.size() > 1) {
      for (size_t i = 0; i < sources.size(); ++i) {
        sources[i] = Floats(*gradients[i]).data() + block.begin;
      }
      ReduceInRankOrder(sources, mean.data(), static_cast<int64_t>(count), reduction);
      gradient = std::span(mean).first(count);
    }
    rule_->Apply(block.parameters, gradient, block.state, push);
    for (const std::span<float> copy : copies) {
      std::copy(block.parameters.begin(), block.parameters.end(), copy.data() + block.begin);
    }
  }
}

std::span<const float> DensePiece::Read(int worker, const Payload&) {
  for (const Block& block : Blocks()) rule_->OnPull(block.parameters, block.state, worker);
  return parameters_;
}

}  // namespace mydist::ps
