// mydist-server: a parameter server as a program, which mydistrun starts; see decision 0028. It
// ends at SIGTERM, with code 0.

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>

#include "config/config.h"
#include "config/server_start.h"
#include "ps/server.h"

namespace mydist::ps {
namespace {

Result<std::unique_ptr<Server>> StartFrom(const ServerStart& start) {
  MYDIST_ASSIGN_OR_RETURN(const Config config, Config::FromEnv());
  const ServerOptions options{.listen = {.server = start.number,
                                         .host_name = config.HostId(),
                                         .bind = start.bind,
                                         .shares_memory = config.shared_memory,
                                         .key = start.key},
                              .threads = static_cast<int>(config.ps_threads)};
  return Server::Start(options);
}

Status TellAddress(const Address& address, int descriptor) {
  const std::string line = std::to_string(address.server) + " " + address.host + " " +
                           std::to_string(address.port) + " " + address.local + "\n";
  const bool told =
      write(descriptor, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  close(descriptor);
  return told ? Status::Ok() : Status::Internal("mydistrun does not take the server's address");
}

Status Run() {
  // Threads that are started from here on inherit it: the signal is for sigwait alone.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  MYDIST_ASSIGN_OR_RETURN(const ServerStart start, ServerStart::FromEnv());
  MYDIST_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server, StartFrom(start));
  MYDIST_RETURN_IF_ERROR(TellAddress(server->address(), start.address_descriptor));
  int signal = 0;
  sigwait(&ends, &signal);
  return Status::Ok();
}

}  // namespace
}  // namespace mydist::ps

int main() {
  const mydist::Status status = mydist::ps::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "mydist-server: %s\n", status.message().c_str());
  return 1;
}
