#include "planner/device_links.h"

#include <algorithm>
#include <string>
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

namespace {

Status WaitFor(const DeviceSeat& seat) {
  MYDIST_ASSIGN_OR_RETURN(const EventPointer last, seat.device->Record(seat.on_stream.stream));
  return seat.device->Block(*last);
}

Status NoGpus(const std::string& what) {
  return Status::Internal(
      what +
      " needs GPU support, which this job does not have; mydistrun --check-build shows the reason");
}

}  // namespace

DeviceSeats::~DeviceSeats() {
  for (const auto& [index, seat] : seats_) {
    if (const Status waited = WaitFor(seat); !waited.ok()) {
      MYDIST_LOG(kDebug) << "closing GPU " << index << ": " << waited.message();
    }
  }
}

Result<DeviceSeat*> DeviceSeats::At(int index) {
  const auto found = seats_.find(index);
  if (found != seats_.end()) return &found->second;
  if (plugin_ == nullptr) return NoGpus("a tensor on GPU " + std::to_string(index));
  MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, plugin_->OpenDevice(index));
  MYDIST_ASSIGN_OR_RETURN(const StreamHandle stream, device->CreateStream());
  const StreamSeat on_stream{device.get(), stream, watch_};
  MYDIST_ASSIGN_OR_RETURN(auto staging, StagingPipeline::Open(on_stream));
  DeviceSeat seat{.device = std::move(device),
                  .on_stream = on_stream,
                  .fusion_memory = DeviceMemory(on_stream),
                  .staging = std::move(staging)};
  return &seats_.emplace(index, std::move(seat)).first->second;
}

Result<int> DeviceSeats::Home(int local_rank) const {
  if (!seats_.empty()) return seats_.begin()->first;
  if (plugin_ == nullptr) return NoGpus("a collective of tensors on GPUs");
  MYDIST_ASSIGN_OR_RETURN(const int count, plugin_->DeviceCount());
  return local_rank % count;
}

Result<bool> DeviceSeats::AreIdle() {
  bool are_idle = true;
  for (auto& [index, seat] : seats_) {
    if (seat.last_batch == nullptr) continue;
    MYDIST_ASSIGN_OR_RETURN(const bool is_over, seat.device->IsOver(*seat.last_batch));
    if (is_over) seat.last_batch = nullptr;
    are_idle = are_idle && is_over;
  }
  return are_idle;
}

int64_t DeviceSeats::MostStagedChunks() const {
  int64_t most = 0;
  for (const auto& [index, seat] : seats_) most = std::max(most, seat.staging->most_in_flight());
  return most;
}

}  // namespace mydist
