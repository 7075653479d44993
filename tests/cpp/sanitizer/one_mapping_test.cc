// That ThreadSanitizer sees a race between two ranks of one process in the memory they share.
#include <gtest/gtest.h>

#include <filesystem>

#include "algorithms/shm/shm_ranks.h"

namespace mydist::shm {
namespace {

constexpr int kExitCodeOfTheSanitizer = 66;

void WriteToTheSameBytes() {
  const ShmDirectory directory;
  InMemoryRendezvous rendezvous(2);
  RunAsRanks(2, [&](int rank) {
    const auto port = OpenPort(OptionsOf(rank, 2, directory), rendezvous.ForRank(rank));
    if (port == nullptr) return;
    // By now nothing in it has a name, and the sanitizer ends the process before its destructor.
    if (rank == 0) std::filesystem::remove(directory.path());
    auto* shared = static_cast<volatile uint8_t*>(port->arena().slot(0, 0));
    for (int i = 0; i < 100000; ++i) shared[0] = 1;
  });
}

TEST(OneMapping, ARaceOfTwoRanksIsSeen) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(WriteToTheSameBytes(), ::testing::ExitedWithCode(kExitCodeOfTheSanitizer),
              "data race");
}

}  // namespace
}  // namespace mydist::shm
