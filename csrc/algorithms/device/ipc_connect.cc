#include "algorithms/device/ipc_connect.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "algorithms/device/device_link.h"
#include "base/fixed_text.h"

namespace mydist {

namespace {

// What a rank has for the others. Travels as it lies in memory.
struct IpcOffer {
  IpcHandle handle{};
  int32_t blocks = 0;  // IpcRoom::blocks.
  std::array<char, 60> gpu{};
};
static_assert(sizeof(IpcOffer) == 128);

// Blocks that wait keep their places, so those of all ranks of a GPU have to fit on it at the same
// time: without time slices (under MPS) one that comes late would never get one.
int BlocksForEach(const std::vector<IpcOffer>& offers) {
  std::map<decltype(IpcOffer::gpu), int> ranks;
  for (const IpcOffer& offer : offers) ++ranks[offer.gpu];
  int most = kMaxIpcBlocks;
  for (const IpcOffer& offer : offers) most = std::min(most, offer.blocks / ranks[offer.gpu]);
  return most;
}

class Connector {
 public:
  Connector(const DevicePeers& peers, bool is_asked_for)
      : peers_(peers), is_asked_for_(is_asked_for) {}

  Result<IpcConnection> Run() {
    Result<std::string> why_not = Judge(Prepare(), "cannot share memory of its GPU");
    if (!why_not.ok() || !why_not->empty()) return GiveUp(std::move(why_not));
    if (const Status told = TellOffers(); !told.ok()) return GiveUp(told);
    parts_.most_blocks = BlocksForEach(offers_);
    if (parts_.most_blocks < 1) return GiveUp(std::string("their GPU has no room for all of them"));
    // After an error of this one others may be linked, and write to our board: it is not recycled.
    MYDIST_ASSIGN_OR_RETURN(std::string refused,
                            Judge(OpenOthers(), "cannot reach the memory of other GPUs"));
    if (!refused.empty()) return GiveUp(std::move(refused));
    return IpcConnection{.link = std::make_shared<IpcLink>(std::move(parts_)), .why_not = ""};
  }

 private:
  // No rank has launched anything, and none will.
  Result<IpcConnection> GiveUp(Result<std::string> why_not) {
    if (parts_.own.memory != nullptr) port_->Recycle(parts_.own);
    if (!why_not.ok()) return why_not.status();
    return IpcConnection{.link = nullptr, .why_not = *std::move(why_not)};
  }

  Result<std::string> Judge(const Status& outcome, const char* failure) {
    return FirstFailure(outcome.ok() ? outcome : outcome.WithContext(failure), *peers_.exchange,
                        peers_.size);
  }

  Status Prepare() {
    parts_ = {.seat = peers_.seat,
              .port = port_,
              .name = peers_.name,
              .rank = peers_.rank,
              .size = peers_.size,
              .most_blocks = kMaxIpcBlocks,
              .own = {},
              .others = {},
              .abort_word = nullptr};
    if (port_ == nullptr) return Status::Internal("its device has no such memory");
    MYDIST_ASSIGN_OR_RETURN(const IpcRoom room, port_->Room());
    if (room.ends_long_kernels && !is_asked_for_) {
      return Status::Internal(
          "it drives a display, so its driver ends kernels that wait for long, and the process "
          "with them (MYDIST_GPU_IPC=on takes the risk)");
    }
    own_.blocks = room.blocks;
    PutText(peers_.seat.device->identity(), own_.gpu);
    MYDIST_ASSIGN_OR_RETURN(parts_.abort_word, peers_.seat.device->AllocatePinned(kIpcLineBytes));
    __atomic_store_n(reinterpret_cast<uint32_t*>(parts_.abort_word.get()), 0, __ATOMIC_RELEASE);
    MYDIST_ASSIGN_OR_RETURN(parts_.own, port_->Export());
    own_.handle = parts_.own.handle;
    return Status::Ok();
  }

  Status TellOffers() {
    offers_.resize(static_cast<size_t>(peers_.size));
    const std::vector<int64_t> byte_counts(offers_.size(), sizeof(IpcOffer));
    return peers_.exchange->Allgather(&own_, offers_.data(), byte_counts);
  }

  Status OpenOthers() {
    for (int rank = 0; rank < peers_.size; ++rank) {
      auto& opened = parts_.others.emplace_back();
      if (rank == peers_.rank) continue;
      MYDIST_ASSIGN_OR_RETURN(opened, port_->Open(offers_[static_cast<size_t>(rank)].handle));
    }
    return Status::Ok();
  }

