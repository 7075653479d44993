#include "controller/frozen_program.h"

#include <algorithm>

#include "controller/simulated_job.h"

namespace mydist {
namespace {

// What would be no deviation if all ranks did it.
bool IsOfSome(Deviation deviation) {
  switch (deviation) {
    case Deviation::kMismatch:
    case Deviation::kOtherOrder:
    case Deviation::kWaitsInOrder:
    case Deviation::kStall:
    case Deviation::kJoin:
    case Deviation::kLeave:
      return true;
    default:
      return false;
  }
}

bool AsksForTheSame(const Request& a, const Request& b) {
  return a.op == b.op && a.dtype == b.dtype && a.shape == b.shape;
}

}  // namespace

int TensorNamed(const std::string& name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name.substr(0, name.find('.')));
  return static_cast<int>(found - kNames.begin());
}

FrozenProgram::FrozenProgram(uint32_t seed) : random(seed) {
  deviation = static_cast<Deviation>(Draw(kDeviationCount));
  DrawRanks();
  DrawDeviants();
  DrawSets();
  DrawTensors();
  calls.resize(static_cast<size_t>(size));
  stall_at.assign(static_cast<size_t>(size), SIZE_MAX);
  // Nobody must wait for what another rank only submits later.
  const bool needs_patience =
      deviation == Deviation::kWaitsInOrder || deviation == Deviation::kOtherOrder || IsCaughtUp();
  for (int rank = 0; rank < size; ++rank) {
    Style style = static_cast<Style>(Draw(3));
    if (needs_patience && style == Style::kEach) style = Style::kStep;
    for (int step = 0; step < steps; ++step) AddStep(rank, step, style);
  }
}

void FrozenProgram::DrawRanks() {
  size = 2 + Draw(4);
  radix = 1 + Draw(5);
  // In any order, with any number of ranks each.
  if (const int host_count = 1 + Draw(3); host_count > 1) {
    for (int rank = 0; rank < size; ++rank) hosts.push_back(Draw(host_count));
  }
  steps = 4 + Draw(4);
  deviating_step = 2 + Draw(steps - 2);
}

// One rank, any of them, or all.
void FrozenProgram::DrawDeviants() {
  deviating_rank = Draw(size);
  int scope = Draw(IsOfSome(deviation) ? 2 : 3);
  if (IsOfOne(deviation)) scope = 0;
  for (int rank = 0; rank < size; ++rank) {
    deviates.push_back(scope == 2 || rank == deviating_rank || (scope == 1 && Draw(2) == 0));
  }
  deviating_rank =
      static_cast<int>(std::find(deviates.begin(), deviates.end(), true) - deviates.begin());
}

void FrozenProgram::DrawSets() {
  sets.emplace_back();
  for (int rank = 0; rank < size; ++rank) sets[0].push_back(rank);
  const int more = Draw(3);
  for (int set = 1; set <= more; ++set) {
    std::vector<int>& ranks = sets.emplace_back();
    for (int rank = 0; rank < size; ++rank) {
      if (Draw(3) > 0) ranks.push_back(rank);
    }
    if (ranks.empty()) ranks.push_back(Draw(size));
  }
}

void FrozenProgram::DrawTensors() {
  const int tensors = 1 + Draw(6);
  for (int tensor = 0; tensor < tensors; ++tensor) {
    order.push_back(tensor);
    set_of[static_cast<size_t>(tensor)] = Draw(static_cast<int>(sets.size()));
    is_unnamed[static_cast<size_t>(tensor)] = Draw(3) == 0;
  }
  set_of[kExtra] = Draw(static_cast<int>(sets.size()));
  // Sometimes a tensor comes twice in a step. The second one waits for the first.
  const bool may_wait = deviation != Deviation::kWaitsInOrder &&
                        !(deviation == Deviation::kMissingTensor && IsCaughtUp());
  if (may_wait && Draw(4) == 0) order.push_back(Draw(tensors));
  std::shuffle(order.begin(), order.end(), random);
  deviating_tensor = order[static_cast<size_t>(Draw(static_cast<int>(order.size())))];
}

bool FrozenProgram::HasCallsWithoutName() const {
  return std::any_of(order.begin(), order.end(),
                     [&](int tensor) { return is_unnamed[static_cast<size_t>(tensor)]; });
}

bool FrozenProgram::DoAllDeviate() const {
  return std::find(deviates.begin(), deviates.end(), false) == deviates.end();
}

