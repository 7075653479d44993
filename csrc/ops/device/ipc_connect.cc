#include "ops/device/ipc_connect.h"

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/fixed_text.h"

namespace mydist {
namespace {

// What a rank says of a step. Travels as it lies in memory.
struct IpcRecord {
  IpcHandle handle{};
  int32_t has_failed = 0;
  std::array<char, 188> why{};
};
static_assert(sizeof(IpcRecord) == 256);

IpcRecord RecordOf(const Status& status) {
  IpcRecord record;
  record.has_failed = status.ok() ? 0 : 1;
  PutText(status.message(), record.why);
  return record;
}

std::string WhyNot(const std::vector<IpcRecord>& records) {
  for (size_t rank = 0; rank < records.size(); ++rank) {
    const auto& [handle, has_failed, why] = records[rank];
    if (has_failed == 0) continue;
    return "its rank " + std::to_string(rank) + " cannot share memory of its GPU: " + TextOf(why);
  }
  return "";
}

class Connector {
 public:
  explicit Connector(const DevicePeers& peers) : peers_(peers) {}

  Result<IpcConnection> Run() {
    if (port_ == nullptr) return Refuse(Status::Internal("its device has no such memory"));
    Result<std::string> why = Tell(Prepare());
    if (!why.ok() || !why->empty()) return GiveUp(std::move(why));
    // After an error of this one others may be linked, and write to our board: it is not recycled.
    MYDIST_ASSIGN_OR_RETURN(std::string why_not, Tell(OpenOthers()));
    if (!why_not.empty()) return GiveUp(std::move(why_not));
    return IpcConnection{.link = std::make_shared<IpcLink>(std::move(parts_)), .why_not = ""};
  }

 private:
  // No rank has launched anything, and none will.
  Result<IpcConnection> GiveUp(Result<std::string> why) {
    if (parts_.own.memory != nullptr) port_->Recycle(parts_.own);
    if (!why.ok()) return why.status();
    return IpcConnection{.link = nullptr, .why_not = *std::move(why)};
  }

  Result<IpcConnection> Refuse(const Status& why) {
    MYDIST_ASSIGN_OR_RETURN(std::string text, Tell(why));
    return IpcConnection{.link = nullptr, .why_not = std::move(text)};
  }

  // Gives all ranks what came of the step on each; the first failure, or nothing.
  Result<std::string> Tell(const Status& outcome) {
    IpcRecord own = RecordOf(outcome);
    own.handle = parts_.own.handle;
    records_.resize(static_cast<size_t>(peers_.size));
    const std::vector<int64_t> byte_counts(records_.size(), sizeof(IpcRecord));
    MYDIST_RETURN_IF_ERROR(peers_.exchange->Allgather(&own, records_.data(), byte_counts));
    return WhyNot(records_);
  }

  Status Prepare() {
    parts_ = {.seat = peers_.seat,
              .port = port_,
              .name = peers_.name,
              .rank = peers_.rank,
              .size = peers_.size,
              .own = {},
              .others = {},
              .abort_word = nullptr};
    MYDIST_ASSIGN_OR_RETURN(parts_.abort_word, peers_.seat.device->AllocatePinned(kIpcLineBytes));
    __atomic_store_n(reinterpret_cast<uint32_t*>(parts_.abort_word.get()), 0, __ATOMIC_RELEASE);
    MYDIST_ASSIGN_OR_RETURN(parts_.own, port_->Export());
    return Status::Ok();
  }

  Status OpenOthers() {
    for (int rank = 0; rank < peers_.size; ++rank) {
      auto& opened = parts_.others.emplace_back();
      if (rank == peers_.rank) continue;
      const IpcRecord& record = records_[static_cast<size_t>(rank)];
      MYDIST_ASSIGN_OR_RETURN(opened, port_->Open(record.handle));
    }
    return Status::Ok();
  }

  const DevicePeers& peers_;
  IpcPort* const port_ = peers_.seat.device->ipc_port();
  std::vector<IpcRecord> records_;
  IpcLink::Parts parts_;
};

}  // namespace

Result<IpcConnection> ConnectIpc(const DevicePeers& peers) { return Connector(peers).Run(); }

}  // namespace mydist
