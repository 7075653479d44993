#include "job/job_start.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "controller/tree.h"
#include "job/hello.h"
#include "memory/shm/arena.h"
#include "transport/registry.h"
#include "world/interface_choice.h"

namespace mydist {
namespace {

// How long the other ranks may take to leave after a start that failed on all of them.
constexpr std::chrono::seconds kLeaveGrace{1};

// The ranks that take part, and how they exchange what they know.
struct Seat {
  int rank;
  int size;
  const std::string& asked;  // The backend: must be the same on all ranks.
  const BootstrapExchange& exchange;
};

// How many descriptors each rank opens at least: fewer are an error that names the rank, before
// others wait for its connections. 0 where the backend has connected before, or is not ours.
int64_t FewestFiles(const Seat& seat, const Config& config, const std::vector<Hello>& hellos) {
  const auto is_here = [&](const Hello& hello) { return hello.host == hellos.front().host; };
  const bool is_one_host = std::all_of(hellos.begin(), hellos.end(), is_here);
  const bool may_be_local = seat.asked == "auto" || seat.asked == "local";
  if (seat.size == 1) return 0;
  // A socket for a neighbour, and what wakes the thread. They are opened before the connections.
  const int64_t heartbeats = config.heartbeat_timeout > Duration::zero() ? 2 : 0;
  // The arena, what ends the wait for the death of a peer, and one for each peer.
  if (may_be_local && is_one_host && config.shared_memory) return seat.size + 1 + heartbeats;
  // A port and a connection for each peer.
  if (seat.asked != "auto" && seat.asked != "gloo") return 0;
  return 2 * (seat.size - 1) + 1 + heartbeats;
}

// Fills in what the ranks say of themselves.
Status Meet(const Seat& seat, const Config& config, StartedJob& job) {
  Hello mine =
      MakeHello(config.HostId(), config.Digest() + "MYDIST_CONTROLLER=" + seat.asked + "\n");
  mine.wants_timeline = !config.timeline_path.empty();
  mine.cores = UsableCores::OfThisThread();
  mine.files = OpenFiles::OfThisProcess();
  MYDIST_ASSIGN_OR_RETURN(const std::vector<Bytes> blobs,
                          BootstrapRound(seat.exchange, seat.size, EncodeHello(mine)));
  MYDIST_ASSIGN_OR_RETURN(const std::vector<Hello> hellos, DecodeHellos(blobs));
  MYDIST_RETURN_IF_ERROR(CompareHellos(hellos));
  MYDIST_RETURN_IF_ERROR(CheckOpenFiles(hellos, FewestFiles(seat, config, hellos)));
  MYDIST_ASSIGN_OR_RETURN(job.topology, TopologyOf(seat.rank, hellos));
  job.wants_timeline = hellos.front().wants_timeline;
  job.is_crowded = IsCrowded(hellos, mine.host);
  SetLogRank(job.topology.rank, job.topology.size);
  return Status::Ok();
}

// Of ranks that have met. Collective over all ranks of the job, not only of the host. Why those of
// this host share no memory; empty: they do.
Result<std::string> ShareMemory(const Seat& seat, const Config& config, StartedJob& job) {
  const Topology& topology = job.topology;
  if (!config.shared_memory) return std::string("MYDIST_SHARED_MEMORY is 0");
  if (topology.host_count() == topology.size) {
    job.shares_everywhere = true;
    return std::string("each host has one rank");
  }
  MYDIST_ASSIGN_OR_RETURN(
      shm::Arena::Establishment established,
      shm::Arena::Establish(ArenaOptionsOf(topology, config, job.is_crowded), seat.exchange));
  if (established.arena != nullptr) {
    job.shm = std::make_shared<shm::ShmPort>(std::move(established.arena));
    job.shares_everywhere = established.is_everywhere;
    return std::string();
  }
  if (topology.local_rank == 0) {
    MYDIST_LOG(kWarning) << "the ranks of host "
                         << topology.hosts[static_cast<size_t>(topology.rank)]
                         << " reduce without shared memory, which is slower: "
                         << established.reason;
  }
  return established.reason;
}

Result<std::unique_ptr<Heartbeat>> OpenHeartbeat(const Topology& topology, const Config& config) {
  const bool single_host = topology.host_count() == 1;
  const auto& names = single_host ? std::vector<std::string>() : config.network_interfaces;
  MYDIST_ASSIGN_OR_RETURN(const InterfaceAddress own,
                          OwnAddress(names, single_host, config.meeting_host));
  return Heartbeat::Open(topology.rank,
                         Neighbours(topology, static_cast<int>(config.coordinator_radix)),
                         own.address, config.heartbeat_timeout);
}

Status Watch(const Seat& seat, const Config& config, StartedJob& job) {
  MYDIST_ASSIGN_OR_RETURN(SharedHeartbeat shared,
                          ShareHeartbeats(job.topology, config, seat.exchange));
  job.heartbeat = std::move(shared.heartbeat);
  job.no_heartbeat = std::move(shared.reason);
  return Status::Ok();
}

void LogStart(const StartedJob& job) {
  const Topology& topology = job.topology;
  if (!job.no_heartbeat.ok()) WarnOfNoHeartbeat(job.no_heartbeat);
  if (topology.local_rank != 0) return;
  MYDIST_LOG(kInfo)
      << "the job of " << topology.size << " ranks uses the " << job.backend
      << " backend: " << job.backend_reason << "; the ranks of host "
      << topology.hosts[static_cast<size_t>(topology.rank)] << " negotiate and reduce "
      << (job.shm == nullptr ? "over it" : "through shared memory; " + job.shm->Description())
      << (job.is_crowded
              ? "; a rank that waits yields its core, because the host has fewer cores than ranks"
              : "");
}

Result<Connection> ConnectPlugin(const std::string& name, const InitOptions& options,
                                 const Config& config) {
  MYDIST_ASSIGN_OR_RETURN(BackendPlugin * plugin, LoadPlugin(name));
  MYDIST_LOG(kInfo) << "connecting over " << plugin->Description();
  return plugin->Connect({options.rank, options.size, &config, options.exchange, options.members});
}

// The ranks meet over what they are connected by.
Result<StartedJob> MeetConnected(std::string backend, Connection connection, const Config& config) {
  StartedJob job;
  job.backend = std::move(backend);
  const Seat seat{connection.rank, connection.size, job.backend, connection.exchange};
  Status met = Meet(seat, config, job);
  if (met.ok()) met = ShareMemory(seat, config, job).status();
  if (met.ok()) met = Watch(seat, config, job);
  if (!met.ok() && connection.control != nullptr) {
    // All ranks have compared the same hellos, so all come here: an orderly end leaves the backend
    // usable for another attempt (and lets MPI finalize).
    if (Status closed = connection.control->Close(Now() + kLeaveGrace); !closed.ok()) {
      MYDIST_LOG(kDebug) << "closing after a failed start: " << closed.message();
    }
  }
  MYDIST_RETURN_IF_ERROR(met);
  job.connection = std::move(connection);
  if (job.shm != nullptr) MYDIST_RETURN_IF_ERROR(ShareWithinHost(job.connection, job.shm));
  job.backend_reason =
      job.backend == "local" ? "the job has one rank" : "the job was started with it";
  LogStart(job);
  return job;
}

// The ranks agree: otherwise some would connect and wait for those that cannot.
Result<std::string> AgreeOnNoNetworkReason(const std::string& network, const Seat& seat,
                                           const std::vector<std::string>& hosts) {
  const Result<BackendPlugin*> plugin = LoadPlugin(network);
  const std::string mine = plugin.ok() ? "" : plugin.status().message();
  MYDIST_ASSIGN_OR_RETURN(
      const std::vector<Bytes> blobs,
      BootstrapRound(seat.exchange, seat.size, Bytes(mine.begin(), mine.end())));
  std::vector<std::string> reasons;
  for (const Bytes& blob : blobs) reasons.emplace_back(blob.begin(), blob.end());
  return NoNetworkReason(reasons, hosts);
}

// The transport between ranks that share no memory, if it comes to that.
std::string NetworkFor(const std::string& asked) {
  if (asked != "auto" && asked != "local") return asked;
  std::string missing;  // Not in this build; its reason is reported if no other transport is.
  for (const TransportRow& row : Transports()) {
    if (!row.is_automatic || row.is_local()) continue;
    if (row.not_built.empty()) return row.name;
    if (missing.empty()) missing = row.name;
  }
  return missing;
}

// The ranks meet first and then choose.
Result<StartedJob> MeetAndConnect(const InitOptions& options, const Config& config) {
  if (!options.exchange) {
    return Status::InvalidArgument(
        "a job of " + std::to_string(options.size) +
        " ranks needs a rendezvous and has none. Start it with mydistrun or torchrun, or use MPI");
  }
  const Seat seat{options.rank, options.size, options.backend, options.exchange};
  StartedJob job;
  MYDIST_RETURN_IF_ERROR(Meet(seat, config, job));
  MYDIST_ASSIGN_OR_RETURN(std::string no_arena_reason, ShareMemory(seat, config, job));
  MYDIST_RETURN_IF_ERROR(Watch(seat, config, job));
  BackendFacts facts{.asked = options.backend,
                     .is_one_host = job.topology.host_count() == 1,
                     .no_arena_reason = std::move(no_arena_reason),
                     .network = NetworkFor(options.backend),
                     .no_network_reason = ""};
  if (MayTakeNetwork(facts)) {
    MYDIST_ASSIGN_OR_RETURN(facts.no_network_reason,
                            AgreeOnNoNetworkReason(facts.network, seat, job.topology.hosts));
  }
  MYDIST_ASSIGN_OR_RETURN(BackendChoice choice, ChooseBackend(facts));
  job.backend = std::move(choice.name);
  job.backend_reason = std::move(choice.why);
  if (job.backend == "local") {
    MYDIST_ASSIGN_OR_RETURN(job.connection, ConnectLocal(job.shm, options.exchange));
  } else {
    MYDIST_ASSIGN_OR_RETURN(job.connection, ConnectPlugin(job.backend, options, config));
    if (job.shm != nullptr) MYDIST_RETURN_IF_ERROR(ShareWithinHost(job.connection, job.shm));
  }
  LogStart(job);
  return job;
}

}  // namespace

shm::ArenaOptions ArenaOptionsOf(const Topology& topology, const Config& config, bool is_crowded) {
  shm::ArenaOptions options;
  options.is_crowded = is_crowded;
  options.host = topology.hosts[static_cast<size_t>(topology.rank)];
  for (int rank = 0; rank < topology.size; ++rank) {
    if (topology.hosts[static_cast<size_t>(rank)] == options.host) options.ranks.push_back(rank);
  }
  options.index = topology.local_rank;
  options.control_bytes = LocalControlBytes(topology.local_size);
  options.cross_memory_attach = config.cross_memory_attach;
  return options;
}

std::vector<PulsePeer> Neighbours(const Topology& topology, int radix) {
  const Vertex vertex = MakeVertex(topology.rank, topology.size, radix, topology.hosts);
  std::vector<PulsePeer> neighbours;
  const auto add = [&](int rank) {
    const auto host_of = [&](int one) { return topology.hosts[static_cast<size_t>(one)]; };
    neighbours.push_back({rank, host_of(rank) == host_of(topology.rank)});
  };
  if (!vertex.is_root()) add(vertex.parent);
  for (const Lane& lane : vertex.lanes) {
    if (lane.peer != topology.rank) add(lane.peer);
  }
  return neighbours;
}

Result<SharedHeartbeat> ShareHeartbeats(const Topology& topology, const Config& config,
                                        const BootstrapExchange& exchange, bool takes_part) {
  SharedHeartbeat shared;
  if (config.heartbeat_timeout == Duration::zero() || topology.size == 1) return shared;
  Bytes address;
  if (takes_part) {
    Result<std::unique_ptr<Heartbeat>> opened = OpenHeartbeat(topology, config);
    shared.reason = opened.status();
    if (opened.ok()) {
      shared.heartbeat = std::move(opened).value();
      address = shared.heartbeat->Address();
    }
  }
  MYDIST_ASSIGN_OR_RETURN(const std::vector<Bytes> addresses,
                          BootstrapRound(exchange, topology.size, address));
  if (shared.heartbeat != nullptr) shared.heartbeat->Connect(addresses);
  return shared;
}

Result<StartedJob> StartJob(const InitOptions& options, const Config& config) {
  if (options.backend != "auto") {
    MYDIST_ASSIGN_OR_RETURN(const TransportRow asked, FindTransport(options.backend));
    if (asked.numbers_ranks) {
      MYDIST_ASSIGN_OR_RETURN(Connection connection, ConnectPlugin(asked.name, options, config));
      return MeetConnected(asked.name, std::move(connection), config);
    }
  }
  if (options.size == 1) return MeetConnected("local", ConnectLocal(), config);
  return MeetAndConnect(options, config);
}

namespace {

Result<BackendChoice> ChooseLocal(const BackendFacts& facts) {
  if (!facts.is_one_host) {
    return Status::InvalidArgument(
        "MYDIST_CONTROLLER=local is for jobs of one host, but the ranks are on several hosts; "
        "leave it unset, or use gloo or mpi");
  }
  if (facts.no_arena_reason.empty()) return BackendChoice{"local", "MYDIST_CONTROLLER names it"};
  return Status::Internal(
      "MYDIST_CONTROLLER=local needs shared memory between the ranks, which is unavailable: " +
      facts.no_arena_reason);
}

Status NothingFits(const BackendFacts& facts) {
  const std::string need =
      facts.is_one_host
          ? "the ranks of this host do not share memory (" + facts.no_arena_reason + ")"
          : std::string("ranks on several hosts cannot talk through shared memory");
  return Status::Internal(need + " and " + facts.network + " is unavailable (" +
                          facts.no_network_reason + "). " +
                          (facts.is_one_host ? "Fix shared memory or install " : "Install ") +
                          facts.network + ", or start the job with MPI: mydistrun --mpi");
}

}  // namespace

bool MayTakeNetwork(const BackendFacts& facts) {
  if (facts.asked == "local") return false;
  return facts.asked != "auto" || !facts.is_one_host || !facts.no_arena_reason.empty();
}

std::string NoNetworkReason(const std::vector<std::string>& reasons,
                            const std::vector<std::string>& hosts) {
  const auto lacks = [](const std::string& reason) { return !reason.empty(); };
  const auto first = std::find_if(reasons.begin(), reasons.end(), lacks);
  if (first == reasons.end()) return "";
  if (std::all_of(reasons.begin(), reasons.end(), lacks)) return *first;
  const auto rank = static_cast<size_t>(first - reasons.begin());
  return "rank " + std::to_string(rank) + " (host " + hosts[rank] +
         ") cannot load it, other ranks can; install the same build of mydist on every host: " +
         *first;
}

Result<BackendChoice> ChooseBackend(const BackendFacts& facts) {
  if (facts.asked == "local") return ChooseLocal(facts);
  const bool has_network = facts.no_network_reason.empty();
  if (facts.asked != "auto") {
    if (has_network) return BackendChoice{facts.network, "MYDIST_CONTROLLER names it"};
    return Status::Internal(facts.no_network_reason);
  }
  if (facts.is_one_host && facts.no_arena_reason.empty()) {
    return BackendChoice{"local", "all ranks are on one host and share memory"};
  }
  if (!has_network) return NothingFits(facts);
  if (!facts.is_one_host) return BackendChoice{facts.network, "the ranks are on several hosts"};
  return BackendChoice{facts.network, "the ranks do not share memory: " + facts.no_arena_reason};
}

}  // namespace mydist
