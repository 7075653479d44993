#include "controller/pending_tensors.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace mydist {

PendingTensors::PendingTensors(const Vertex& vertex, const Participation& participation,
                               const ResponseCache& cache, StallInspector stalls)
    : vertex_(vertex),
      participation_(participation),
      cache_(cache),
      slots_(vertex.lanes.size()),
      requests_(vertex, participation),
      stalls_(std::move(stalls)) {}

PendingTensors::Outcome PendingTensors::AddSlot(uint32_t slot, size_t lane, TimePoint now) {
  const std::string& name = cache_.At(slot)->request.name;
  const uint64_t wait = slots_.wait(slot);
  switch (slots_.Add(slot, lane)) {
    case PendingSlots::Mark::kDuplicate:
      return Outcome::kDuplicate;
    case PendingSlots::Mark::kComplete:
      stalls_.Stop(wait);
      Forget(name);
      return Outcome::kComplete;
    case PendingSlots::Mark::kWaiting:
      break;
  }
  if (wait == 0) slots_.set_wait(slot, stalls_.Start(name, now, now));
  Progress(name, lane);
  return Outcome::kWaiting;
}

PendingTensors::Outcome PendingTensors::AddRequest(size_t lane, Readiness readiness,
                                                   TimePoint now) {
  const std::string name = readiness.name();
  if (!requests_.Add(lane, std::move(readiness))) return Outcome::kDuplicate;
  if (requests_.IsComplete(name)) {
    stalls_.Stop(requests_.Find(name)->wait);
    Forget(name);
    return Outcome::kComplete;
  }
  PendingRequests::Entry& entry = requests_.Open(name);
  if (entry.wait == 0) entry.wait = stalls_.Start(name, now, now);
  Progress(name, lane);
  return Outcome::kWaiting;
}

void PendingTensors::UpdateActiveLanes() {
  for (size_t lane = 0; lane < vertex_.lanes.size(); ++lane) {
    slots_.SetActive(lane, participation_.Awaits(lane));
  }
}

std::vector<uint32_t> PendingTensors::TakeCompleteSlots() {
  std::vector<uint32_t> complete = slots_.CompleteSlots();
  for (const uint32_t slot : complete) DropSlot(slot);
  return complete;
}

std::vector<std::string> PendingTensors::CompleteRequests() {
  std::vector<std::string> complete = requests_.CompleteNames();
  for (const std::string& name : complete) {
    stalls_.Stop(requests_.Find(name)->wait);
    Forget(name);
  }
  return complete;
}

Readiness PendingTensors::TakeComplete(const std::string& name) {
  return requests_.TakeComplete(name);
}

void PendingTensors::AddNote(size_t lane, StallNote note, TimePoint now) {
  const std::string name = note.request.name;
  if (IsReady(name, lane)) return;
  const TimePoint since = now - note.waited;
  if (WaitOf(name) == 0) {
    const uint64_t wait = stalls_.Start(name, since, now);
    if (const auto slot = cache_.Find(name)) {
      slots_.Open(*slot);
      slots_.set_wait(*slot, wait);
    } else {
      requests_.Open(name).wait = wait;
    }
  }
  notes_[name].insert_or_assign(lane, std::move(note));
  Watch(name);
}

void PendingTensors::DropSlot(uint32_t slot) {
  stalls_.Stop(slots_.wait(slot));
  slots_.Drop(slot);
  Forget(cache_.At(slot)->request.name);
}

void PendingTensors::Drop(const StreamItem& error) {
  for (const uint64_t wait : requests_.Drop(error)) stalls_.Stop(wait);
  std::vector<std::string> ended;
  for (const auto& [name, by_lane] : notes_) {
    if (Ends(error, by_lane.begin()->second.request)) ended.push_back(name);
  }
  for (const std::string& name : ended) {
    if (PendingRequests::Entry* entry = requests_.Find(name)) {
      if (!entry->by_lane.empty()) continue;
      stalls_.Stop(entry->wait);
      StreamItem by_name;
      by_name.name = name;
      requests_.Drop(by_name);
    }
    Forget(name);
  }
  Forget(error.name);
}

