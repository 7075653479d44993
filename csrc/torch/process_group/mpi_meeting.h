// MpiMeeting: all ranks of a program that MPI has started, so that they can agree on a store of
// torch. Owned by Python, used by one thread. Collective over all started ranks. Throws
// DistBackendError.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "job/extension.h"
#include "torch/process_group/lane_work.h"
#include "transport/registry.h"
#include "world/interface_choice.h"

namespace mydist {

class MpiMeeting {
 public:
  MpiMeeting(int rank, int size) : config_(ValueOrDistError(ConfigWithExtensions())) {
    connection_ = ValueOrDistError(
        ValueOrDistError(LoadPlugin("mpi"))->Connect({rank, size, &config_, {}, {}, 0}));
  }
  // The bytes of all ranks, by rank.
  std::vector<Bytes> Gather(const Bytes& mine) {
    return ValueOrDistError(connection_.exchange(mine));
  }
  // Numeric, of this host, for the other ranks.
  std::string Address(bool is_one_host) const {
    const auto& names = is_one_host ? std::vector<std::string>() : config_.network_interfaces;
    return ValueOrDistError(OwnAddress(names, is_one_host, config_.meeting_host)).address;
  }
  std::string Host() const { return config_.HostId(); }
  void Close() {
    Status closed;
    if (connection_.control != nullptr) {
      closed = connection_.control->Close(Now() + config_.connect_timeout);
    }
    connection_ = {};
    ThrowIfDistError(closed);
  }

 private:
  const Config config_;
  Connection connection_;
};

}  // namespace mydist
