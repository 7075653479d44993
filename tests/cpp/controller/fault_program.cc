#include "controller/fault_program.h"

#include <algorithm>
#include <utility>

#include "controller/simulated_job.h"

namespace mydist {
namespace {

constexpr int kTurnsPerPhase = 100;
constexpr int kLatestFault = 600;

std::string FaultDurationText(Duration duration) {
  if (duration == Duration::max()) return "ever";
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()) +
         " ms";
}

}  // namespace

std::string FaultText(const Fault& fault) {
  const std::string rank = "rank " + std::to_string(fault.rank);
  const std::string pair = rank + " -> " + std::to_string(fault.peer);
  const std::string when = " at step " + std::to_string(fault.at);
  switch (fault.kind) {
    case FaultKind::kDelay:
      return pair + " delayed for " + FaultDurationText(fault.duration) + when;
    case FaultKind::kPause:
    case FaultKind::kSilence:
      return rank + " stops for " + FaultDurationText(fault.duration) + when;
    case FaultKind::kCrash:
      return rank + " dies after " + std::to_string(fault.sends) + " more messages" + when;
    case FaultKind::kFail:
      return rank + (fault.is_loud ? " fails" : " fails without a word of the stream") + when;
    case FaultKind::kLeave:
      return rank + (fault.is_loud ? " shuts down" : " ends with an exception") + when;
    case FaultKind::kCut:
      return pair + (fault.is_loud ? " cut on both sides" : " cut, one side hears late") + when;
    case FaultKind::kRepeat:
      return pair + " has a message twice" + when;
    case FaultKind::kSwap:
      return pair + " has two messages swapped" + when;
    case FaultKind::kDrop:
      return pair + " loses a message" + when;
  }
  return "?";
}

FaultProgram::FaultProgram(uint32_t seed, Faults kind) : seed_(seed) {
  DrawJob();
  DrawTensors();
  DrawCalls();
  DrawFaults(kind);
}

uint32_t FaultProgram::Hash(std::initializer_list<int> place) const {
  uint64_t bits = uint64_t{seed_} * 0x9E3779B97F4A7C15 + 1;
  for (const int number : place) {
    bits = (bits ^ static_cast<uint64_t>(number + 3)) * 0xBF58476D1CE4E5B9;
    bits ^= bits >> 29;
  }
  return static_cast<uint32_t>(bits >> 32);
}

void FaultProgram::DrawJob() {
  size = 2 + Draw(Draw(4) == 0 ? 6 : 4);
  radix = 1 + Draw(5);
  constexpr int64_t kCapacities[] = {0, 1, 3, 16};
  cache_capacity = kCapacities[Draw(4)];
  if (Draw(3) > 0) cache_capacity = 16;
  freeze_after = Draw(6) == 0 ? 0 : 2;
  if (const int host_count = 1 + Draw(3); host_count > 1) {
    for (int rank = 0; rank < size; ++rank) hosts.push_back(Draw(host_count));
  }
  has_mismatches_ = Draw(4) == 0;
  has_timeline_ = Draw(4) == 0;
  shuffles_ = Draw(3) == 0;
  sets.emplace_back();
  for (int rank = 0; rank < size; ++rank) sets[0].push_back(rank);
  for (int more = Draw(3); more > 0; --more) {
    std::vector<int>& ranks = sets.emplace_back();
    for (int rank = 0; rank < size; ++rank) {
      if (Draw(3) > 0) ranks.push_back(rank);
    }
    if (ranks.empty()) ranks.push_back(Draw(size));
  }
}

