#include "backends/factory.h"

#include <gtest/gtest.h>

namespace mydist {
namespace {

TEST(Local, IsAJobOfOneRankWithoutPlanes) {
  const Connection connection = ConnectLocal();
  EXPECT_EQ(connection.rank, 0);
  EXPECT_EQ(connection.size, 1);
  EXPECT_EQ(connection.control, nullptr);
  EXPECT_EQ(connection.transport, nullptr);
}

TEST(Local, ExchangeReturnsOurOwnBlob) {
  const Connection connection = ConnectLocal();
  const auto all = connection.exchange({1, 2, 3});
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(*all, std::vector<Bytes>({{1, 2, 3}}));
}

}  // namespace
}  // namespace mydist
