#include "fakes/fake_device.h"

#include <gtest/gtest.h>

#include <utility>

namespace mydist::testing {
class FakeDevice::Event final : public DeviceEvent {
 public:
  Event(const FakeDevice* device, std::shared_ptr<const StreamPoint> point)
      : device_(device), point_(std::move(point)) {}

  bool IsOf(const FakeDevice* device) const { return device_ == device; }
  const std::shared_ptr<const StreamPoint>& point() const { return point_; }

 private:
  const FakeDevice* const device_;
  const std::shared_ptr<const StreamPoint> point_;
};

FakeDevice::FakeDevice(const FakeDeviceOptions& options)
    : options_(options),
      link_(std::make_shared<Link>()),
      process_(options.process != nullptr ? options.process : std::make_shared<FakeProcess>()),
      state_{.mutex = process_->mutex},
      memory_(process_->memory) {
  MutexLock link_lock(link_->mutex);
  link_->device = this;
  MutexLock lock(state_.mutex);
  state_.pace = options.pace;
  AddStream();
}

FakeDevice::~FakeDevice() {
  std::vector<FakeStream*> streams;
  {
    MutexLock lock(state_.mutex);
    state_.is_stopping = true;
    for (const auto& stream : streams_) streams.push_back(stream.get());
    WakeStreams();
  }
  for (FakeStream* stream : streams) stream->Join();
  {
    MutexLock link_lock(link_->mutex);
    link_->device = nullptr;
  }
  MutexLock lock(state_.mutex);
  if (!violation_.empty()) ADD_FAILURE() << violation_;
  for (const std::string& what : memory_.LivingOf(this)) {
    ADD_FAILURE() << what << " is not freed, and its device is gone";
  }
}

// The first one stays: what follows is a consequence.
Status FakeDevice::Violate(const std::string& what) {
  if (!state_.is_lost) violation_ = loss_ = what;
  state_.is_lost = true;
  WakeStreams();
  return Status::Internal(what);
}

Status FakeDevice::CheckAlive() const {
  return state_.is_lost ? Status::Internal("the device is lost: " + loss_) : Status::Ok();
}

void FakeDevice::Lose(const std::string& why) {
  MutexLock lock(state_.mutex);
  if (!state_.is_lost) loss_ = why;
  state_.is_lost = true;
  WakeStreams();
}

std::string FakeDevice::TakeViolation() {
  MutexLock lock(state_.mutex);
  return std::exchange(violation_, {});
}

DeviceCounts FakeDevice::counts() {
  MutexLock lock(state_.mutex);
  return counts_;
}

void FakeDevice::WakeStreams() {
  for (const auto& stream : streams_) stream->Wake();
}

FakeStream* FakeDevice::AddStream() {
  const uint64_t seed = options_.seed * 1000003 + streams_.size();
  return streams_.emplace_back(std::make_unique<FakeStream>(&state_, process_->actor_count++, seed))
      .get();
}

Result<StreamHandle> FakeDevice::CreateStream() {
  MutexLock lock(state_.mutex);
  MYDIST_RETURN_IF_ERROR(CheckAlive());
  ++counts_.streams;
  return StreamHandle{AddStream()};
}

Result<FakeStream*> FakeDevice::StreamOf(StreamHandle handle) {
  MYDIST_RETURN_IF_ERROR(CheckAlive());
  if (captured_ == handle) return Violate("work was put on a stream that is being captured");
  if (handle.native == nullptr) return streams_[0].get();
  for (const auto& stream : streams_) {
    if (stream.get() == handle.native) return stream.get();
  }
  return Violate("a stream of another device was given to device " + std::to_string(index()));
}

Result<std::shared_ptr<const StreamPoint>> FakeDevice::PointOf(const DeviceEvent& event) {
  MYDIST_RETURN_IF_ERROR(CheckAlive());
  const auto* known = dynamic_cast<const Event*>(&event);
  if (known != nullptr && known->IsOf(this)) return known->point();
  return Violate("an event of another device was given to device " + std::to_string(index()));
}

// The host.

Access FakeDevice::HostAccess(const std::string& what) {
  constexpr int kHost = FakeProcess::kHostActor;
  return {std::make_shared<const std::string>("the host (" + what + ")"), kHost,
          ClockOfHost().Tick(kHost)};
}

Status FakeDevice::HostReads(const void* begin, int64_t bytes, std::string_view what) {
  return HostUses({begin, bytes}, Use::kRead, what);
}

Status FakeDevice::HostWrites(const void* begin, int64_t bytes, std::string_view what) {
  return HostUses({begin, bytes}, Use::kWrite, what);
}

Status FakeDevice::HostUses(const MemoryRange& range, Use use, std::string_view what) {
  MutexLock lock(state_.mutex);
  MYDIST_RETURN_IF_ERROR(CheckAlive());
  Operation operation{.name = "the host (" + std::string(what) + ")"};
  (use == Use::kRead ? operation.reads : operation.writes).push_back(range);
  MYDIST_ASSIGN_OR_RETURN(const std::vector<Touch> touches, TouchesOf(operation));
  for (const Touch& touch : touches) {
    if (touch.allocation->kind == MemoryKind::kPinned) continue;
    return Violate(operation.name + " touches " + touch.allocation->Describe());
  }
  return Order(touches, HostAccess(std::string(what)), ClockOfHost());
}

// Memory.

void FakeDevice::BeginCapture(StreamHandle stream) {
  MutexLock lock(state_.mutex);
  captured_ = stream;
}

void FakeDevice::EndCapture() {
  MutexLock lock(state_.mutex);
  captured_.reset();
}

Result<bool> FakeDevice::IsCapturing(StreamHandle stream) {
  MutexLock lock(state_.mutex);
  MYDIST_RETURN_IF_ERROR(CheckAlive());
  return captured_ == stream;
}

Result<std::shared_ptr<uint8_t>> FakeDevice::Allocate(int64_t bytes) {
  return Give(MemoryKind::kDevice, bytes);
}

Result<std::shared_ptr<uint8_t>> FakeDevice::AllocatePinned(int64_t bytes) {
  return Give(MemoryKind::kPinned, bytes);
}

Result<std::shared_ptr<uint8_t>> FakeDevice::Give(MemoryKind kind, int64_t bytes) {
  MutexLock lock(state_.mutex);
  MYDIST_RETURN_IF_ERROR(CheckAlive());
  if (bytes == 0) return std::shared_ptr<uint8_t>();
  ++(kind == MemoryKind::kDevice ? counts_.allocations : counts_.pinned_allocations);
  const auto allocation = memory_.Add(kind, bytes, this);
  return std::shared_ptr<uint8_t>(allocation->data(), [allocation, link = link_](uint8_t*) {
    MutexLock link_lock(link->mutex);
    if (link->device != nullptr) link->device->TakeBack(allocation);
  });
}

// To free is to write all of it.
void FakeDevice::TakeBack(const std::shared_ptr<FakeAllocation>& allocation) {
  MutexLock lock(state_.mutex);
  if (!state_.is_lost) {
    // A violation is remembered.
    static_cast<void>(Order({{allocation, 0, allocation->bytes, Use::kWrite}},
                            HostAccess("freeing it"), ClockOfHost()));
  }
  memory_.Free(allocation);
}

// Order.

Result<EventPointer> FakeDevice::Record(StreamHandle handle) {
  MutexLock lock(state_.mutex);
  MYDIST_ASSIGN_OR_RETURN(FakeStream * stream, StreamOf(handle));
  stream->clock().Learn(ClockOfHost());
  auto point = std::make_shared<const StreamPoint>(
      StreamPoint{stream, stream->put_count(), stream->clock()});
  return EventPointer(std::make_shared<const Event>(this, std::move(point)));
}

Status FakeDevice::Wait(StreamHandle handle, const DeviceEvent& event) {
  MutexLock lock(state_.mutex);
  MYDIST_ASSIGN_OR_RETURN(FakeStream * stream, StreamOf(handle));
  MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<const StreamPoint> point, PointOf(event));
  stream->clock().Learn(point->clock);
  stream->PutWait(std::move(point));
  return Status::Ok();
}

Result<bool> FakeDevice::IsOver(const DeviceEvent& event) {
  MutexLock lock(state_.mutex);
  MYDIST_ASSIGN_OR_RETURN(const std::shared_ptr<const StreamPoint> point, PointOf(event));
  const bool is_over = point->stream->HasReached(point->position);
  if (is_over) ClockOfHost().Learn(point->clock);
  // Who asks again and again hears some day that it is.
  point->stream->Demand(point->position);
  return is_over;
}

Status FakeDevice::Block(const DeviceEvent& event) {
  MutexLock lock(state_.mutex);
  MYDIST_ASSIGN_OR_RETURN(const std::shared_ptr<const StreamPoint> point, PointOf(event));
  ++counts_.blocks;
  point->stream->Await(point->position);
  ClockOfHost().Learn(point->clock);
  return CheckAlive();
}

}  // namespace mydist::testing
