#include "lanes/lane_start.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/log.h"
#include "job/hello.h"
#include "job/job_start.h"
#include "memory/shm/arena.h"
#include "planner/collectives_choice.h"
#include "transport/registry.h"
#include "world/departure.h"

namespace mydist {
namespace {

// Of the slots of all members, and of the rings of each: there may be many groups, and each takes
// no more than 256 KiB for up to four members.
constexpr int64_t kSlotsBytes = int64_t{128} << 10;
constexpr int64_t kRingsBytes = int64_t{16} << 10;
// For messages that were sent and are still on their way.
constexpr std::chrono::seconds kCloseGrace{5};
// For the words of a member that gives up.
constexpr std::chrono::milliseconds kGiveUpGrace{200};

Result<std::vector<Hello>> Meet(const LaneOptions& options, const Config& config) {
  Hello mine = MakeHello(config.HostId(), config.Digest());
  mine.cores = UsableCores::OfThisThread();
  MYDIST_ASSIGN_OR_RETURN(const std::vector<Bytes> blobs,
                          BootstrapRound(options.exchange, options.size, EncodeHello(mine)));
  MYDIST_ASSIGN_OR_RETURN(std::vector<Hello> hellos, DecodeHellos(blobs));
  MYDIST_RETURN_IF_ERROR(CompareHellos(hellos));
  return hellos;
}

shm::ArenaOptions SmallArena(const LaneGround& ground, const std::vector<Hello>& hellos) {
  const std::string& host = ground.topology.hosts[static_cast<size_t>(ground.topology.rank)];
  shm::ArenaOptions options =
      ArenaOptionsOf(ground.topology, ground.config, IsCrowded(hellos, host));
  const auto ranks = static_cast<int64_t>(options.ranks.size());
  options.slot_bytes = std::max<int64_t>(kSlotsBytes / (2 * ranks), 8 << 10);
  options.ring_bytes = std::max<int64_t>(kRingsBytes / ranks, 1 << 10);
  options.is_control_late = true;  // Until the first message.
  options.zone_bytes = 0;
  return options;
}

// Why this rank cannot use a transport, in one line; empty: it can.
std::string ReasonAgainst(const TransportRow& row, const LaneOptions& options,
                          const Config& config) {
  if (row.numbers_ranks && !options.prefers_mpi) return row.name + " has not started the program";
  const Result<BackendPlugin*> plugin = LoadPlugin(row.name);
  const Status prepared = plugin.ok() ? (*plugin)->Prepare(config) : plugin.status();
  std::string reason = prepared.ok() ? "" : prepared.message();
  std::replace(reason.begin(), reason.end(), '\n', ' ');
  return reason;
}

// What connects members that share no memory: the first that all of them can use. They tell each
// other of all, since a rank that lacks what others use would be waited for.
Result<std::string> AgreeOnNetwork(const LaneOptions& options, const LaneGround& ground) {
  std::vector<TransportRow> rows = Transports();
  std::erase_if(rows, [](const TransportRow& row) {
    return row.is_local() || !(row.numbers_ranks || row.is_automatic);
  });
  // MPI first, where it is asked for.
  std::stable_sort(rows.begin(), rows.end(),
                   [](const TransportRow& one, const TransportRow& other) {
                     return one.numbers_ranks && !other.numbers_ranks;
                   });
  std::string mine;  // A line for each.
  for (const TransportRow& row : rows) mine += ReasonAgainst(row, options, ground.config) + "\n";
  MYDIST_ASSIGN_OR_RETURN(
      const std::vector<Bytes> blobs,
      BootstrapRound(options.exchange, options.size, Bytes(mine.begin(), mine.end())));
  std::vector<std::vector<std::string>> reasons(rows.size());  // By row, then by rank.
  for (const Bytes& blob : blobs) {
    std::istringstream lines(std::string(blob.begin(), blob.end()));
    for (std::vector<std::string>& of_row : reasons) std::getline(lines, of_row.emplace_back());
  }
  std::string last;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string reason = NoNetworkReason(reasons[i], ground.topology.hosts);
    if (reason.empty()) return rows[i].name;
    static std::atomic_flag has_told;
    const bool is_asked_for = !rows[i].numbers_ranks || options.prefers_mpi;
    if (options.rank == 0 && is_asked_for && i + 1 < rows.size() && !has_told.test_and_set()) {
      MYDIST_LOG(kWarning) << "group '" << options.name << "' does not use " << rows[i].name << ": "
                           << reason;
    }
    last = reason;
  }
  return Status::Internal("group '" + options.name +
                          "': its ranks share no memory, and nothing else connects them: " + last);
}

// Between members that share no memory.
Result<Connection> ConnectNetwork(const LaneOptions& options, const LaneGround& ground) {
  MYDIST_ASSIGN_OR_RETURN(const std::string name, AgreeOnNetwork(options, ground));
  MYDIST_ASSIGN_OR_RETURN(BackendPlugin * plugin, LoadPlugin(name));
  const auto meeting = static_cast<int>(std::hash<std::string>{}(options.name) & 0x7fff);
  return plugin->Connect({options.rank, options.size, &ground.config, options.exchange,
                          options.WorldRanks(), meeting});
}

Status Connect(const LaneOptions& options, LaneGround& ground, const std::vector<int>& watched) {
  MYDIST_ASSIGN_OR_RETURN(const std::vector<Hello> hellos, Meet(options, ground.config));
  MYDIST_ASSIGN_OR_RETURN(ground.topology, TopologyOf(options.rank, hellos));
  if (ground.config.shared_memory) {
    MYDIST_ASSIGN_OR_RETURN(shm::Arena::Establishment established,
                            shm::Arena::Establish(SmallArena(ground, hellos), options.exchange));
    if (established.arena != nullptr) {
      ground.shm = std::make_shared<shm::ShmPort>(std::move(established.arena));
    }
  }
  // Two ranks that watch each other do so in all groups: both know of it.
  const std::vector<int> world_ranks = options.WorldRanks();
  const auto radix = static_cast<int>(ground.config.coordinator_radix);
  const std::vector<PulsePeer> neighbours = Neighbours(ground.topology, radix);
  const bool takes_part =
      std::any_of(neighbours.begin(), neighbours.end(), [&](const PulsePeer& peer) {
        const int rank = world_ranks[static_cast<size_t>(peer.rank)];
        return std::find(watched.begin(), watched.end(), rank) == watched.end();
      });
  MYDIST_ASSIGN_OR_RETURN(SharedHeartbeat shared, ShareHeartbeats(ground.topology, ground.config,
                                                                  options.exchange, takes_part));
  ground.heartbeat = std::move(shared.heartbeat);
  if (!shared.reason.ok()) WarnOfNoHeartbeat(shared.reason);
  if (ground.topology.host_count() == 1 && ground.shm != nullptr) return Status::Ok();
  MYDIST_ASSIGN_OR_RETURN(ground.connection, ConnectNetwork(options, ground));
  return Status::Ok();
}

}  // namespace

