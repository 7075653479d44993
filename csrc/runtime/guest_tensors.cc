#include "runtime/guest_tensors.h"

#include <utility>

#include "base/check.h"

namespace mydist {
namespace {

int64_t BytesOf(const Shape& shape, int64_t element_bytes) {
  const std::optional<int64_t> count = shape.ElementCount();
  MYDIST_CHECK(count.has_value());  // Checked when the request was read.
  return *count * element_bytes;
}

}  // namespace

Result<uint8_t*> GuestTensors::CopyOf(const void* there, int64_t bytes, StandIn& stand_in) const {
  MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<uint8_t> here, host_->device->Allocate(bytes));
  uint8_t* const copy = here.get();
  stand_in.memory.push_back(std::move(here));
  MYDIST_RETURN_IF_ERROR(host_->device->Copy(copy, there, bytes, host_->on_stream.stream));
  return copy;
}

// An output has a copy, too: not every rank writes it, and it goes home as a whole.
Status GuestTensors::Bring(Submission* submission) {
  if (submission->request.device == host_->device->index()) return Status::Ok();
  auto stand_in = std::make_shared<StandIn>();
  // Also of what fails: its copies may be under way.
  stand_ins_.push_back(stand_in);
  const int64_t element_bytes =
      SizeOf(submission->is_wide ? DataType::kFloat32 : submission->request.dtype);
  const int64_t bytes = BytesOf(submission->request.shape, element_bytes);
  const void* const input = submission->input;
  if (input != nullptr) {
    MYDIST_ASSIGN_OR_RETURN(submission->input, CopyOf(input, bytes, *stand_in));
  }
  if (submission->output != nullptr) {
    void* const there = submission->output;
    uint8_t* here = static_cast<uint8_t*>(const_cast<void*>(submission->input));
    if (there != input) {
      MYDIST_ASSIGN_OR_RETURN(here, CopyOf(there, bytes, *stand_in));
    }
    submission->output = here;
    stand_in->ways_home.push_back({there, here, bytes});
  }
  if (submission->allocate) {
    submission->allocate = [allocate = std::move(submission->allocate), stand_in,
                            device = host_->device.get(),
                            element_bytes](const Shape& shape) -> Result<void*> {
      MYDIST_ASSIGN_OR_RETURN(void* const there, allocate(shape));
      const int64_t size = BytesOf(shape, element_bytes);
      MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<uint8_t> here, device->Allocate(size));
      stand_in->ways_home.push_back({there, here.get(), size});
      return static_cast<void*>(stand_in->memory.emplace_back(std::move(here)).get());
    };
  }
  submission->request.device = host_->device->index();
  return Status::Ok();
}

Status GuestTensors::TakeHome() {
  for (const auto& stand_in : stand_ins_) {
    for (const auto& [there, here, bytes] : stand_in->ways_home) {
      MYDIST_RETURN_IF_ERROR(host_->device->Copy(there, here, bytes, host_->on_stream.stream));
    }
  }
  return Status::Ok();
}

void GuestTensors::Leave() {
  if (host_->last_batch == nullptr) return;  // The GPU is lost, and nothing uses them.
  for (auto& stand_in : stand_ins_) host_->passing.Keep(std::move(stand_in), host_->last_batch);
  stand_ins_.clear();
}

}  // namespace mydist
