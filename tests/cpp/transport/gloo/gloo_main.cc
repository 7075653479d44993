// Runs the tests, or, started by one of them with --as-rank, one rank of a job of processes.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "transport/gloo/process_jobs.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  // As Python does, and as the engine's thread does for itself: here a test's own thread exchanges,
  // and writing to a rank that was killed must be an error, not the end of the survivor.
  std::signal(SIGPIPE, SIG_IGN);
  if (argc == 6 && std::string(argv[1]) == "--as-rank") {
    const int rank = std::atoi(argv[3]);
    const int size = std::atoi(argv[4]);
    return mydist::RunScenario(argv[2], rank, size, std::atoi(argv[5]));
  }
  return RUN_ALL_TESTS();
}
