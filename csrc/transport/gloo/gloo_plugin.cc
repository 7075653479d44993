// The Gloo backend plugin: connects a full mesh over TCP; addresses travel through the job's own
// rendezvous (BackendOptions::exchange), never through a Gloo store.
#include <dlfcn.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/plugin_version.h"
#include "gloo/config.h"
#include "gloo/transport/tcp/device.h"
#include "transport/factory.h"
#include "transport/gloo/gloo_transport.h"
#include "transport/gloo/wire.h"
#include "world/interface_choice.h"

namespace mydist {
namespace {

// Strangers may connect while the ranks do: then all of them try again, with other ports.
constexpr int kConnectAttempts = 3;
constexpr std::chrono::seconds kGreetingLimit{5};

Result<std::vector<Place>> GatherPlaces(const BackendOptions& options) {
  Place mine{options.config->HostId(), std::to_string(getpid()), {}};
  if (getrandom(mine.greeting.data(), mine.greeting.size(), 0) !=
      static_cast<ssize_t>(mine.greeting.size())) {
    return Status::Internal("cannot get random bytes from the kernel (getrandom)");
  }
  MYDIST_ASSIGN_OR_RETURN(const std::vector<Bytes> all,
                          BootstrapRound(options.exchange, options.size, EncodePlace(mine)));
  std::vector<Place> places;
  for (const Bytes& each : all) places.push_back(DecodePlace(each));
  return places;
}

bool AllOnOneHost(const std::vector<Place>& places) {
  for (const Place& place : places) {
    if (place.host_id != places.front().host_id) return false;
  }
  return true;
}

Status CheckOptions(const BackendOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return Status::InvalidArgument("Gloo: got rank " + std::to_string(options.rank) + " of " +
                                   std::to_string(options.size) +
                                   ", expected 0 <= rank < size. Does the launcher set both?");
  }
  if (!options.exchange) {
    return Status::InvalidArgument(
        "Gloo needs a rendezvous to find its peers, and this job has none. Start the job with "
        "mydistrun or torchrun, or use MPI.");
  }
  return Status::Ok();
}

// Listens, connects to all peers and greets them.
Result<std::unique_ptr<GlooContext>> ConnectOnce(const BackendOptions& options,
                                                 const std::vector<Place>& places,
                                                 const InterfaceAddress& own, Status* outcome) {
  MYDIST_ASSIGN_OR_RETURN(std::unique_ptr<GlooContext> context,
                          GlooContext::Listen(options.rank, options.size, own.address,
                                              options.config->connect_timeout / kConnectAttempts));
  MYDIST_LOG(kInfo) << "Gloo listens on " << own.address << " (" << own.name
                    << "), with one port for each of " << options.size - 1 << " peer(s)";
  MYDIST_ASSIGN_OR_RETURN(const std::vector<Bytes> addresses,
                          BootstrapRound(options.exchange, options.size, context->Addresses()));
  *outcome = context->Connect(addresses);
  std::vector<Greeting> greetings;
  for (const Place& place : places) greetings.push_back(place.greeting);
  if (outcome->ok()) *outcome = context->Greet(greetings, kGreetingLimit);
  return context;
}

// The outcome of all ranks together; every rank returns the same.
Result<Outcome> AgreeOnOutcome(const BackendOptions& options, const Outcome& mine) {
  MYDIST_ASSIGN_OR_RETURN(const std::vector<Bytes> all,
                          BootstrapRound(options.exchange, options.size, EncodeOutcome(mine)));
  Outcome agreed;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::optional<Outcome> outcome = DecodeOutcome(all[rank]);
    if (!outcome) {
      return Status::VersionMismatch(
          "rank " + std::to_string(rank) +
          " did not report the outcome of its connections. Install the same "
          "version of mydist on all hosts.");
    }
    agreed.may_repeat = agreed.may_repeat && outcome->may_repeat;
    if (!agreed.status.ok()) continue;
    agreed.status = outcome->status.WithContext("on rank " + std::to_string(rank));
  }
  return agreed;
}