void FaultProgram::DrawTensors() {
  step_tensors = 1 + Draw(5);
  for (int i = 0; i < step_tensors; ++i) {
    FaultTensor& tensor = tensors.emplace_back();
    tensor.name = "t" + std::to_string(i);
    tensor.set = Draw(static_cast<int>(sets.size()));
    if (Draw(4) == 0) tensor.op = OpKind::kAllgather;
    if (Draw(8) == 0) {
      tensor.op = OpKind::kSendReceive;
      tensor.set = 0;
      const int first = Draw(size);
      tensor.ranks = {first, (first + 1 + Draw(size - 1)) % size};
    }
  }
  if (step_tensors > 1 && Draw(4) == 0) {
    const int last = step_tensors - 1;
    tensors[static_cast<size_t>(last)] = {
        "t" + std::to_string(last), 0, OpKind::kAllreduce, false, {}};
    tensors[static_cast<size_t>(last - 1)] = {
        "t" + std::to_string(last - 1), 0, OpKind::kAllreduce, true, {}};
  }
  for (size_t set = 1; set < sets.size(); ++set) {
    tensors.push_back({.name = "add" + std::to_string(set), .op = OpKind::kAddProcessSet});
  }
  tensors.push_back({.name = "end"});
}

void FaultProgram::DrawCalls() {
  const int phases = 1 + Draw(2);
  const bool joins = Draw(4) == 0;
  for (int phase = 0; phase < phases; ++phase) {
    const int most = 2 + Draw(10);
    std::vector<int>& steps = steps_.emplace_back();
    for (int rank = 0; rank < size; ++rank) steps.push_back(joins ? 1 + Draw(most) : most);
  }
  calls.resize(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    std::vector<FaultCall>& mine = calls[static_cast<size_t>(rank)];
    const int style = shuffles_ ? 1 + Draw(2) : Draw(3);
    for (int set = 1; set < static_cast<int>(sets.size()); ++set) {
      mine.push_back({.tensor = AddOf(set), .waits = true});
    }
    for (int phase = 0; phase < phases; ++phase) {
      const int count = steps_[static_cast<size_t>(phase)][static_cast<size_t>(rank)];
      for (int step = 0; step < count; ++step) {
        AddStep(rank, phase * kTurnsPerPhase + step, style);
      }
      if (joins) mine.push_back({.kind = FaultCallKind::kJoin});
    }
    if (!mine.empty()) mine.back().waits = true;
    mine.push_back({.tensor = end(), .waits = true});
  }
}

// Style 0 waits for each tensor, 1 for each step, 2 not before a name comes again.
void FaultProgram::AddStep(int rank, int turn, int style) {
  std::vector<FaultCall>& mine = calls[static_cast<size_t>(rank)];
  if (has_timeline_ && Hash({7, rank, turn}) % 8 == 0)
    mine.push_back({.kind = FaultCallKind::kTimeline});
  std::vector<int> order;
  for (int tensor = 0; tensor < step_tensors; ++tensor) {
    const bool follows = tensor > 0 && tensors[static_cast<size_t>(tensor - 1)].is_grouped;
    if (IsMember(tensor, rank) && !follows) order.push_back(tensor);
  }
  for (size_t i = order.size(); shuffles_ && i > 1; --i) {
    std::swap(order[i - 1], order[Hash({8, rank, turn, static_cast<int>(i)}) % i]);
  }
  for (const int tensor : order)
    mine.push_back({.tensor = tensor, .turn = turn, .waits = style == 0});
  if (style == 1 && !order.empty()) mine.back().waits = true;
}

