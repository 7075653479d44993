// StagingPipeline: chunks of device memory on their way through the host: device → pinned memory,
// whatever the host does with them, pinned memory → device, each direction on a stream of its own,
// so that the three overlap (reduce).
// One for each stream of a device, shared by the collectives on that stream; driven by one thread
// at a time. A place in pinned memory is used again only behind the copy out of it. Pinned memory
// grows to what the largest call needs; then nothing is allocated any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/export.h"
#include "base/status.h"
#include "kernels/element.h"
#include "memory/device/device_memory.h"

namespace mydist {

// ChunkPlan: into how many chunks a tensor on a device is cut on its way over the host, and where.
// Pure index maths, the same on every rank.

// Must be equal on all ranks. Results do not depend on it.
struct StagingLimits {
  // Smaller chunks would cost the network more in messages than the overlap saves.
  int64_t least_chunk_bytes = int64_t{1} << 20;
  // Host memory held is at most this times chunks_in_flight (a tensor that has to be seen whole,
  // see StagedCollectives, may need more).
  int64_t most_chunk_bytes = int64_t{4} << 20;
  // Of one tensor: on their way to the host, over the network, or on their way back.
  int chunks_in_flight = 8;
};

// Chunks of about equal size for `bytes`, 0 for nothing: as many as there may be in flight, fewer
// where they would be too small, more where they would be too large.
int ChunkCount(int64_t bytes, const StagingLimits& limits);

// What chunk number `chunk` of `chunk_count` has of the part of one rank, when every rank's part is
// cut into as many.
struct ChunkPiece {
  int rank = 0;
  int64_t tensor_offset = 0;  // In elements, from the begin of all parts.
  int64_t part_offset = 0;    // From the begin of the rank's part.
  int64_t staged_offset = 0;  // From the begin of the chunk, where pieces lie one after the other.
  int64_t count = 0;
};

// One for each of `counts`, in their order. Chunk 0 is the largest.
void CutParts(std::span<const int64_t> counts, int64_t element_bytes, int chunk_count, int chunk,
              std::vector<ChunkPiece>& pieces);

// Tensors that travel together because none of them may be cut.
struct TensorGroup {
  size_t first = 0;
  size_t tensor_count = 0;
  Slice elements;
};

// All of `counts`, in groups of at least `group_bytes` as long as there are so many.
void GroupTensors(std::span<const int64_t> counts, int64_t element_bytes, int64_t group_bytes,
                  std::vector<TensorGroup>& groups);

// Copies between device memory and a chunk's pinned memory, those that continue each other as one.
template <typename Pointer>
class ChunkCopies {
 public:
  struct Piece {
    Pointer device;
    int64_t staged_offset;  // In bytes, from the begin of the chunk.
    int64_t bytes;
  };

  void Add(Pointer device, int64_t staged_offset, int64_t bytes) {
    if (bytes == 0) return;
    if (!pieces_.empty()) {
      Piece& last = pieces_.back();
      if (last.device + last.bytes == device && last.staged_offset + last.bytes == staged_offset) {
        last.bytes += bytes;
        return;
      }
    }
    pieces_.push_back({device, staged_offset, bytes});
  }
  void Clear() { pieces_.clear(); }
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  std::vector<Piece> pieces_;
};
using ChunkInputs = ChunkCopies<const uint8_t*>;
using ChunkOutputs = ChunkCopies<uint8_t*>;

// What is done with chunks 0, 1, …; the functions are called in the order of the chunks, but the
// inputs of a chunk are asked for before others are exchanged.
struct StagedWork {
  int chunk_count = 0;
  int64_t chunk_bytes = 0;  // Of the largest.
  std::function<void(int chunk, ChunkInputs& inputs)> inputs;
  // On the host, with the memory of the chunk (may be null for 0 bytes): it holds the inputs and is
  // left with the outputs.
  std::function<Status(int chunk, uint8_t* staged)> exchange;
  std::function<void(int chunk, ChunkOutputs& outputs)> outputs;
};

class MYDIST_EXPORT StagingPipeline {
 public:
  // kInternal when the device has no more streams.
  static Result<std::shared_ptr<StagingPipeline>> Open(const StreamSeat& seat,
                                                       const StagingLimits& limits = {});
  ~StagingPipeline();  // Waits for copies that are under way, whatever the watch says.
  StagingPipeline(const StagingPipeline&) = delete;
  StagingPipeline& operator=(const StagingPipeline&) = delete;

  const StreamSeat& seat() const { return seat_; }
  const StagingLimits& limits() const { return limits_; }
  int64_t capacity_bytes() const { return capacity_bytes_; }
  // Chunks whose copy to the host had been ordered before they were exchanged, at once, so far.
  int64_t most_in_flight() const { return most_in_flight_; }

  // Returns when the last chunk has been exchanged; what comes next on the seat's stream is behind
  // all copies, also after an error. The host waits for the copies to it, and for those from it
  // only where it has to write over what has no input. Errors: those of the device, of exchange and
  // of the seat's watch.
  Status Run(const StagedWork& work);

 private:
  struct Slot {
    EventPointer fetched;    // Null: the chunk has no input.
    EventPointer delivered;  // In this call. Null: nothing is copied out of it any more.
  };

  StagingPipeline(const StreamSeat& seat, const StagingLimits& limits)
      : seat_(seat), limits_(limits) {}

  Status RunChunks(const StagedWork& work);
  Status Begin(const StagedWork& work);
  Status Fetch(const StagedWork& work, int chunk);
  Status Await(int chunk);
  Status Deliver(const StagedWork& work, int chunk);
  Status OrderBehindCopies(const EventPointer& copies);
  Status Reserve(int64_t bytes);
  Status BlockFor(const EventPointer& copies);
  Slot& SlotOf(int chunk) { return slots_[static_cast<size_t>(chunk) % slots_.size()]; }
  uint8_t* StagedOf(int chunk) const;

  const StreamSeat seat_;
  const StagingLimits limits_;
  StreamHandle from_device_;
  StreamHandle to_device_;
  EventPointer last_fetched_;  // That the host has not waited for.
  EventPointer last_delivered_;
  std::shared_ptr<uint8_t> memory_;
  int64_t capacity_bytes_ = 0;
  int64_t most_in_flight_ = 0;
  // Of the call in progress.
  EventPointer start_;     // What was on the seat's stream before.
  EventPointer leftover_;  // Of earlier calls, out of this memory; null: the host knows it is over.
  bool fetches_behind_start_ = false;
  bool delivers_behind_start_ = false;
  std::vector<Slot> slots_;
  int64_t in_flight_ = 0;
  int64_t slot_bytes_ = 0;
  ChunkInputs inputs_;
  ChunkOutputs outputs_;
};

}  // namespace mydist