// A line for each host: the interface that it uses, and those that it has. A round of its own.
Result<std::string> InterfacesOfHosts(const BackendOptions& options,
                                      const std::vector<Place>& places,
                                      const InterfaceAddress& own) {
  constexpr size_t kMostBytes = 1000;
  const std::string mine = InterfacesText(own).substr(0, kMostBytes);
  MYDIST_ASSIGN_OR_RETURN(
      const std::vector<Bytes> all,
      BootstrapRound(options.exchange, options.size, Bytes(mine.begin(), mine.end())));
  std::string table;
  std::vector<std::string> told;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string& host = places[rank].host_id;
    if (std::find(told.begin(), told.end(), host) != told.end()) continue;
    told.push_back(host);
    const std::string text(all[rank].begin(), all[rank].end());
    table += "\n  host " + host + " uses " + text.substr(0, kMostBytes);
  }
  return table;
}

Result<std::shared_ptr<Mesh>> ConnectMesh(const BackendOptions& options) {
  const TimePoint end = Now() + options.config->connect_timeout;
  MYDIST_ASSIGN_OR_RETURN(const std::vector<Place> places, GatherPlaces(options));
  MYDIST_ASSIGN_OR_RETURN(const InterfaceAddress own,
                          OwnAddress(options.config->network_interfaces, AllOnOneHost(places),
                                     options.config->meeting_host));
  std::vector<std::string> names;
  for (const Place& place : places) names.push_back("host " + place.host_id + ", pid " + place.pid);
  for (int attempt = 1;; ++attempt) {
    Outcome mine;
    MYDIST_ASSIGN_OR_RETURN(std::unique_ptr<GlooContext> context,
                            ConnectOnce(options, places, own, &mine.status));
    mine.may_repeat = attempt < kConnectAttempts && Now() < end &&
                      mine.status.code() != StatusCode::kVersionMismatch;
    MYDIST_ASSIGN_OR_RETURN(const Outcome agreed, AgreeOnOutcome(options, mine));
    if (agreed.status.ok()) return std::make_shared<Mesh>(std::move(context), std::move(names));
    if (!agreed.may_repeat) {
      const Result<std::string> table = InterfacesOfHosts(options, places, own);
      if (!table.ok()) return agreed.status;
      return Status(agreed.status.code(), agreed.status.message() + table.value());
    }
    if (options.rank > 0) continue;
    MYDIST_LOG(kWarning) << "connecting over Gloo failed, all ranks try again: "
                         << agreed.status.message();
  }
}

class GlooPlugin final : public BackendPlugin {
 public:
  std::string name() const override { return "gloo"; }

  std::string Description() const override {
    return "Gloo " + std::to_string(GLOO_VERSION_MAJOR) + "." + std::to_string(GLOO_VERSION_MINOR) +
           "." + std::to_string(GLOO_VERSION_PATCH) + ", TCP";
  }

  Result<Connection> Connect(const BackendOptions& options) override {
    MYDIST_RETURN_IF_ERROR(CheckOptions(options));
    Connection connection;
    connection.rank = options.rank;
    connection.size = options.size;
    if (options.size == 1) {
      connection.exchange = options.exchange;
      return connection;
    }
    try {
      MYDIST_ASSIGN_OR_RETURN(const std::shared_ptr<Mesh> mesh, ConnectMesh(options));
      connection.control = std::make_unique<GlooControlPlane>(mesh);
      connection.transport = std::make_unique<GlooTransport>(mesh);
      // Copied after our own rounds: an exchange may count them.
      connection.exchange = options.exchange;
    } catch (const std::exception& error) {
      return Status::Internal(std::string("connecting over Gloo failed: ") + error.what() +
                              ". Check the limits on threads and open files (ulimit -u, -n).");
    }
    return connection;
  }
};

}  // namespace
}  // namespace mydist

MYDIST_PLUGIN_VERSION

extern "C" {

MYDIST_EXPORT mydist::BackendPlugin* mydist_backend_plugin_v1() {
  static auto* plugin = new mydist::GlooPlugin;
  return plugin;
}

// The file that provides Gloo to this plugin, for the test that it is never torch's private copy.
MYDIST_EXPORT const char* mydist_gloo_symbol_origin(void) {
  Dl_info info{};
  const auto function = &gloo::transport::tcp::CreateDevice;
  if (dladdr(reinterpret_cast<void*>(function), &info) == 0) return "";
  return info.dli_fname;
}

// For tests of chunking: the longest piece of a transfer; to be set alike on all ranks.
MYDIST_EXPORT void mydist_gloo_set_chunk_bytes(int64_t chunk_bytes) {
  mydist::GlooTransport::chunk_bytes.store(chunk_bytes);
}

}  // extern "C"