bool FaultProgram::IsMember(int tensor, int rank) const {
  const FaultTensor& of = tensors[static_cast<size_t>(tensor)];
  if (!of.ranks.empty()) return std::count(of.ranks.begin(), of.ranks.end(), rank) > 0;
  const std::vector<int>& ranks = sets[static_cast<size_t>(of.set)];
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

std::vector<int> FaultProgram::MembersOf(int tensor) const {
  std::vector<int> members;
  for (int rank = 0; rank < size; ++rank) {
    if (IsMember(tensor, rank)) members.push_back(rank);
  }
  return members;
}

std::vector<std::string> FaultProgram::HostNames() const {
  std::vector<std::string> names;
  for (int rank = 0; rank < size; ++rank) {
    names.push_back("h" + std::to_string(hosts.empty() ? 0 : hosts[static_cast<size_t>(rank)]));
  }
  return names;
}

Request FaultProgram::At(int tensor, int turn, int rank) const {
  const FaultTensor& of = tensors[static_cast<size_t>(tensor)];
  Request request = MakeRequest(of.name, {5, 2});
  request.op = of.op;
  request.ranks = of.ranks;
  if (of.op == OpKind::kAddProcessSet) {
    const std::vector<int>& ranks = sets[static_cast<size_t>(tensor - step_tensors + 1)];
    request.ranks = {ranks.begin(), ranks.end()};
    request.shape = Shape({0});
  }
  if (tensor >= step_tensors) return request;
  if (of.op == OpKind::kAllgather) request.shape = Shape({rank + 1, 2});
  const bool is_second = tensor > 0 && tensors[static_cast<size_t>(tensor - 1)].is_grouped;
  if (of.is_grouped || is_second) {
    request.group = "g";
    request.group_size = 2;
  }
  const bool may_differ = has_mismatches_ && Hash({9, tensor, turn}) % 4 == 0;
  if (may_differ && Hash({10, tensor, turn, rank}) % 3 == 0) request.dtype = DataType::kFloat64;
  return request;
}

bool FaultProgram::Comes(int tensor, int turn, int rank) const {
  if (!IsMember(tensor, rank)) return false;
  if (tensor >= step_tensors) return true;
  const auto phase = static_cast<size_t>(turn / kTurnsPerPhase);
  return turn % kTurnsPerPhase < steps_[phase][static_cast<size_t>(rank)];
}

bool FaultProgram::AgreesAlone(int tensor, int turn) const {
  const Request* first = nullptr;
  Request kept;
  for (int rank = 0; rank < size; ++rank) {
    if (!Comes(tensor, turn, rank)) continue;
    Request request = At(tensor, turn, rank);
    // The other of the two has run out of data.
    for (const int32_t peer : tensors[static_cast<size_t>(tensor)].ranks) {
      if (request.op == OpKind::kSendReceive && !Comes(tensor, turn, peer)) return false;
    }
    if (first != nullptr && !Agree(*first, request)) return false;
    kept = std::move(request);
    first = &kept;
  }
  return true;
}

bool FaultProgram::Agrees(int tensor, int turn) const {
  if (!AgreesAlone(tensor, turn)) return false;
  if (tensor >= step_tensors) return true;
  if (tensors[static_cast<size_t>(tensor)].is_grouped) return AgreesAlone(tensor + 1, turn);
  const bool is_second = tensor > 0 && tensors[static_cast<size_t>(tensor - 1)].is_grouped;
  return !is_second || AgreesAlone(tensor - 1, turn);
}

Fault FaultProgram::DrawFault(bool is_harmless) {
  Fault fault;
  fault.rank = Draw(size);
  fault.peer = (fault.rank + 1 + Draw(size - 1)) % size;
  fault.at = static_cast<uint32_t>(Draw(1 + Draw(kLatestFault)));
  fault.sends = Draw(5);
  fault.is_loud = Draw(2) == 0;
  fault.duration = std::chrono::milliseconds(1 + Draw(3000));
  if (is_harmless) {
    fault.kind = Draw(2) == 0 ? FaultKind::kDelay : FaultKind::kPause;
    return fault;
  }
  constexpr FaultKind kKinds[] = {FaultKind::kCrash,   FaultKind::kCrash,  FaultKind::kFail,
                                  FaultKind::kLeave,   FaultKind::kCut,    FaultKind::kSilence,
                                  FaultKind::kSilence, FaultKind::kSilence};
  fault.kind = kKinds[Draw(8)];
  if (fault.kind == FaultKind::kSilence) {
    fault.duration = Draw(2) == 0 ? Duration::max() : Duration(std::chrono::seconds(5 + Draw(60)));
  }
  return fault;
}

void FaultProgram::DrawFaults(Faults kind) {
  for (int harmless = Draw(3); harmless > 0; --harmless) faults.push_back(DrawFault(true));
  if (kind == Faults::kNone) return;
  if (kind == Faults::kBreach) {
    Fault fault = DrawFault(true);
    fault.kind = static_cast<FaultKind>(static_cast<int>(FaultKind::kRepeat) + Draw(3));
    faults.push_back(fault);
    return;
  }
  if (Draw(8) == 0) return;
  for (int count = Draw(3) == 0 ? 2 : 1; count > 0; --count) faults.push_back(DrawFault(false));
}

}  // namespace mydist