std::vector<int> LaneOptions::WorldRanks() const {
  if (!ranks.empty()) return ranks;
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void LaneGround::SetWatchdog(Watchdog* watchdog) {
  if (connection.transport != nullptr) connection.transport->SetWatchdog(watchdog);
  if (shm != nullptr) shm->SetWatchdog(watchdog);
}

Result<ControlPlane*> LaneGround::OpenPlane() {
  if (connection.control == nullptr) {
    if (shm == nullptr) {
      return Status::InvalidArgument("a group of one rank has no other rank to send to");
    }
    MYDIST_RETURN_IF_ERROR(shm->arena().ReserveControl());
    MYDIST_ASSIGN_OR_RETURN(Connection local, ConnectLocal(shm, nullptr));
    connection.control = std::move(local.control);
  }
  return connection.control.get();
}

std::string LaneGround::Name() const {
  const auto rank = static_cast<size_t>(topology.rank);
  return "rank " + std::to_string(topology.rank) + " of the group (host " + topology.hosts[rank] +
         ", pid " + std::to_string(getpid()) + ")";
}

void LaneGround::GiveUp(const Status& why) {
  if (std::exchange(has_given_up, true)) return;
  const std::string words = FarewellWords(why);
  if (shm != nullptr) shm->Leave(words);
  if (connection.transport == nullptr) return;  // Or the connection is that of this host's ranks.
  connection.control->SetFarewell(words);
  const Status closed = connection.control->Close(Now() + kGiveUpGrace);
  if (!closed.ok()) MYDIST_LOG(kDebug) << "leaving a group: " << closed.message();
}

Status LaneGround::FindGivenUp() const {
  for (int rank = 0; rank < topology.size; ++rank) {
    if (rank == topology.rank) continue;
    const std::optional<int> index = shm == nullptr ? std::nullopt : shm->arena().IndexOf(rank);
    std::string words;
    if (index) {
      words = shm->arena().WhyLeft(*index);
    } else if (connection.control != nullptr) {
      words = connection.control->FarewellOf(rank);
    }
    // Without words it has left in order: it needs nothing from this group any more.
    if (!words.empty()) {
      return PeerHasLeft(rank, "rank " + std::to_string(rank), words, topology.size);
    }
  }
  return Status::Ok();
}

void LaneGround::Close() {
  if (connection.control != nullptr && !(has_given_up && connection.transport != nullptr)) {
    if (Status closed = connection.control->Close(Now() + kCloseGrace); !closed.ok()) {
      MYDIST_LOG(kDebug) << "closing a group: " << closed.message();
    }
  }
  if (shm != nullptr) shm->Leave("");
}

Result<std::unique_ptr<LaneGround>> StartLane(const LaneOptions& options, const Config& config,
                                              const std::vector<int>& watched) {
  auto ground = std::make_unique<LaneGround>();
  ground->config = config;
  if (options.size > 1) {
    MYDIST_RETURN_IF_ERROR(Connect(options, *ground, watched));
  } else {
    MYDIST_ASSIGN_OR_RETURN(ground->topology, MakeTopology(0, {config.HostId()}));
  }
  std::vector<int> ranks(static_cast<size_t>(options.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  ground->choices = CollectivesChoice(&ground->config, &ground->topology, ground->shm.get())
                        .Make(ground->transport(), ranks);
  return ground;
}

}  // namespace mydist
