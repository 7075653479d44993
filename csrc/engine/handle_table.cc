#include "engine/handle_table.h"

#include <algorithm>

namespace mydist {

Status UnknownHandle(Handle handle) {
  return Status::InvalidArgument("handle " + std::to_string(handle) +
                                 " is unknown: it was already synchronized, or no _async call "
                                 "returned it. Each handle can be synchronized once");
}

Result<Handle> HandleTable::Open(const std::vector<TensorKey>& tensors,
                                 std::string_view operation) {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return FailureOf(tensors, operation);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (in_flight_.emplace(tensors[i], next_).second) continue;
    for (size_t j = 0; j < i; ++j) in_flight_.erase(tensors[j]);
    return Status::InvalidArgument("tensor '" + tensors[i].second +
                                   "' is already in flight: a name can be enqueued again only "
                                   "after its handle has been synchronized; give every tensor its "
                                   "own name, or leave the name out");
  }
  const Handle handle = next_++;
  entries_.emplace(handle, Entry{static_cast<int64_t>(tensors.size()), Status::Ok(), operation});
  return handle;
}

Status HandleTable::FailureOf(const std::vector<TensorKey>& tensors,
                              std::string_view operation) const {
  // An error that was found in a collective names that one.
  if (!failure_.failure().operation.empty() || operation.empty() || tensors.empty()) {
    return failure_;
  }
  const std::string& tensor = tensors.front().second;
  const Failure known{.operation = std::string(operation), .tensor = tensor};
  return failure_.WithContext(known.operation + " '" + tensor + "'").About(known);
}

void HandleTable::Complete(Handle handle, TensorKeyView tensor, const Status& status) {
  {
    MutexLock lock(mutex_);
    // Freed before the waiter can see the handle complete, so it may reuse the name at once.
    const auto name = in_flight_.find(tensor);
    // Under a later engine the same name may be in flight for another handle.
    if (name != in_flight_.end() && name->second == handle) in_flight_.erase(name);
    const auto it = entries_.find(handle);
    if (it == entries_.end()) return;
    Entry& entry = it->second;
    if (entry.status.ok()) entry.status = status;
    if (--entry.remaining_count > 0) return;
  }
  completed_.NotifyAll();
}

void HandleTable::Fail(EngineTerm term, const Status& status) {
  {
    MutexLock lock(mutex_);
    if (term != term_) return;
    // Of ranks that leave one after the other, the first is the cause.
    if (failure_.ok()) failure_ = status;
    in_flight_.clear();
    for (auto& [handle, entry] : entries_) {
      if (entry.remaining_count <= 0) continue;
      entry.remaining_count = 0;
      if (entry.status.ok()) entry.status = status;
    }
  }
  completed_.NotifyAll();
}

EngineTerm HandleTable::Reset() {
  MutexLock lock(mutex_);
  failure_ = Status::Ok();
  return ++term_;
}

Result<bool> HandleTable::Poll(Handle handle) {
  MutexLock lock(mutex_);
  const auto it = entries_.find(handle);
  if (it == entries_.end()) return UnknownHandle(handle);
  return it->second.remaining_count <= 0;
}

Result<std::optional<Status>> HandleTable::Wait(Handle handle, TimePoint deadline) {
  MutexLock lock(mutex_);
  while (true) {
    // Looked up anew after each wait: another thread may have released the handle meanwhile.
    const auto it = entries_.find(handle);
    if (it == entries_.end()) return UnknownHandle(handle);
    if (it->second.remaining_count <= 0) {
      Status outcome = std::move(it->second.status);
      entries_.erase(it);
      return std::optional<Status>(std::move(outcome));
    }
    if (Now() >= deadline) return std::optional<Status>();
    completed_.WaitUntil(mutex_, deadline);
  }
}

void HandleTable::Release(Handle handle) {
  MutexLock lock(mutex_);
  entries_.erase(handle);
}

std::optional<std::string> HandleTable::NameInFlight(ProcessSetId set) {
  MutexLock lock(mutex_);
  const auto first = in_flight_.lower_bound(TensorKeyView{set, ""});
  if (first == in_flight_.end() || first->first.first != set) return std::nullopt;
  return first->first.second;
}

std::optional<std::pair<std::string, std::string>> HandleTable::OldestInFlight() {
  MutexLock lock(mutex_);
  const auto oldest =
      std::min_element(in_flight_.begin(), in_flight_.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (oldest == in_flight_.end()) return std::nullopt;
  const auto entry = entries_.find(oldest->second);
  const std::string_view operation =
      entry == entries_.end() ? std::string_view() : entry->second.operation;
  return std::pair(std::string(operation), oldest->first.second);
}

}  // namespace mydist
