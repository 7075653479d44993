#include "controller/fault_network.h"

#include <algorithm>
#include <array>

#include "controller/messages/wire.h"
#include "world/departure.h"

namespace mydist {
namespace {

// Far more than the small jobs of the simulation ever have to say at once.
constexpr int64_t kMostSimulatedBytes = 16 << 10;

const char* NameOfKind(const Bytes& payload) {
  const auto kind = PeekKind(payload);
  if (!kind.ok()) return "garbage";
  constexpr std::array<const char*, 8> kKindNames = {"?",    "report",   "segment",  "timeline",
                                                     "vote", "farewell", "question", "answer"};
  return kKindNames[static_cast<size_t>(*kind)];
}

Status LossOf(int rank) { return PeerHasLeft(rank, "rank " + std::to_string(rank), ""); }

}  // namespace

Status FaultPlane::Send(int peer, Bytes payload) {
  ++sent_count;
  if (network_->HasCrashed(rank_)) return Status::Ok();
  if (const Status small = CheckControlMessage(payload); !small.ok()) return small;
  if (std::ssize(payload) > kMostSimulatedBytes) {
    network_->Fail("rank " + std::to_string(rank_) + " sends " + std::to_string(payload.size()) +
                   " bytes at once");
  }
  if (const auto end = ended_.find(peer); end != ended_.end()) return end->second;
  FaultNetwork::Wire& wire = network_->WireOf({rank_, peer});
  if (!wire.swallows) {
    if (std::optional<Bytes> left = network_->Spoil({rank_, peer}, std::move(payload))) {
      wire.messages.push_back(*std::move(left));
    }
    network_->Refresh({rank_, peer});
  }
  network_->Count(rank_);
  return Status::Ok();
}

Result<std::optional<IncomingMessage>> FaultPlane::Receive() {
  if (inbox_.empty() || network_->HasCrashed(rank_)) return std::optional<IncomingMessage>();
  News news = std::move(inbox_.front());
  inbox_.pop_front();
  if (!news.loss.ok()) return news.loss;
  ++taken_count;
  return std::optional<IncomingMessage>(std::move(news.message));
}

void FaultBoard::Cast(Voice voice, const VoteWord& word, std::span<const int32_t> members) {
  if (network_->HasCrashed(rank_)) return;
  VoteWord& before = network_->words_[static_cast<size_t>(rank_)][static_cast<size_t>(voice)];
  if (!word.Follows(before)) network_->Fail("rank " + std::to_string(rank_) + " takes a vote back");
  before = word;
  for (const int32_t member : members) {
    if (!network_->ShareBoard(rank_, member)) network_->Fail("a vote is shown to another host");
    if (member != rank_) network_->wake_(member);
  }
  network_->Count(rank_);
}

VoteWord FaultBoard::Read(Voice voice, int32_t rank) const {
  if (!network_->ShareBoard(rank_, rank)) network_->Fail("a vote of another host is read");
  VoteWord word = network_->words_[static_cast<size_t>(rank)][static_cast<size_t>(voice)];
  const VoteWord& own =
      network_->words_[static_cast<size_t>(rank_)][static_cast<size_t>(Voice::kRank)];
  const bool forges = network_->sabotage_ == Sabotage::kForgeVotes && rank_ == 0;
  if (forges && word.freeze == own.freeze && !word.is_broken) {
    word.ready_count = std::max(word.ready_count, own.ready_count);
  }
  return word;
}

FaultNetwork::FaultNetwork(int size, std::vector<int> hosts, uint32_t seed, Sabotage sabotage,
                           std::function<void(int)> wake)
    : size_(size),
      hosts_(std::move(hosts)),
      random_(seed),
      sabotage_(sabotage),
      wake_(std::move(wake)),
      wires_(static_cast<size_t>(size) * static_cast<size_t>(size)),
      crashed_(static_cast<size_t>(size)),
      sends_left_(static_cast<size_t>(size), -1),
      words_(static_cast<size_t>(size)) {
  for (int rank = 0; rank < size; ++rank) {
    planes_.push_back(std::make_unique<FaultPlane>(this, rank));
    boards_.push_back(std::make_unique<FaultBoard>(this, rank));
  }
}

void FaultNetwork::Fail(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

void FaultNetwork::Refresh(Pair pair) {
  Wire& wire = WireOf(pair);
  const bool has_news = !wire.messages.empty() || (wire.end && !wire.is_over);
  const bool is_busy = has_news && wire.release <= now_;
  if (is_busy && !wire.is_busy) busy_.push_back(pair);
  if (!is_busy && wire.is_busy) std::erase(busy_, pair);
  wire.is_busy = is_busy;
}

void FaultNetwork::SetTime(TimePoint now) {
  now_ = now;
  for (int source = 0; source < size_; ++source) {
    for (int target = 0; target < size_; ++target) Refresh({source, target});
  }
}

TimePoint FaultNetwork::NextRelease() const {
  TimePoint next = kNever;
  for (const Wire& wire : wires_) {
    const bool has_news = !wire.messages.empty() || (wire.end && !wire.is_over);
    if (has_news && wire.release > now_) next = std::min(next, wire.release);
  }
  return next;
}

void FaultNetwork::DeliverOne() {
  const Pair pair = busy_[random_() % busy_.size()];
  const auto [source, target] = pair;
  Wire& wire = WireOf(pair);
  FaultPlane& plane = this->plane(target);
  std::string what = "end";
  if (!wire.messages.empty()) {
    what = NameOfKind(wire.messages.front());
    if (trace) what += " (" + std::to_string(wire.messages.front().size()) + " bytes)";
    plane.inbox_.push_back({{source, std::move(wire.messages.front())}, {}});
    wire.messages.pop_front();
  } else {
    wire.is_over = true;
    const Status end = *wire.end;
    plane.ended_.emplace(source, wire.after_end);
    if (!end.ok() && sabotage_ != Sabotage::kHideLosses) plane.inbox_.push_back({{}, end});
    if (!end.ok()) what = "loss";
  }
  Refresh(pair);
  if (trace) trace(std::to_string(source) + " -> " + std::to_string(target) + ": " + what);
  wake_(target);
}

void FaultNetwork::Delay(int source, int target, Duration duration) {
  Wire& wire = WireOf({source, target});
  wire.release = std::max(wire.release, now_ + duration);
  Refresh({source, target});
}

void FaultNetwork::End(int source, int target, Status end, Status after, Duration after_time,
                       bool loses) {
  Wire& wire = WireOf({source, target});
  wire.swallows = true;
  if (wire.end) return;
  wire.end = std::move(end);
  wire.after_end = std::move(after);
  if (loses && !wire.messages.empty() && random_() % 2 == 0) {
    wire.messages.resize(random_() % (wire.messages.size() + 1));
  }
  if (after_time > Duration::zero()) wire.release = std::max(wire.release, now_ + after_time);
  Refresh({source, target});
}

void FaultNetwork::CrashAfter(int rank, int sends) {
  if (sends == 0) return Crash(rank);
  sends_left_[static_cast<size_t>(rank)] = sends;
}

void FaultNetwork::Count(int rank) {
  int& left = sends_left_[static_cast<size_t>(rank)];
  if (left > 0 && --left == 0) Crash(rank);
}

void FaultNetwork::Crash(int rank) {
  crashed_[static_cast<size_t>(rank)] = true;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank) continue;
    End(rank, peer, LossOf(rank), LossOf(rank), Duration::zero(), true);
    WireOf({peer, rank}).swallows = true;
  }
}

