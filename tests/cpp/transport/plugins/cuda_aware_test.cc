#include "transport/mpi/cuda_aware.h"

#include <gtest/gtest.h>

namespace mydist {
namespace {

TEST(CudaAware, IsBelievedOfThoseThatAnswerForTheProcess) {
  EXPECT_EQ(CudaAnswerOf("Open MPI v5.0.3"), CudaAnswer::kIsOfNow);
  EXPECT_EQ(CudaAnswerOf("Open MPI v10.1.0"), CudaAnswer::kIsOfNow);
  EXPECT_EQ(CudaAnswerOf("MPICH Version:      4.2.1"), CudaAnswer::kIsOfNow);
  EXPECT_EQ(CudaAnswerOf("Open MPI v4.1.4"), CudaAnswer::kIsOfItsBuild);
  EXPECT_EQ(CudaAnswerOf("Open MPI v3.1.6"), CudaAnswer::kIsOfItsBuild);
  EXPECT_EQ(CudaAnswerOf("MVAPICH2 Version      :2.3.7"), CudaAnswer::kIsUnknown);
  EXPECT_EQ(CudaAnswerOf("unknown MPI"), CudaAnswer::kIsUnknown);
  EXPECT_EQ(CudaAnswerOf(""), CudaAnswer::kIsUnknown);
}

}  // namespace
}  // namespace mydist
