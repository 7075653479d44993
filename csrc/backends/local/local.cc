// The backend of a job of one rank: nobody to talk to.
#include "backends/factory.h"

namespace mydist {

Connection ConnectLocal() {
  Connection connection;
  connection.exchange = [](const Bytes& mine) -> Result<std::vector<Bytes>> {
    return std::vector<Bytes>{mine};
  };
  return connection;
}

}  // namespace mydist
