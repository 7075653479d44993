#include "engine/guest_tensors.h"

#include <utility>

#include "base/status.h"
#include "world/late_writes.h"

namespace mydist {
namespace {

// As cudaMalloc aligns: kernels read and write whole units of 16 bytes.
constexpr int64_t kAlignmentBytes = 256;

int64_t RoomFor(int64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

int64_t BytesOf(const Shape& shape, int64_t element_bytes) {
  const std::optional<int64_t> count = shape.ElementCount();
  MYDIST_CHECK(count.has_value());  // Checked when the request was read.
  return *count * element_bytes;
}

int64_t ElementBytesOf(const Submission& submission) {
  return submission.is_wide ? SizeOf(DataType::kFloat32) : CarrierOf(submission.request).bytes();
}

int64_t BytesOf(const Submission& submission) {
  return BytesOf(submission.request.shape, ElementBytesOf(submission));
}

// Where it is the input no second stand-in is needed.
bool HasOutputOfItsOwn(const Submission& submission) {
  return submission.output != nullptr && submission.output != submission.input;
}

int64_t RoomFor(const Submission& submission) {
  const int count = (submission.input != nullptr ? 1 : 0) + (HasOutputOfItsOwn(submission) ? 1 : 0);
  return count * RoomFor(BytesOf(submission));
}

}  // namespace

bool GuestTensors::IsGuest(const Submission& submission) const {
  return submission.request.device != host_->device->index();
}

Status GuestTensors::Bring(std::span<Submission* const> batch) {
  int64_t bytes = 0;
  bool has_guests = false;
  for (const Submission* submission : batch) {
    if (!IsGuest(*submission)) continue;
    has_guests = true;
    bytes += RoomFor(*submission);
  }
  if (!has_guests) return Status::Ok();
  // What the batch before has left there is on the same stream, and so over by then.
  MYDIST_ASSIGN_OR_RETURN(uint8_t * room, host_->guest_memory.Reserve(bytes));
  for (Submission* submission : batch) {
    if (IsGuest(*submission)) MYDIST_RETURN_IF_ERROR(BringOne(submission, &room));
  }
  return Status::Ok();
}

Status GuestTensors::CopyHere(void* here, ConstPlaceOnDevice there, int64_t bytes) const {
  return host_->device->CopyBetween({here, host_->device->index()}, there, bytes,
                                    host_->on_stream.stream);
}

Status GuestTensors::BringOne(Submission* submission, uint8_t** room) {
  const int there = std::exchange(submission->request.device, host_->device->index());
  const int64_t bytes = BytesOf(*submission);
  const auto take = [&] { return std::exchange(*room, *room + RoomFor(bytes)); };
  const bool has_output_of_its_own = HasOutputOfItsOwn(*submission);
  const void* const input = submission->input;
  void* const output = submission->output;
  if (input != nullptr) {
    uint8_t* const here = take();
    submission->input = here;
    if (!has_output_of_its_own && output != nullptr) submission->output = here;
    MYDIST_RETURN_IF_ERROR(CopyHere(here, {input, there}, bytes));
  }
  if (has_output_of_its_own) {
    uint8_t* const here = take();
    submission->output = here;
    // It goes home as a whole, and only an allreduce is sure to write all of it on every rank.
    if (submission->request.op != OpKind::kAllreduce) {
      MYDIST_RETURN_IF_ERROR(CopyHere(here, {output, there}, bytes));
    }
  }
  if (output != nullptr) ways_home_.push_back({{output, there}, submission->output, bytes});
  if (!submission->allocate) return Status::Ok();
  if (late_ == nullptr) late_ = std::make_shared<Late>();
  submission->allocate =
      [allocate = std::move(submission->allocate), late = late_, device = host_->device.get(),
       there, element_bytes = ElementBytesOf(*submission)](const Shape& shape) -> Result<void*> {
    MYDIST_ASSIGN_OR_RETURN(void* const memory, allocate(shape));
    const int64_t size = BytesOf(shape, element_bytes);
    MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<uint8_t> here, device->Allocate(size));
    late->ways_home.push_back({{memory, there}, here.get(), size});
    late->memory.push_back(GuardFromLateWrites(std::move(here)));
    return static_cast<void*>(late->memory.back().get());
  };
  return Status::Ok();
}

Status GuestTensors::TakeHome() {
  const int here = host_->device->index();
  const auto take = [&](const std::vector<Way>& ways) {
    for (const Way& way : ways) {
      MYDIST_RETURN_IF_ERROR(host_->device->CopyBetween(way.there, {way.here, here}, way.bytes,
                                                        host_->on_stream.stream));
    }
    return Status::Ok();
  };
  MYDIST_RETURN_IF_ERROR(take(ways_home_));
  return late_ == nullptr ? Status::Ok() : take(late_->ways_home);
}

void GuestTensors::Leave() {
  // Without a last batch the GPU is lost, and nothing uses them.
  if (late_ != nullptr && host_->last_batch != nullptr) {
    host_->passing.Keep(late_, host_->last_batch);
  }
}

}  // namespace mydist
