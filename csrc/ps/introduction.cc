#include "ps/introduction.h"

#include "base/plugin_version.h"

namespace mydist::ps {
namespace {

std::string ProcessText(const Introduction& of) {
  return std::to_string(of.number) + " (host " + of.host + ", pid " + std::to_string(of.pid) + ")";
}

}  // namespace

std::string WorkerText(const Introduction& worker) { return "rank " + ProcessText(worker); }

std::string ServerText(const Introduction& server) { return "server " + ProcessText(server); }

Failure FailureOf(const Introduction& worker) {
  return {.ranks = {worker.number}, .host = worker.host, .pid = worker.pid};
}

}  // namespace mydist::ps

MYDIST_PLUGIN_VERSION