void FaultNetwork::Cut(int a, int b, Duration here, Duration there) {
  End(b, a, LossOf(b), LossOf(b), here, true);
  End(a, b, LossOf(a), LossOf(a), there, true);
}

void FaultNetwork::Close(int rank, const std::string& words) {
  const std::string kept = sabotage_ == Sabotage::kLoseFarewells ? "" : words;
  const Status left = PeerHasLeft(rank, "rank " + std::to_string(rank), kept);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank) continue;
    End(rank, peer, Status::Ok(), left, Duration::zero(), false);
    WireOf({peer, rank}).swallows = true;
  }
}

bool FaultNetwork::Repeat(int source, int target) {
  std::deque<Bytes>& messages = WireOf({source, target}).messages;
  if (messages.empty()) return false;
  const size_t which = random_() % messages.size();
  const auto place = static_cast<std::ptrdiff_t>(which + 1 + random_() % (messages.size() - which));
  messages.insert(messages.begin() + place, Bytes(messages[which]));
  return true;
}

bool FaultNetwork::Swap(int source, int target) {
  std::deque<Bytes>& messages = WireOf({source, target}).messages;
  if (messages.size() < 2) return false;
  const size_t which = random_() % (messages.size() - 1);
  std::swap(messages[which], messages[which + 1]);
  return true;
}

bool FaultNetwork::Drop(int source, int target) {
  std::deque<Bytes>& messages = WireOf({source, target}).messages;
  if (messages.empty()) return false;
  messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(random_() % messages.size()));
  Refresh({source, target});
  return true;
}

std::optional<Bytes> FaultNetwork::Spoil(Pair pair, Bytes payload) {
  const auto kind = sabotage_ == Sabotage::kNone ? MessageKind::kTimeline : *PeekKind(payload);
  if (sabotage_ == Sabotage::kLoseFarewells && kind == MessageKind::kFarewell) return std::nullopt;
  if (sabotage_ == Sabotage::kLoseAnswers && kind == MessageKind::kAnswer) return std::nullopt;
  if (sabotage_ == Sabotage::kBlameMessenger && kind == MessageKind::kFarewell) {
    return EncodeFarewell({false, "it stopped"});
  }
  if (sabotage_ == Sabotage::kForgeReports && kind == MessageKind::kReport && pair.first == 1) {
    Report report = *DecodeReport(payload);
    report.number += forged_count_;
    if (report.sets.empty()) return std::move(EncodeReport(report).front());
    WireOf(pair).messages.push_back(std::move(EncodeReport(report).front()));
    ++forged_count_;
    Report again{.number = report.number + 1, .stream_position = report.stream_position};
    again.sets = std::move(report.sets);
    return std::move(EncodeReport(again).front());
  }
  if (sabotage_ == Sabotage::kSwapItems && kind == MessageKind::kSegment &&
      pair.second == size_ - 1) {
    StreamSegment segment = *DecodeSegment(payload);
    for (size_t i = 1; i < segment.items.size(); ++i) {
      const auto is_ready = [&](const StreamItem& item) {
        return item.kind == StreamKind::kReadyAgreement || item.kind == StreamKind::kReadySlot;
      };
      if (!is_ready(segment.items[i - 1]) || !is_ready(segment.items[i])) continue;
      std::swap(segment.items[i - 1], segment.items[i]);
      return std::move(EncodeSegment(segment).front());
    }
  }
  return payload;
}

}  // namespace mydist
