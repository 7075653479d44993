// Calls of the engine beside the cycle: leaving, and inquiries about the ranks that others wait
// for.
#include <algorithm>

#include "base/log.h"
#include "controller/coordinator.h"
#include "controller/messages/wire.h"
#include "world/departure.h"

namespace mydist {
namespace {

NegotiatorOptions OptionsOf(const CoordinatorOptions& options) {
  return {.size = options.size,
          .cache_capacity = options.cache_capacity,
          .stall_warning = options.stall_warning,
          .stall_shutdown = options.stall_shutdown,
          .hosts = options.hosts,
          .pids = options.pids};
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, ControlPlane* plane, VoteBoard* board)
    : options_(std::move(options)),
      vertex_(MakeVertex(options_.rank, options_.size, options_.radix, options_.hosts)),
      port_(plane),
      membership_(options_.size),
      sets_(vertex_, OptionsOf(options_)),
      farewells_(vertex_.parent, options_.size, options_.hosts, options_.pids),
      frozen_(options_, board, &farewells_),
      inquirer_(options_.rank, options_.size, &port_, &farewells_),
      reports_taken_(vertex_.lanes.size()) {
  for (int32_t rank = vertex_.parent; rank >= 0;) {
    ancestors_.push_back(rank);
    rank = MakeVertex(rank, options_.size, options_.radix, options_.hosts).parent;
  }
  // Without a board the schedule never freezes: the history would fill up for nothing.
  if (options_.freeze_after > 0 && board != nullptr) {
    sets_.history().Enable(static_cast<size_t>(options_.freeze_after));
  }
  MYDIST_CHECK((plane == nullptr) == (options_.size == 1));
}

// This rank tells each rank that the stream does not reach any more, or that has not heard of the
// loss. A rank that cannot be told any more notices its end.
void Coordinator::Leave(const Status& why, std::vector<RankProgress> progress) {
  std::vector<Status> sent;
  if (const auto vote = frozen_.Leave()) sent.push_back(SendVote(*vote));
  // A time-out of this rank's own goes to all ranks at once, also where it has departed because of
  // it: the stream may come through the rank that is waited for.
  const bool is_late = why.code() == StatusCode::kTimeout && !why.is_loss() &&
                       !why.failure().ranks.empty() && !has_other_departed_;
  const bool is_told =
      !is_late && (!why.is_loss() || is_leaving_ || sets_.departed() || farewells_.is_loss_told());
  const Bytes farewell = EncodeFarewell({is_told, FarewellWords(why), std::move(progress)});
  for (int32_t peer = 0; !why.ok() && peer < options_.size; ++peer) {
    if (peer != options_.rank) sent.push_back(Send(peer, farewell));
  }
  for (const Status& status : sent) {
    if (!status.ok()) MYDIST_LOG(kDebug) << "cannot send a farewell: " << status.message();
  }
}

std::vector<int32_t> Coordinator::AwaitedWith(ProcessSetId process_set,
                                              const std::string& tensor) const {
  if (process_set == kLeaving) return Staying();
  if (process_set == kJoining) return NotJoined();
  std::vector<int32_t> awaited = frozen_.Undecided();
  if (!awaited.empty()) return awaited;
  return sets_.AwaitedWith(process_set, tensor);
}

// Only the root knows of all; the others ask the vertices between. A rank that stays names itself.
std::vector<int32_t> Coordinator::Staying() const {
  if (!membership_.HasDeparted(options_.rank) && !vertex_.is_root()) return {options_.rank};
  if (!vertex_.is_root()) return ancestors_;
  return FirstRanks([this](int32_t rank) { return !membership_.HasDeparted(rank); });
}

// Only the root knows of all; a rank that waits for the decision waits for those above it.
std::vector<int32_t> Coordinator::NotJoined() const {
  if (!vertex_.is_root()) return ancestors_;
  return FirstRanks([this](int32_t rank) {
    return !membership_.HasDeparted(rank) && !membership_.HasJoined(rank);
  });
}

std::vector<int32_t> Coordinator::FirstRanks(const std::function<bool(int32_t)>& is_awaited) const {
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < options_.size && ranks.size() < kMostStaying; ++rank) {
    if (is_awaited(rank)) ranks.push_back(rank);
  }
  return ranks;
}

// The root ends the waits that it decides about. It cannot end a vote.
bool Coordinator::MustEndWait() const {
  if (frozen_.HasUndecidedVote()) return true;
  const std::vector<int32_t> silent = inquirer_.inquiry().Silent();
  return std::any_of(ancestors_.begin(), ancestors_.end(), [&](int32_t rank) {
    return std::find(silent.begin(), silent.end(), rank) != silent.end();
  });
}

std::vector<int32_t> Coordinator::AllAwaitedWith(ProcessSetId process_set,
                                                 const std::string& tensor) const {
  std::vector<int32_t> awaited = AwaitedWith(process_set, tensor);
  if (!frozen_.HasUndecidedVote()) {
    awaited.insert(awaited.end(), ancestors_.begin(), ancestors_.end());
  }
  return awaited;
}

Status Coordinator::AttendWait(TimePoint now, std::span<const int> awaited) {
  MYDIST_RETURN_IF_ERROR(port_.Exchange(now));
  for (const IncomingMessage& message : port_.TakeInquiries()) {
    const Result<MessageKind> kind = PeekKind(message.payload);
    const auto those = [&](const Question& about) {
      const bool names_no_set = about.process_set == kLeaving || about.process_set == kJoining;
      if (names_no_set) return AwaitedWith(about.process_set, about.tensor);
      return std::vector<int32_t>(awaited.begin(), awaited.end());
    };
    const bool asks = kind.ok() && *kind == MessageKind::kQuestion;
    const Status status =
        asks ? inquirer_.TakeQuestion(message, those) : inquirer_.TakeAnswer(message);
    if (status.ok()) continue;
    return status.WithContext("control message from rank " + std::to_string(message.source));
  }
  return BlameFor(awaited);
}

// A farewell is taken in order, after what its rank has decided before. That it blames another
// rank, for which this one waits as well, counts at once.
Status Coordinator::BlameFor(std::span<const int> awaited) const {
  for (const IncomingMessage& message : port_.messages()) {
    const Status loss = LossToldBy(message);
    for (const int rank : loss.failure().ranks) {
      const bool is_awaited = std::find(awaited.begin(), awaited.end(), rank) != awaited.end();
      if (rank != message.source && is_awaited) return loss;
    }
  }
  return Status::Ok();
}

Status Coordinator::LossToldBy(const IncomingMessage& message) const {
  const Result<MessageKind> kind = PeekKind(message.payload);
  if (!kind.ok() || *kind != MessageKind::kFarewell) return Status::Ok();
  const Result<Farewell> farewell = DecodeFarewell(message.payload);
  if (!farewell.ok()) return Status::Ok();
  return PeerHasLeft(message.source, RankText(message.source, options_.hosts, options_.pids),
                     farewell->why, options_.size);
}

// The farewell of the lost rank may wait in the inbox: it says why the rank has left.
Status Coordinator::JudgeLoss(int rank, Status loss) {
  if (farewells_.HasLeft(rank)) return port_.Judge(farewells_.LossOf(rank));
  for (const IncomingMessage& message : port_.messages()) {
    if (message.source != rank) continue;
    if (Status told = LossToldBy(message); !told.ok()) return port_.Judge(std::move(told));
  }
  return port_.Judge(std::move(loss));
}

// Like ToldSignalOf it takes no message out.
void Coordinator::HearProgress(TimePoint now) {
  if (!on_progress_) return;
  // A further lost rank does not change the failure that is being reported.
  if (const Status heard = port_.Exchange(now); !heard.ok()) MYDIST_LOG(kDebug) << heard.message();
  for (const IncomingMessage& message : port_.messages()) {
    const Result<MessageKind> kind = PeekKind(message.payload);
    if (!kind.ok() || *kind != MessageKind::kFarewell) continue;
    const Result<Farewell> farewell = DecodeFarewell(message.payload);
    if (farewell.ok()) on_progress_(farewell->progress);
  }
}

// Takes in what has come, but no message out.
int Coordinator::ToldSignalOf(int rank, TimePoint now) {
  const auto signal_in = [rank](const Status& loss) {
    const Failure& known = loss.failure();
    return known.ranks == std::vector<int>{rank} ? known.signal : 0;
  };
  if (const int signal = signal_in(port_.Exchange(now)); signal != 0) return signal;
  for (const IncomingMessage& message : port_.messages()) {
    if (const int signal = signal_in(LossToldBy(message)); signal != 0) return signal;
  }
  return 0;
}

Status Coordinator::TakeQuestion(const IncomingMessage& message) {
  return inquirer_.TakeQuestion(message, [this](const Question& about) {
    std::vector<int32_t> awaited = AwaitedWith(about.process_set, about.tensor);
    const bool is_about_tensor = about.process_set != kLeaving && about.process_set != kJoining;
    const bool waits = std::any_of(awaited.begin(), awaited.end(),
                                   [this](int32_t rank) { return rank != options_.rank; });
    if (is_about_tensor && !waits && on_awaited_) on_awaited_();
    return awaited;
  });
}

Status Coordinator::SendTimeline(Bytes block) {
  if (vertex_.is_root()) {
    timeline_.push_back({options_.rank, std::move(block)});
    return Status::Ok();
  }
  Writer writer(MessageKind::kTimeline);
  writer.Raw(block);
  return port_.Send(0, std::move(writer).Take());  // Which may have left, and still collects them.
}

Status Coordinator::TakeTimelineBlock(IncomingMessage message) {
  if (!vertex_.is_root()) {
    return Status::Internal("got a timeline block, which only rank 0 accepts");
  }
  message.payload.erase(message.payload.begin(),
                        message.payload.begin() + std::ptrdiff_t{kMessageHeaderBytes});
  timeline_.push_back(std::move(message));
  return Status::Ok();
}

const CoordinatorStats& Coordinator::stats() {
  CoordinatorStats& stats = port_.stats();
  static_cast<NegotiatorStats&>(stats) = sets_.stats();
  stats.frozen_steps = frozen_.step_count();
  stats.thaws = frozen_.thaw_count();
  return stats;
}

Status Coordinator::Inquire(ProcessSetId process_set, const std::string& tensor,
                            std::span<const int> awaited) {
  if (!awaited.empty()) return inquirer_.Begin(process_set, tensor, awaited);
  return inquirer_.Begin(process_set, tensor, AllAwaitedWith(process_set, tensor));
}

}  // namespace mydist
