#include "algorithms/device/ipc_connect.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "algorithms/device/verdict.h"
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

}  // namespace mydist
