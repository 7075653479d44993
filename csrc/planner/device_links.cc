#include "planner/device_links.h"

#include <thread>
#include <utility>

#include "base/log.h"

namespace mydist {

void DeviceLinks::Add(std::shared_ptr<DeviceLink> link) {
  Status aborted;
  {
    MutexLock lock(mutex_);
    links_.push_back(link);
    aborted = aborted_;
  }
  if (!aborted.ok()) link->Abort(aborted);
}

void DeviceLinks::Remove(const DeviceLink* link) {
  MutexLock lock(mutex_);
  std::erase_if(links_, [link](const auto& each) { return each.get() == link; });
}

bool DeviceLinks::empty() const {
  MutexLock lock(mutex_);
  return links_.empty();
}

DeviceLinks::List DeviceLinks::Snapshot() const {
  MutexLock lock(mutex_);
  return links_;
}

Status DeviceLinks::Check() const {
  for (const auto& link : Snapshot()) MYDIST_RETURN_IF_ERROR(link->Check());
  return Status::Ok();
}

void DeviceLinks::Abort(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (aborted_.ok()) aborted_ = why;
  }
  // At the same time, as DeviceLink wants it.
  const List links = Snapshot();
  std::vector<std::thread> others;
  for (size_t i = 1; i < links.size(); ++i) {
    others.emplace_back([&link = links[i], &why] { link->Abort(why); });
  }
  if (!links.empty()) links.front()->Abort(why);
  for (std::thread& other : others) other.join();
}

void DeviceLinks::Close(TimePoint deadline) {
  for (const auto& link : Snapshot()) {
    if (const Status closed = link->Close(deadline, nullptr); !closed.ok()) {
      MYDIST_LOG(kDebug) << "closing: " << closed.message();
      return Abort(closed);
    }
  }
}

}  // namespace mydist
