#include "algorithms/device/staging_pipeline.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "kernels/element.h"
#include "world/late_writes.h"

namespace mydist {

namespace {

constexpr int64_t kPageBytes = 4096;
// Of the places of chunks; what a device copies best.
constexpr int64_t kSlotUnitBytes = 256;

int64_t RoundedUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Result<std::shared_ptr<StagingPipeline>> StagingPipeline::Open(const StreamSeat& seat,
                                                               const StagingLimits& limits) {
  std::shared_ptr<StagingPipeline> pipeline(new StagingPipeline(seat, limits));
  MYDIST_ASSIGN_OR_RETURN(pipeline->from_device_, seat.device->CreateStream());
  MYDIST_ASSIGN_OR_RETURN(pipeline->to_device_, seat.device->CreateStream());
  return pipeline;
}

// Where that fails the device is lost, and copies nothing any more.
StagingPipeline::~StagingPipeline() {
  for (const EventPointer& copies : {last_fetched_, last_delivered_}) {
    if (copies != nullptr) static_cast<void>(seat_.device->Block(*copies));
  }
}

Status StagingPipeline::Run(const StagedWork& work) {
  if (work.chunk_count == 0) return Status::Ok();
  const EventPointer delivered_before = last_delivered_;
  Status status = RunChunks(work);
  if (status.ok()) {
    last_fetched_ = nullptr;  // All of it is here.
  } else {
    static_cast<void>(OrderBehindCopies(last_fetched_));
  }
  if (last_delivered_ != delivered_before) {
    const Status ordered = OrderBehindCopies(last_delivered_);
    if (status.ok()) status = ordered;
  }
  return status;
}

Status StagingPipeline::RunChunks(const StagedWork& work) {
  MYDIST_RETURN_IF_ERROR(Begin(work));
  const auto in_flight = static_cast<int>(slots_.size());
  for (int chunk = 0; chunk < in_flight; ++chunk) MYDIST_RETURN_IF_ERROR(Fetch(work, chunk));
  for (int chunk = 0; chunk < work.chunk_count; ++chunk) {
    MYDIST_RETURN_IF_ERROR(Await(chunk));
    MYDIST_RETURN_IF_ERROR(work.exchange(chunk, StagedOf(chunk)));
    if (SlotOf(chunk).fetched != nullptr) --in_flight_;
    MYDIST_RETURN_IF_ERROR(Deliver(work, chunk));
    const int next = chunk + in_flight;
    if (next < work.chunk_count) MYDIST_RETURN_IF_ERROR(Fetch(work, next));
  }
  return Status::Ok();
}

Status StagingPipeline::Begin(const StagedWork& work) {
  const int slot_count = std::min(work.chunk_count, std::max(1, limits_.chunks_in_flight));
  slot_bytes_ = RoundedUp(work.chunk_bytes, kSlotUnitBytes);
  if (slot_bytes_ > std::numeric_limits<int64_t>::max() / slot_count) {
    return Status::Internal("a chunk of " + std::to_string(work.chunk_bytes) +
                            " bytes cannot be staged in host memory; reduce smaller tensors");
  }
  MYDIST_RETURN_IF_ERROR(Reserve(slot_bytes_ * slot_count));
  slots_.assign(static_cast<size_t>(slot_count), {});
  in_flight_ = 0;
  leftover_ = last_delivered_;
  fetches_behind_start_ = delivers_behind_start_ = false;
  // Behind all earlier copies: so is the seat's stream.
  MYDIST_ASSIGN_OR_RETURN(start_, seat_.device->Record(seat_.stream));
  return Status::Ok();
}

Status StagingPipeline::Fetch(const StagedWork& work, int chunk) {
  Slot& slot = SlotOf(chunk);
  inputs_.Clear();
  work.inputs(chunk, inputs_);
  slot.fetched = nullptr;
  if (inputs_.pieces().empty()) return Status::Ok();
  if (!fetches_behind_start_) {
    MYDIST_RETURN_IF_ERROR(seat_.device->Wait(from_device_, *start_));
    fetches_behind_start_ = true;
  }
  if (slot.delivered != nullptr) {
    MYDIST_RETURN_IF_ERROR(seat_.device->Wait(from_device_, *slot.delivered));
  }
  for (const ChunkInputs::Piece& piece : inputs_.pieces()) {
    MYDIST_RETURN_IF_ERROR(seat_.device->Copy(StagedOf(chunk) + piece.staged_offset, piece.device,
                                              piece.bytes, from_device_));
  }
  MYDIST_ASSIGN_OR_RETURN(slot.fetched, seat_.device->Record(from_device_));
  last_fetched_ = slot.fetched;
  most_in_flight_ = std::max(most_in_flight_, ++in_flight_);
  return Status::Ok();
}

// The host may use the chunk's memory.
Status StagingPipeline::Await(int chunk) {
  const Slot& slot = SlotOf(chunk);
  if (slot.fetched != nullptr) {
    // Behind the start, and behind what was copied out of the memory; so is the host from here on.
    delivers_behind_start_ = true;
    return BlockFor(slot.fetched);
  }
  if (slot.delivered != nullptr) return BlockFor(slot.delivered);
  const Status status = BlockFor(leftover_);
  leftover_ = nullptr;
  return status;
}

Status StagingPipeline::Deliver(const StagedWork& work, int chunk) {
  Slot& slot = SlotOf(chunk);
  outputs_.Clear();
  work.outputs(chunk, outputs_);
  slot.delivered = nullptr;
  if (outputs_.pieces().empty()) return Status::Ok();
  if (!delivers_behind_start_) {
    MYDIST_RETURN_IF_ERROR(seat_.device->Wait(to_device_, *start_));
    delivers_behind_start_ = true;
  }
  for (const ChunkOutputs::Piece& piece : outputs_.pieces()) {
    MYDIST_RETURN_IF_ERROR(seat_.device->Copy(piece.device, StagedOf(chunk) + piece.staged_offset,
                                              piece.bytes, to_device_));
  }
  MYDIST_ASSIGN_OR_RETURN(slot.delivered, seat_.device->Record(to_device_));
  last_delivered_ = slot.delivered;
  return Status::Ok();
}

Status StagingPipeline::OrderBehindCopies(const EventPointer& copies) {
  return copies == nullptr ? Status::Ok() : seat_.device->Wait(seat_.stream, *copies);
}

// Freed first, so that growing never needs the old and the new memory at the same time.
Status StagingPipeline::Reserve(int64_t bytes) {
  if (bytes <= capacity_bytes_) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(BlockFor(last_fetched_));
  MYDIST_RETURN_IF_ERROR(BlockFor(last_delivered_));
  memory_.reset();
  capacity_bytes_ = 0;
  const int64_t rounded = RoundedUp(bytes, kPageBytes);
  MYDIST_ASSIGN_OR_RETURN(memory_, seat_.device->AllocatePinned(rounded));
  memory_ = GuardFromLateWrites(std::move(memory_));
  capacity_bytes_ = rounded;
  return Status::Ok();
}

Status StagingPipeline::BlockFor(const EventPointer& copies) {
  return copies == nullptr ? Status::Ok() : WaitWatched(*seat_.device, *copies, seat_.watch);
}

uint8_t* StagingPipeline::StagedOf(int chunk) const {
  return Advance(memory_.get(),
                 static_cast<int64_t>(static_cast<size_t>(chunk) % slots_.size()) * slot_bytes_);
}

int ChunkCount(int64_t bytes, const StagingLimits& limits) {
  if (bytes == 0) return 0;
  const int64_t wanted =
      std::min<int64_t>(limits.chunks_in_flight, bytes / limits.least_chunk_bytes);
  const int64_t needed =
      bytes / limits.most_chunk_bytes + (bytes % limits.most_chunk_bytes != 0 ? 1 : 0);
  return static_cast<int>(std::max({int64_t{1}, wanted, needed}));
}

void CutParts(std::span<const int64_t> counts, int64_t element_bytes, int chunk_count, int chunk,
              std::vector<ChunkPiece>& pieces) {
  pieces.clear();
  int64_t part_begin = 0;
  int64_t staged_begin = 0;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    const Slice slice = EvenSlice(counts[rank], element_bytes, chunk_count, chunk);
    pieces.push_back({static_cast<int>(rank), part_begin + slice.offset, slice.offset, staged_begin,
                      slice.count});
    part_begin += counts[rank];
    staged_begin += slice.count;
  }
}

void GroupTensors(std::span<const int64_t> counts, int64_t element_bytes, int64_t group_bytes,
                  std::vector<TensorGroup>& groups) {
  groups.clear();
  int64_t offset = 0;
  for (size_t tensor = 0; tensor < counts.size(); ++tensor) {
    const bool is_full =
        groups.empty() || groups.back().elements.count * element_bytes >= group_bytes;
    if (is_full) groups.push_back({tensor, 0, {offset, 0}});
    ++groups.back().tensor_count;
    groups.back().elements.count += counts[tensor];
    offset += counts[tensor];
  }
}

}  // namespace mydist
