#include "controller/pending_tensors.h"

#include <algorithm>
#include <iterator>

#include "base/status.h"

namespace mydist {
namespace {

TimePoint After(TimePoint since, Duration duration) {
  return duration >= kNever - since ? kNever : since + duration;
}

bool EndedBy(const StreamItem& error, const std::string& name,
             const PendingRequests::Entry& entry) {
  if (error.name == name) return true;
  for (const auto& [lane, readiness] : entry.by_lane) {
    for (const Variant& variant : readiness.variants) {
      if (Ends(error, variant.request)) return true;
    }
  }
  return false;
}

}  // namespace

StallInspector::StallInspector(Duration warning, Duration shutdown)
    : warning_(OrNever(warning)),
      shutdown_(OrNever(shutdown)),
      first_due_(std::min(warning_, shutdown_)) {}

uint64_t StallInspector::Start(std::string name, TimePoint since, TimePoint now) {
  const uint64_t number = ++last_number_;
  if (!enabled()) return number;
  waits_.emplace(number, Wait{std::move(name), since, warning_});
  if (since >= now) {
    fresh_.push_back(number);
  } else {
    late_.push_back(number);
  }
  // Waits that ended are still queued; keep the queue proportional to what really waits.
  if (fresh_.size() > 2 * waits_.size() + 64) {
    std::erase_if(fresh_, [&](uint64_t wait) { return !IsWaiting(wait); });
  }
  return number;
}

void StallInspector::Stop(uint64_t wait) { waits_.erase(wait); }

TimePoint StallInspector::Since(uint64_t wait) const {
  const auto it = waits_.find(wait);
  MYDIST_CHECK(it != waits_.end());
  return it->second.since;
}

std::vector<StallEvent> StallInspector::TakeDue(TimePoint now) {
  std::vector<StallEvent> events;
  std::erase_if(late_, [&](uint64_t wait) { return !IsWaiting(wait); });
  for (const uint64_t wait : late_) Collect(wait, now, events);
  while (!fresh_.empty()) {
    const uint64_t wait = fresh_.front();
    const auto it = waits_.find(wait);
    if (it != waits_.end() && After(it->second.since, first_due_) > now) break;
    fresh_.pop_front();
    if (it == waits_.end()) continue;
    Collect(wait, now, events);
    late_.push_back(wait);
  }
  return events;
}

TimePoint StallInspector::NextDeadline() {
  while (!fresh_.empty() && !IsWaiting(fresh_.front())) fresh_.pop_front();
  TimePoint deadline = kNever;
  if (!fresh_.empty()) deadline = After(waits_.at(fresh_.front()).since, first_due_);
  for (const uint64_t wait : late_) {
    const auto it = waits_.find(wait);
    if (it != waits_.end()) deadline = std::min(deadline, DueOf(it->second));
  }
  return deadline;
}

std::vector<std::string> StallInspector::Names() const {
  std::vector<std::string> names;
  for (const auto& [number, wait] : waits_) names.push_back(wait.name);
  std::sort(names.begin(), names.end());
  return names;
}

void StallInspector::Clear() {
  waits_.clear();
  fresh_.clear();
  late_.clear();
}

TimePoint StallInspector::DueOf(const Wait& wait) const {
  const Duration expiry = wait.expired ? Duration::max() : shutdown_;
  return After(wait.since, std::min(wait.next_warning, expiry));
}

void StallInspector::Collect(uint64_t number, TimePoint now, std::vector<StallEvent>& events) {
  Wait& wait = waits_.at(number);
  if (now < DueOf(wait)) return;
  const Duration waited = now - wait.since;
  const bool expires = !wait.expired && waited >= shutdown_;
  wait.expired = wait.expired || expires;
  while (wait.next_warning <= waited) wait.next_warning = Doubled(wait.next_warning);
  events.push_back({wait.name, waited, expires});
}

bool PendingRequests::Add(size_t lane, Readiness readiness) {
  Entry& entry = entries_[readiness.name()];
  return entry.by_lane.emplace(lane, std::move(readiness)).second;
}

bool PendingRequests::IsComplete(const std::string& name) const {
  const Entry* entry = Find(name);
  return entry != nullptr && IsComplete(*entry);
}

bool PendingRequests::IsComplete(const Entry& entry) const {
  if (entry.by_lane.size() == vertex_.lanes.size()) return true;
  if (entry.by_lane.empty()) return false;
  // The usual case, without a look at every lane.
  const bool all_take_part = entry.by_lane.begin()->second.request().op != OpKind::kSendReceive;
  if (all_take_part && !participation_.anybody_joined()) return false;
  for (const auto& [ready_lane, readiness] : entry.by_lane) {
    for (const Variant& variant : readiness.variants) {
      for (size_t lane = 0; lane < vertex_.lanes.size(); ++lane) {
        if (entry.by_lane.contains(lane)) continue;
        if (participation_.Awaits(lane, variant.request)) return false;
      }
    }
  }
  return true;
}

std::vector<std::string> PendingRequests::CompleteNames() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    if (IsComplete(entry)) names.push_back(name);
  }
  return names;
}

