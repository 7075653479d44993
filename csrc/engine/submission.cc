#include "engine/submission.h"

#include <cstring>
#include <utility>

namespace mydist {
namespace {

struct Scratch {
  std::vector<uint8_t> input;
  std::vector<uint8_t> output;
};

struct Loan {
  std::shared_ptr<void> scratch;  // The elements as they were made.
  std::shared_ptr<uint8_t> pinned;
  std::shared_ptr<uint8_t> input;
  std::vector<std::shared_ptr<uint8_t>> outputs;
};

int64_t BytesOf(const Shape& shape, const Carrier& carrier) {
  const std::optional<int64_t> count = shape.ElementCount();
  MYDIST_CHECK(count.has_value());  // Checked when the request was read.
  return *count * carrier.bytes();
}

}  // namespace

Reduction ReductionOf(const Request& request) {
  if (IsIntegerAverage(request.op, request.reduce_op, request.dtype)) {
    return {.dtype = CarrierOf(request).dtype, .op = ReduceOp::kSum};
  }
  return {.dtype = request.dtype,
          .op = request.reduce_op,
          .prescale = request.prescale,
          .postscale = request.postscale};
}

Submission NeutralSubmission(const Agreement& agreement, const ProcessSet& set) {
  auto scratch = std::make_shared<Scratch>();
  Submission submission;
  submission.request = agreement.request;
  const Request& request = submission.request;
  const Carrier carrier = CarrierOf(request);
  submission.allocate = [scratch, carrier](const Shape& shape) -> Result<void*> {
    scratch->output.resize(static_cast<size_t>(BytesOf(shape, carrier)));
    return static_cast<void*>(scratch->output.data());
  };
  submission.splits.assign(set.ranks.size(), 0);
  // What rows are gathered from has none in the agreement: RankIndependent.
  if (HasData(request.op) && !FirstDimMayDiffer(request.op)) {
    const int64_t bytes = BytesOf(request.shape, carrier);
    scratch->input.resize(static_cast<size_t>(bytes));
    if (Reduces(request.op)) {
      FillNeutral(scratch->input.data(), bytes / SizeOf(carrier.dtype), ReductionOf(request));
    }
    submission.input = scratch->input.data();
    submission.output = scratch->input.data();
  }
  submission.keep_alive = std::move(scratch);
  return submission;
}

Status MoveNeutralTo(const StreamSeat& seat, Submission* submission) {
  Device* const device = seat.device;
  const Carrier carrier = CarrierOf(submission->request);
  auto loan = std::make_shared<Loan>();
  if (submission->input != nullptr) {
    const int64_t bytes = BytesOf(submission->request.shape, carrier);
    MYDIST_ASSIGN_OR_RETURN(loan->pinned, device->AllocatePinned(bytes));
    MYDIST_ASSIGN_OR_RETURN(loan->input, device->Allocate(bytes));
    if (bytes > 0) {
      std::memcpy(loan->pinned.get(), submission->input, static_cast<size_t>(bytes));
    }
    MYDIST_RETURN_IF_ERROR(device->Copy(loan->input.get(), loan->pinned.get(), bytes, seat.stream));
    submission->input = submission->output = loan->input.get();
  }
  submission->allocate = [loan, device, carrier](const Shape& shape) -> Result<void*> {
    MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<uint8_t> output,
                            device->Allocate(BytesOf(shape, carrier)));
    return static_cast<void*>(loan->outputs.emplace_back(std::move(output)).get());
  };
  submission->request.device = device->index();
  submission->order = std::make_shared<DeviceOrder>();
  loan->scratch = std::exchange(submission->keep_alive, nullptr);
  submission->keep_alive = std::move(loan);
  return Status::Ok();
}

}  // namespace mydist