bool FrozenProgram::IsCaughtUp() const {
  const bool is_kind = deviation == Deviation::kNewTensor ||
                       deviation == Deviation::kMissingTensor || deviation == Deviation::kNewSet;
  return is_kind && !DoAllDeviate();
}

bool FrozenProgram::Has(int tensor, int rank) const {
  const std::vector<int>& ranks = sets[static_cast<size_t>(set_of[static_cast<size_t>(tensor)])];
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

bool FrozenProgram::Agrees(int tensor, int n) const {
  if (tensor != deviating_tensor) return true;
  const Request* first = nullptr;
  for (const std::vector<Call>& mine : calls) {
    int count = 0;
    for (const Call& call : mine) {
      if (call.tensor != tensor || count++ != n) continue;
      if (first == nullptr) first = &call.request;
      if (!AsksForTheSame(*first, call.request)) return false;
    }
  }
  return true;
}

Request FrozenProgram::At(int tensor, int rank, int step) const {
  Request request = MakeRequest(kNames[static_cast<size_t>(tensor)], {4, 2});
  if (tensor == kAddSet) {
    request.op = OpKind::kAddProcessSet;
    request.ranks = {0, size - 1};
  }
  if (tensor != deviating_tensor || !Deviates(rank)) return request;
  const bool is_step = step == deviating_step;
  if (is_step && deviation == Deviation::kOtherOp) request.op = OpKind::kAllgather;
  if (is_step && deviation == Deviation::kMismatch) request.dtype = DataType::kInt32;
  if (step >= deviating_step && deviation == Deviation::kOtherShape) request.shape = Shape({4, 3});
  return request;
}

// What is caught up comes first in its step, so that nothing that has to wait is before it; after
// the last step there is nothing to wait for but what has been submitted.
std::vector<int> FrozenProgram::TensorsOf(int rank, int step) const {
  std::vector<int> tensors = order;
  const bool is_step = step == deviating_step;
  const bool is_now = is_step && Deviates(rank);
  if (is_now && deviation == Deviation::kNewTensor) {
    tensors.insert(tensors.begin() + deviating_tensor % static_cast<int>(tensors.size()), kExtra);
  }
  if (is_now && deviation == Deviation::kNewSet) tensors.push_back(kAddSet);
  if (is_now && deviation == Deviation::kMissingTensor) std::erase(tensors, deviating_tensor);
  if (!IsCaughtUp()) return tensors;
  const bool misses = deviation == Deviation::kMissingTensor;
  if (Deviates(rank) != misses) return tensors;
  const int late = misses ? deviating_tensor : deviation == Deviation::kNewSet ? kAddSet : kExtra;
  if (step == deviating_step + 1) tensors.insert(tensors.begin(), late);
  if (is_step && step == steps - 1) tensors.push_back(late);
  return tensors;
}

void FrozenProgram::AddStep(int rank, int step, Style style) {
  std::vector<Call>& mine = calls[static_cast<size_t>(rank)];
  const bool is_deviant = step == deviating_step && Deviates(rank);
  const bool joins = deviation == Deviation::kJoin || deviation == Deviation::kLeave;
  if (joins && Deviates(rank) && step >= deviating_step) return;
  if (is_deviant && deviation == Deviation::kStall) {
    stall_at[static_cast<size_t>(rank)] = mine.size();
  }
  std::vector<int> tensors = TensorsOf(rank, step);
  const bool turns_round =
      is_deviant && (deviation == Deviation::kOtherOrder || deviation == Deviation::kWaitsInOrder);
  if (turns_round) std::reverse(tensors.begin(), tensors.end());
  if (turns_round && deviation == Deviation::kWaitsInOrder) style = Style::kEach;
  for (const int tensor : tensors) {
    if (tensor != kAddSet && !Has(tensor, rank)) continue;
    Request request = At(tensor, rank, step);
    if (is_unnamed[static_cast<size_t>(tensor)]) {
      const auto calls_before = std::count_if(
          mine.begin(), mine.end(), [tensor](const Call& call) { return call.tensor == tensor; });
      request.name += ".noname." + std::to_string(calls_before + 1);
    }
    mine.push_back({tensor, std::move(request), style == Style::kEach});
  }
  if (style == Style::kStep && !mine.empty()) mine.back().waits = true;
}

}  // namespace mydist