Readiness PendingRequests::TakeComplete(const std::string& name) {
  MYDIST_CHECK(IsComplete(name));
  const auto node = entries_.extract(name);
  const std::map<size_t, Readiness>& by_lane = node.mapped().by_lane;
  std::vector<ReadinessPart> parts;
  for (size_t lane = 0; lane < vertex_.lanes.size(); ++lane) {
    const auto ready = by_lane.find(lane);
    ReadinessPart& part = parts.emplace_back();
    part.ranks = &vertex_.lanes[lane].ranks;
    if (ready == by_lane.end()) continue;
    part.readiness = &ready->second;
    part.asked = participation_.Awaited(lane, part.readiness->request());
  }
  return MergeReadiness(parts);
}

PendingRequests::Entry* PendingRequests::Find(const std::string& name) {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

const PendingRequests::Entry* PendingRequests::Find(const std::string& name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

std::vector<uint64_t> PendingRequests::Drop(const StreamItem& error) {
  std::vector<uint64_t> waits;
  std::erase_if(entries_, [&](const auto& entry) {
    if (!EndedBy(error, entry.first, entry.second)) return false;
    waits.push_back(entry.second.wait);
    return true;
  });
  return waits;
}

namespace {

std::vector<std::string> NamesOf(std::vector<Request> requests) {
  std::vector<std::string> names;
  for (Request& request : requests) names.push_back(std::move(request.name));
  return names;
}

}  // namespace

bool OwnRequests::Add(const Request& request, std::optional<uint32_t> slot) {
  return requests_.try_emplace(request.name, Entry{request, slot, announced_count_++}).second;
}

std::optional<Request> OwnRequests::Answer(const std::string& name) {
  auto node = requests_.extract(name);
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped().request);
}

void OwnRequests::SlotLost(const std::string& name, uint32_t slot) {
  const auto it = requests_.find(name);
  if (it == requests_.end() || it->second.slot != slot) return;
  it->second.slot = std::nullopt;
  lost_.push_back(name);
}

std::vector<std::string> OwnRequests::End(const StreamItem& error) {
  return NamesOf(Remove([&error](const Request& request) { return Ends(error, request); }));
}

template <typename Predicate>
std::vector<Request> OwnRequests::Remove(const Predicate& ends) {
  std::vector<Entry> ended;
  for (auto it = requests_.begin(); it != requests_.end();) {
    if (ends(it->second.request)) {
      ended.push_back(std::move(it->second));
      it = requests_.erase(it);
    } else {
      ++it;
    }
  }
  std::sort(ended.begin(), ended.end(),
            [](const Entry& a, const Entry& b) { return a.number < b.number; });
  std::vector<Request> requests;
  for (Entry& entry : ended) requests.push_back(std::move(entry.request));
  return requests;
}

std::vector<Request> OwnRequests::TakeLost() {
  std::vector<Request> requests;
  for (const std::string& name : std::exchange(lost_, {})) {
    const auto it = requests_.find(name);
    if (it != requests_.end() && !it->second.slot) requests.push_back(it->second.request);
  }
  return requests;
}

std::vector<Request> OwnRequests::TakeAll() {
  lost_.clear();
  return Remove([](const Request&) { return true; });
}

std::vector<std::string> OwnRequests::Clear() { return NamesOf(TakeAll()); }

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
  // What has only been refused needs no rank; others may never have made such a call.
  const bool is_awaited = std::any_of(
      readiness.variants.begin(), readiness.variants.end(),
      [](const Variant& variant) { return variant.request.values != InputValues::kRefused; });
  if (!requests_.Add(lane, std::move(readiness))) return Outcome::kDuplicate;
  if (requests_.IsComplete(name)) {
    stalls_.Stop(requests_.Find(name)->wait);
    Forget(name);
    return Outcome::kComplete;
  }
  PendingRequests::Entry& entry = requests_.Open(name);
  if (entry.wait == 0 && is_awaited) entry.wait = stalls_.Start(name, now, now);
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
      requests_.Drop({.name = name});
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
