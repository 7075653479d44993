// OnEveryRank: runs a test body as N ranks, one thread each, over the loopback backend.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "transport/factory.h"

namespace mydist::testing {

// `body` gets the connection of its rank and may destroy parts of it. Use EXPECT inside, not
// ASSERT: a rank that returns early leaves its peers waiting.
inline void OnEveryRank(int size, const std::function<void(Connection& connection)>& body) {
  std::vector<Connection> connections = ConnectLoopback(size);
  std::vector<std::thread> threads;
  for (Connection& connection : connections) {
    threads.emplace_back([&body, &connection] { body(connection); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace mydist::testing
