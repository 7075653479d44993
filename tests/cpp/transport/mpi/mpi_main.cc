// Every rank of an mpirun job runs the same tests in the same order. Exits non-zero when any
// expectation of this rank failed.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
