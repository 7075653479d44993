// The MPI backend plugin. MPI itself numbers the ranks; the launcher's figures are compared with
// it, because a process run with the wrong MPI library silently gets a world of size 1.
#include <mpi.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/plugin_version.h"
#include "transport/factory.h"
#include "transport/mpi/mpi_control_plane.h"
#include "transport/mpi/mpi_session.h"
#include "transport/mpi/mpi_transport.h"
#include "transport/mpi/mpi_world.h"

namespace mydist {
namespace {

// "Open MPI v4.1.4" out of the library's paragraph about itself.
std::string LibraryVersion() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "unknown MPI";
  std::string version(text, static_cast<size_t>(std::max(length, 0)));
  version.resize(std::min(version.find_first_of(",\n\r"), version.size()));
  version.resize(std::min(version.find('\0'), version.size()));
  std::replace(version.begin(), version.end(), '\t', ' ');
  constexpr size_t kLongest = 80;
  if (version.size() > kLongest) version.resize(kLongest);
  return version;
}

std::string Identity(int rank, int size) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(size);
}

// For a job of some of the ranks.
Status CheckMember(const BackendOptions& options, const MpiSession& session) {
  const auto rank = static_cast<size_t>(options.rank);
  if (options.members.back() < session.world_size() && rank < options.members.size() &&
      options.members[rank] == session.world_rank()) {
    return Status::Ok();
  }
  return Status::InvalidArgument("the launcher says this is rank " + std::to_string(options.rank) +
                                 " of a job of " + std::to_string(options.members.size()) +
                                 " of the launched ranks, MPI says it was launched as " +
                                 Identity(session.world_rank(), session.world_size()) +
                                 ". Start the job with one mpirun or mydistrun --mpi only.");
}

// Size 0 and rank -1 in the options mean: as MPI says.
Status CheckIdentity(const BackendOptions& options, const MpiSession& session) {
  if (!options.members.empty()) return CheckMember(options, session);
  const bool size_differs = options.size > 0 && options.size != session.world_size();
  const bool rank_differs =
      options.rank >= 0 && options.size > 0 && options.rank != session.world_rank();
  if (!size_differs && !rank_differs) return Status::Ok();
  const std::string cause =
      session.world_size() == 1
          ? "The launcher and mydist probably use different MPI libraries (mydist uses " +
                LibraryVersion() +
                "): start the job with that library's mpirun, or build mydist against the "
                "launcher's."
          : "The job was probably started by two launchers at once, or RANK and WORLD_SIZE are set "
            "in the environment: start it with one mpirun or mydistrun --mpi only.";
  return Status::InvalidArgument(
      "the launcher says this is " + Identity(options.rank, options.size) + ", MPI says it is " +
      Identity(session.world_rank(), session.world_size()) + ". " + cause);
}

class MpiPlugin final : public BackendPlugin {
 public:
  std::string name() const override { return "mpi"; }
  std::string Description() const override { return LibraryVersion(); }

  Result<Connection> Connect(const BackendOptions& options) override {
    const TimePoint deadline = Now() + options.config->connect_timeout;
    MYDIST_ASSIGN_OR_RETURN(MpiSession* const session, MpiSession::Get(deadline));
    MYDIST_RETURN_IF_ERROR(CheckIdentity(options, *session));
    Connection connection;
    const bool is_whole = options.members.empty();
    connection.rank = is_whole ? session->world_rank() : options.rank;
    connection.size = is_whole ? session->world_size() : static_cast<int>(options.members.size());
    if (connection.size == 1) {
      connection.exchange = [](const Bytes& mine) -> Result<std::vector<Bytes>> {
        return std::vector<Bytes>{mine};
      };
      return connection;
    }
    MYDIST_ASSIGN_OR_RETURN(const std::shared_ptr<MpiWorld> world,
                            MpiWorld::Connect(session, options.members, deadline));
    MYDIST_LOG(kInfo) << "connected over " << LibraryVersion() << " as "
                      << Identity(connection.rank, connection.size);
    connection.control = std::make_unique<MpiControlPlane>(world);
    connection.transport = std::make_unique<MpiTransport>(world);
    connection.exchange = [world, patience = options.config->connect_timeout](const Bytes& mine) {
      return world->Gather(mine, Now() + patience);
    };
    return connection;
  }
};

}  // namespace
}  // namespace mydist

MYDIST_PLUGIN_VERSION

extern "C" {

MYDIST_EXPORT mydist::BackendPlugin* mydist_backend_plugin_v1() {
  static auto* plugin = new mydist::MpiPlugin;
  return plugin;
}

// For tests of chunking: the longest piece of a transfer; to be set alike on all ranks.
MYDIST_EXPORT void mydist_mpi_set_chunk_bytes(int64_t chunk_bytes) {
  mydist::MpiTransport::chunk_bytes.store(chunk_bytes);
}

}  // extern "C"