  const DevicePeers& peers_;
  const bool is_asked_for_;
  IpcPort* const port_ = peers_.seat.device->ipc_port();
  IpcOffer own_;
  std::vector<IpcOffer> offers_;
  IpcLink::Parts parts_;
};

}  // namespace

Result<IpcConnection> ConnectIpc(const DevicePeers& peers, bool is_asked_for) {
  return Connector(peers, is_asked_for).Run();
}

namespace {

// Not whole units: the last one is cut.
constexpr int64_t kCount = kIpcTrialBytes / static_cast<int64_t>(sizeof(int32_t)) - 1;
constexpr int64_t kBytes = kCount * static_cast<int64_t>(sizeof(int32_t));

// Never 0, other numbers on every rank, at every place and in every sum; those of all ranks add up
// to what is still exact.
int32_t NumberOf(int rank, int64_t index, int sum) {
  return static_cast<int32_t>((index * 7919 + rank * 104729 + sum * 15485863) % 10007) + 1;
}

class Trial {
 public:
  explicit Trial(const IpcTrial& trial) : trial_(trial) {}

  Result<std::string> Run() {
    MYDIST_ASSIGN_OR_RETURN(std::string unprepared, Judge(Settle()));
    if (!unprepared.empty()) return unprepared;
    deadline_ = Now() + trial_.patience;
    Status outcome = Sum(0, false);
    // Two ranks have one shot only; the other half of the board is then used by that.
    if (outcome.ok()) outcome = Sum(1, trial_.link->size() > 2);
    return Judge(outcome.ok() ? wrong_ : outcome);
  }

 private:
  Result<std::string> Judge(const Status& outcome) {
    if (!news_.ok()) return news_;
    return FirstFailure(outcome, *trial_.exchange, trial_.link->size());
  }

  // What lies in front is no fault of the link's. It may wait for something of the program's, and
  // that for this, so it is not waited for without end either.
  Status Settle() {
    MYDIST_RETURN_IF_ERROR(trial_.prepared);
    return Await("its GPU was busy for too long before");
  }

  Status Await(const char* overdue) {
    Device& device = *trial_.seat.device;
    MYDIST_ASSIGN_OR_RETURN(const EventPointer end, device.Record(trial_.seat.stream));
    return WaitWatched(device, *end, [&] {
      if (trial_.seat.watch) news_ = trial_.seat.watch();
      if (!news_.ok() || Now() < deadline_) return news_;
      return Status::Timeout(overdue);
    });
  }

  // Wrong numbers are no failure: the others count on this rank for the next sum.
  Status Sum(int sum, bool in_two_shots) {
    const StreamSeat& seat = trial_.seat;
    auto* const numbers = reinterpret_cast<int32_t*>(trial_.pinned);
    for (int64_t i = 0; i < kCount; ++i) numbers[i] = NumberOf(trial_.link->rank(), i, sum);
    MYDIST_RETURN_IF_ERROR(seat.device->Copy(trial_.memory, trial_.pinned, kBytes, seat.stream));
    MYDIST_RETURN_IF_ERROR(trial_.link->Allreduce(
        trial_.memory, kCount, {.dtype = DataType::kInt32, .op = ReduceOp::kSum}, in_two_shots));
    MYDIST_RETURN_IF_ERROR(seat.device->Copy(trial_.pinned, trial_.memory, kBytes, seat.stream));
    MYDIST_RETURN_IF_ERROR(
        Await("nothing of what another rank writes to its GPU arrived there in time, though the "
              "driver says that they reach each other"));
    if (wrong_.ok()) wrong_ = Compare(numbers, sum);
    return Status::Ok();
  }

  Status Compare(const int32_t* numbers, int sum) const {
    for (int64_t i = 0; i < kCount; ++i) {
      int32_t expected = 0;
      for (int rank = 0; rank < trial_.link->size(); ++rank) expected += NumberOf(rank, i, sum);
      if (numbers[i] == expected) continue;
      return Status::Internal("it adds up to other numbers than are on the GPUs: element " +
                              std::to_string(i) + " is " + std::to_string(numbers[i]) +
                              ", expected " + std::to_string(expected));
    }
    return Status::Ok();
  }

  const IpcTrial& trial_;
  TimePoint deadline_ = Now() + trial_.patience;
  Status wrong_;  // Of the first sum that was.
  Status news_;   // What the watch has said.
};

}  // namespace

Result<std::string> TryIpcLink(const IpcTrial& trial) { return Trial(trial).Run(); }

}  // namespace mydist
