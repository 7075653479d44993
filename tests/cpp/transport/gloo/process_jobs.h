// ProcessJob: a Gloo job with one process per rank, so that ranks can be killed. The test process
// serves the rendezvous over socket pairs. A child runs a named scenario and exits 0 when all of
// its expectations held.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "transport/factory.h"

namespace mydist {

class ProcessJob {
 public:
  // Starts `size` processes that run `scenario`.
  ProcessJob(const std::string& scenario, int size);
  // Kills and reaps what is left.
  ~ProcessJob();
  ProcessJob(const ProcessJob&) = delete;
  ProcessJob& operator=(const ProcessJob&) = delete;

  // One round of the rendezvous: reads a blob from every rank, sends all to all. Also the way for
  // scenarios to tell the test how far they are. Returns the blobs.
  std::vector<Bytes> ServeRound();
  // Reads one blob from one rank only.
  Bytes ReadFrom(int rank);
  void Kill(int rank, int signal);
  // The exit code, or minus the signal; waits.
  int Wait(int rank);

 private:
  std::vector<pid_t> pids_;
  std::vector<int> sockets_;
};

// In the child: runs the scenario; returns the exit code.
int RunScenario(const std::string& name, int rank, int size, int socket);

}  // namespace mydist
