#include "transport/factory.h"

namespace mydist {

Result<std::vector<Bytes>> BootstrapRound(const BootstrapExchange& exchange, int size,
                                          const Bytes& mine) {
  MYDIST_ASSIGN_OR_RETURN(std::vector<Bytes> all, exchange(mine));
  if (all.size() != static_cast<size_t>(size)) {
    return Status::Internal("the rendezvous returned data of " + std::to_string(all.size()) +
                            " ranks, expected " + std::to_string(size) +
                            "; is a rendezvous of another job still running?");
  }
  return all;
}

}  // namespace mydist