void PendingTensors::Clear() {
  slots_.Clear();
  requests_.Clear();
  stalls_.Clear();
  notes_.clear();
  watched_.clear();
  changed_.clear();
}

std::optional<WaitingTensor> PendingTensors::Look(const std::string& name) const {
  auto request = RequestOf(name);
  if (!request) return std::nullopt;
  WaitingTensor waiting;
  waiting.request = *std::move(request);
  const auto notes = notes_.find(name);
  std::vector<int32_t> awaited;
  for (size_t lane = 0; lane < vertex_.lanes.size(); ++lane) {
    const std::vector<int32_t> of_lane = participation_.Awaited(lane, waiting.request);
    awaited.insert(awaited.end(), of_lane.begin(), of_lane.end());
    if (IsReady(name, lane)) continue;
    const std::vector<int32_t>* missing = &of_lane;
    if (notes != notes_.end()) {
      const auto note = notes->second.find(lane);
      if (note != notes->second.end()) missing = &note->second.missing;
    }
    // A rank that was noted as missing may have joined since.
    std::set_intersection(missing->begin(), missing->end(), of_lane.begin(), of_lane.end(),
                          std::back_inserter(waiting.missing));
  }
  std::sort(awaited.begin(), awaited.end());
  std::sort(waiting.missing.begin(), waiting.missing.end());
  std::set_difference(awaited.begin(), awaited.end(), waiting.missing.begin(),
                      waiting.missing.end(), std::back_inserter(waiting.ready));
  return waiting;
}

void PendingTensors::Watch(const std::string& name) {
  watched_.insert(name);
  changed_.insert(name);
}

std::vector<StallNote> PendingTensors::TakeNotes(TimePoint now) {
  std::vector<StallNote> notes;
  for (const std::string& name : std::exchange(changed_, {})) {
    const uint64_t wait = WaitOf(name);
    auto waiting = Look(name);
    if (!waiting || waiting->missing.empty() || !stalls_.IsWaiting(wait)) continue;
    const Duration waited = std::max(now - stalls_.Since(wait), Duration::zero());
    notes.push_back({std::move(waiting->request), std::move(waiting->missing), waited});
  }
  return notes;
}

bool PendingTensors::IsReady(const std::string& name, size_t lane) const {
  const auto slot = cache_.Find(name);
  if (slot && slots_.Has(*slot, lane)) return true;
  const PendingRequests::Entry* entry = requests_.Find(name);
  return entry != nullptr && entry->by_lane.contains(lane);
}

std::optional<Request> PendingTensors::RequestOf(const std::string& name) const {
  if (WaitOf(name) == 0) return std::nullopt;
  const PendingRequests::Entry* entry = requests_.Find(name);
  if (entry != nullptr && !entry->by_lane.empty()) {
    return entry->by_lane.begin()->second.request();
  }
  if (const auto slot = cache_.Find(name)) return cache_.At(*slot)->request;
  const auto notes = notes_.find(name);
  if (notes == notes_.end()) return std::nullopt;
  return notes->second.begin()->second.request;
}

uint64_t PendingTensors::WaitOf(const std::string& name) const {
  const PendingRequests::Entry* entry = requests_.Find(name);
  if (entry != nullptr && entry->wait != 0) return entry->wait;
  const auto slot = cache_.Find(name);
  return slot ? slots_.wait(*slot) : 0;
}

// A lane's notes are outdated once it is ready.
void PendingTensors::Progress(const std::string& name, size_t lane) {
  if (watched_.empty() || !watched_.contains(name)) return;
  changed_.insert(name);
  const auto notes = notes_.find(name);
  if (notes == notes_.end()) return;
  notes->second.erase(lane);
  if (notes->second.empty()) notes_.erase(notes);
}

void PendingTensors::Forget(const std::string& name) {
  if (watched_.erase(name) == 0) return;
  notes_.erase(name);
  changed_.erase(name);
}

}  // namespace mydist
