// The module mydist._c10d: what mydist.c10d registers with torch.distributed.

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "job/extension.h"
#include "torch/process_group/lane_backend.h"
#include "transport/registry.h"
#include "world/interface_choice.h"

namespace mydist {
namespace {

// MpiMeeting: all ranks of a program that MPI has started, so that they can agree on a store of
// torch. Owned by Python, used by one thread. Collective over all started ranks. Throws
// DistBackendError.
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

c10::intrusive_ptr<c10d::Backend> OpenGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            std::vector<int> world_ranks, int world_size,
                                            bool prefers_mpi, int rank_ends,
                                            std::chrono::milliseconds timeout,
                                            const std::string& name) {
  const LaneBackend::Members members{rank, std::move(world_ranks), world_size, prefers_mpi,
                                     rank_ends};
  return c10::make_intrusive<LaneBackend>(store, members, timeout, name);
}

std::vector<pybind11::bytes> GatherBytes(MpiMeeting& meeting, const std::string& mine) {
  std::vector<Bytes> gathered;
  {
    const pybind11::gil_scoped_release released;
    gathered = meeting.Gather(Bytes(mine.begin(), mine.end()));
  }
  std::vector<pybind11::bytes> all;
  for (const Bytes& blob : gathered) all.emplace_back(std::string(blob.begin(), blob.end()));
  return all;
}

}  // namespace
}  // namespace mydist

PYBIND11_MODULE(_c10d, module) {
  pybind11::module_::import("torch.distributed");  // Knows Backend and Store.
  module.def("open_group", &mydist::OpenGroup, pybind11::arg("store"), pybind11::arg("rank"),
             pybind11::arg("world_ranks"), pybind11::arg("world_size"),
             pybind11::arg("prefers_mpi"), pybind11::arg("rank_ends"), pybind11::arg("timeout"),
             pybind11::arg("name"), pybind11::call_guard<pybind11::gil_scoped_release>());
  pybind11::class_<mydist::MpiMeeting>(module, "MpiMeeting")
      .def(pybind11::init<int, int>(), pybind11::arg("rank"), pybind11::arg("size"),
           pybind11::call_guard<pybind11::gil_scoped_release>())
      .def("gather", &mydist::GatherBytes)
      .def("address", &mydist::MpiMeeting::Address)
      .def("host", &mydist::MpiMeeting::Host)
      .def("close", &mydist::MpiMeeting::Close,
           pybind11::call_guard<pybind11::gil_scoped_release>());
}
