// The goodbyes of an MpiWorld: which ranks have left, why, and what they have told before.
#include <algorithm>
#include <string>
#include <utility>

#include "transport/mpi/mpi_world.h"
#include "world/departure.h"

namespace mydist {

Status MpiWorld::TakeGoodbye(MPI_Message matched, const MPI_Status& envelope) {
  int bytes = 0;
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Get_count(&envelope, MPI_BYTE, &bytes));
  if (bytes < 0 || static_cast<size_t>(bytes) > kMaxFarewellBytes) {
    return Status::Internal(
        "rank " + std::to_string(envelope.MPI_SOURCE) + " sent a goodbye of " +
        std::to_string(bytes) + " bytes, at most " + std::to_string(kMaxFarewellBytes) +
        " are allowed. It runs another version of mydist, or its memory is damaged.");
  }
  std::string why(static_cast<size_t>(bytes), '\0');
  // So short that it is there once it has been matched.
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Mrecv(why.data(), bytes, MPI_BYTE, &matched, MPI_STATUS_IGNORE));
  MutexLock lock(mutex_);
  farewells_[static_cast<size_t>(envelope.MPI_SOURCE)] = std::move(why);
  return Status::Ok();
}

Status MpiWorld::TakeCounts(MPI_Message matched, const MPI_Status& envelope) {
  int count = 0;
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Get_count(&envelope, MPI_BYTE, &count));
  std::vector<uint8_t> bytes(static_cast<size_t>(std::max(count, 0)));
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Mrecv(bytes.data(), count, MPI_BYTE, &matched, MPI_STATUS_IGNORE));
  MYDIST_ASSIGN_OR_RETURN(const TransferCounts::Told told, TransferCounts::Told::Decode(bytes));
  MutexLock lock(mutex_);
  told_[static_cast<size_t>(envelope.MPI_SOURCE)] = told;
  return Status::Ok();
}

Result<std::optional<TransferCounts::Told>> MpiWorld::CountsOf(int peer) {
  int found = 0;
  MPI_Message matched = MPI_MESSAGE_NULL;
  MPI_Status envelope;
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Improbe(peer, kCountsTag, control_, &found, &matched, &envelope));
  if (found != 0) MYDIST_RETURN_IF_ERROR(TakeCounts(matched, envelope));
  MutexLock lock(mutex_);
  return told_[static_cast<size_t>(peer)];
}

Result<bool> MpiWorld::HasSaidGoodbye(int peer) const {
  if (HasDeparted(peer)) return true;
  int found = 0;
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Iprobe(peer, kGoodbyeTag, control_, &found, MPI_STATUS_IGNORE));
  return found != 0;
}

bool MpiWorld::HasDeparted(int peer) const {
  MutexLock lock(mutex_);
  return farewells_[static_cast<size_t>(peer)].has_value();
}

bool MpiWorld::HaveAllLeftInOrder() const {
  MutexLock lock(mutex_);
  return std::all_of(
      farewells_.begin(), farewells_.end(),
      [](const std::optional<std::string>& farewell) { return !farewell || farewell->empty(); });
}

int MpiWorld::departed_count() const {
  MutexLock lock(mutex_);
  return static_cast<int>(std::count_if(
      farewells_.begin(), farewells_.end(),
      [](const std::optional<std::string>& farewell) { return farewell.has_value(); }));
}

Status MpiWorld::HasLeft(int peer) {
  int found = 0;
  MPI_Message matched = MPI_MESSAGE_NULL;
  MPI_Status envelope;
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Improbe(peer, kGoodbyeTag, control_, &found, &matched, &envelope));
  if (found != 0) MYDIST_RETURN_IF_ERROR(TakeGoodbye(matched, envelope));
  MutexLock lock(mutex_);
  const auto index = static_cast<size_t>(peer);
  return PeerHasLeft(peer, names_.empty() ? "rank " + std::to_string(peer) : names_[index],
                     farewells_[index].value_or(""));
}

}  // namespace mydist
