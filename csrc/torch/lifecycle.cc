// init … shutdown and the questions about the job. No torch in here.

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "config/config.h"
#include "engine/flight_dumper.h"
#include "job/build_report.h"
#include "job/extension.h"
#include "job/job.h"
#include "lanes/lane_journal.h"
#include "mydist/build_config.h"
#include "torch/bindings.h"
#include "torch/collective_call.h"
#include "torch/error_translation.h"
#include "torch/gil.h"
#include "torch/gpu_order.h"
#include "torch/in_flight.h"
#include "transport/registry.h"

namespace mydist {

namespace {

namespace py = pybind11;

// The Python callable behind a BootstrapExchange. The engine may keep the function it is wrapped in
// for longer than init() runs, so init() empties this before it returns: what is left is inert and
// can be destroyed without the GIL.
struct PythonExchange {
  py::object callable;
  std::exception_ptr error;  // What the callable raised; raised again by init().

  Result<std::vector<Bytes>> Call(const Bytes& mine) {
    const WithGil gil;
    if (!callable) return Status::Internal("the bootstrap exchange was called after init()");
    try {
      const py::bytes blob(reinterpret_cast<const char*>(mine.data()), mine.size());
      std::vector<Bytes> all;
      for (const std::string& one : callable(blob).cast<std::vector<std::string>>()) {
        all.emplace_back(one.begin(), one.end());
      }
      return all;
    } catch (const std::exception& raised) {
      error = std::current_exception();
      return Status::Internal(std::string("the bootstrap exchange failed: ") + raised.what());
    }
  }
};

// Asks Python whether a signal handler has raised. Called without the GIL.
class InterruptCheck {
 public:
  std::function<bool()> IsWanted() {
    return [this] {
      if (is_interrupted_) return false;  // Python asks for no signals while one has raised.
      const WithGil gil;
      is_interrupted_ = PyErr_CheckSignals() != 0;
      return !is_interrupted_;
    };
  }
  // With the GIL.
  void Rethrow() const {
    if (is_interrupted_) throw py::error_already_set();
  }

 private:
  bool is_interrupted_ = false;
};

void Init(int rank, int size, const std::string& backend, const py::object& exchange,
          std::vector<int> members, std::vector<std::string> nccl_folders, int rank_ends) {
  const auto python_exchange = std::make_shared<PythonExchange>();
  InitOptions options{.rank = rank,
                      .size = size,
                      .backend = backend,
                      .exchange = {},
                      .members = std::move(members),
                      .nccl_folders = std::move(nccl_folders),
                      .rank_ends = rank_ends};
  if (!exchange.is_none()) {
    python_exchange->callable = exchange;
    options.exchange = [python_exchange](const Bytes& mine) { return python_exchange->Call(mine); };
  }
  InterruptCheck check;
  Status status;
  {
    const WithoutGil released;
    status = process::Init(options, check.IsWanted());
  }
  python_exchange->callable = py::object();
  check.Rethrow();
  const std::exception_ptr raised = std::exchange(python_exchange->error, nullptr);
  if (!status.ok() && raised) std::rethrow_exception(raised);
  ThrowIfError(status);
}

void Shutdown(bool awaits_living) {
  const std::shared_ptr<void> tensors = HoldTensorsInFlight();
  InterruptCheck check;
  Status status;
  {
    const WithoutGil released;
    status = process::Shutdown(awaits_living, check.IsWanted());
  }
  if (status.code() == StatusCode::kTimeout) {
    // The collective left behind may still write into them: never freed. The log has the reason.
    new std::shared_ptr<void>(tensors);
    status = Status::Ok();
  }
  check.Rethrow();
  ThrowIfError(status);
}

py::dict ReportOn(const std::string& name, const std::vector<std::string>& nccl_folders) {
  BackendReport report;
  {
    const WithoutGil released;
    report = ReportBackend(name, nccl_folders);
  }
  py::dict row;
  row["name"] = report.name;
  row["built"] = report.built;
  row["available"] = report.available;
  row["reason"] = report.reason;
  row["description"] = report.description;
  return row;
}

int NcclVersion(const std::vector<std::string>& nccl_folders) {
  const WithoutGil released;
  const Result<int> version = FindNcclVersion(nccl_folders);
  return version.ok() ? *version : 0;
}

void AddCounts(const LaneCounts& counts, const std::string& prefix, py::dict& row) {
  const auto add = [&](const char* name, int64_t count) { row[(prefix + name).c_str()] = count; };
  add("operations", counts.operations);
  add("bytes", counts.bytes);
  add("messages_sent", counts.messages_sent);
  add("messages_received", counts.messages_received);
  add("message_bytes", counts.message_bytes);
}

// Of the process groups of torch.distributed, by name.
py::dict GroupStats() {
  py::dict groups;
  for (const auto& page : LaneJournal::Pages()) {
    py::dict row;
    AddCounts(page->counters.counts(), "", row);
    groups[py::str(page->name)] = row;
  }
  return groups;
}

// As the attribute `failure` of a MydistError, with the message; empty: no group has failed.
py::dict LastGroupFailure() {
  const Status status = LaneJournal::LastFailure();
  return status.ok() ? py::dict() : FailureRecord(status);
}

py::dict Stats() {
  const EngineStats stats = ValueOrThrow(process::CurrentJob())->engine().stats();
  py::dict row;
  row["control_messages_sent"] = stats.control_messages_sent;
  row["control_messages_received"] = stats.control_messages_received;
  row["control_bytes_sent"] = stats.control_bytes_sent;
  row["cache_hits"] = stats.cache_hits;
  row["cache_misses"] = stats.cache_misses;
  row["wakeups"] = stats.wakeups;
  row["hand_overs"] = stats.hand_overs;
  row["frozen_steps"] = stats.frozen_steps;
  row["thaws"] = stats.thaws;
  row["host_votes_sent"] = stats.host_votes_sent;
  row["host_votes_received"] = stats.host_votes_received;
  row["batches"] = stats.batches;
  row["tensors"] = stats.tensors;
  row["tensor_bytes"] = stats.tensor_bytes;
  row["inter_host_messages_sent"] = stats.inter_host_messages_sent;
  row["inter_host_bytes_sent"] = stats.inter_host_bytes_sent;
  row["pack_bytes"] = stats.pack_bytes;
  row["most_staged_chunks"] = stats.most_staged_chunks;
  row["strategy_rounds"] = stats.strategy_rounds;
  row["overflows"] = stats.overflows;
  row["wait_us"] = stats.wait_us;
  AddCounts(LaneJournal::ProcessCounts(), "group_", row);
  return row;
}

void BeginRound(const std::string& lane, const std::string& text) {
  ValueOrThrow(process::CurrentJob())->engine().BeginRound(lane, text);
}

void EndRound(const std::string& lane) {
  ValueOrThrow(process::CurrentJob())->engine().EndRound(lane);
}

std::vector<std::tuple<std::string, std::string, std::string>> Explain() {
  std::vector<std::tuple<std::string, std::string, std::string>> rows;
  for (const Fact& fact : ValueOrThrow(process::CurrentJob())->Explain()) {
    rows.emplace_back(fact.topic, fact.choice, fact.reason);
  }
  return rows;
}

// The name of each transport, and whether it brings the numbers of the ranks.
std::vector<std::pair<std::string, bool>> TransportNames() {
  ThrowIfError(ConfigWithExtensions().status());
  std::vector<std::pair<std::string, bool>> names;
  for (const TransportRow& row : Transports()) names.emplace_back(row.name, row.numbers_ranks);
  return names;
}

void SwitchTimeline(const std::function<Status(Engine&)>& change) {
  Status status;
  {
    const WithoutGil released;
    // Let go of here: the end of the last reference waits for the engine.
    const Result<std::shared_ptr<Job>> job = process::CurrentJob();
    status = job.ok() ? change((*job)->engine()) : job.status();
  }
  ThrowIfError(status);
}

void StartTimeline(const std::string& path, bool mark_cycles) {
  SwitchTimeline([&](Engine& engine) { return engine.StartTimeline(path, mark_cycles); });
}

void StopTimeline() {
  SwitchTimeline([](Engine& engine) { return engine.StopTimeline(); });
}

}  // namespace

void BindLifecycle(py::module_& module) {
  py::class_<Topology>(module, "Topology")
      .def_readonly("rank", &Topology::rank)
      .def_readonly("size", &Topology::size)
      .def_readonly("local_rank", &Topology::local_rank)
      .def_readonly("local_size", &Topology::local_size)
      .def_readonly("cross_rank", &Topology::cross_rank)
      .def_readonly("cross_size", &Topology::cross_size)
      .def_readonly("is_homogeneous", &Topology::is_homogeneous)
      .def_readonly("hosts", &Topology::hosts);

  module.def("init", &Init, py::arg("rank"), py::arg("size"), py::arg("backend"),
             py::arg("exchange"), py::arg("members") = std::vector<int>(),
             py::arg("nccl_folders") = std::vector<std::string>(), py::arg("rank_ends") = -1);
  module.def("shutdown", &Shutdown, py::arg("awaits_living") = true);
  module.def("is_initialized", &process::IsInitialized);
  module.def("topology", [] { return ValueOrThrow(process::CurrentJob())->engine().topology(); });
  module.def("backend_name", [] { return ValueOrThrow(process::CurrentJob())->backend(); });
  module.def("backend_report", &ReportOn, py::arg("name"),
             py::arg("nccl_folders") = std::vector<std::string>());
  module.def("transports", &TransportNames);
  module.def("cuda_built", [] { return build_config::kCudaBuilt; });
  module.def("nccl_version", &NcclVersion, py::arg("nccl_folders"));
  module.def("version", [] { return std::string(build_config::kVersion); });
  module.def("start_timeline", &StartTimeline, py::arg("path"), py::arg("mark_cycles"));
  module.def("stop_timeline", &StopTimeline);
  module.def(
      "foresee_shared",
      [](int64_t bytes) { ValueOrThrow(process::CurrentJob())->engine().ForeseeShared(bytes); },
      py::arg("bytes"));
  module.def(
      "check_consistency_steps",
      [](const std::string& text) {
        const auto only_this = [&text](const std::string& name) -> std::optional<std::string> {
          if (name == "MYDIST_CHECK_CONSISTENCY") return text;
          return std::nullopt;
        };
        return ValueOrThrow(Config::From(only_this)).check_consistency_steps;
      },
      py::arg("text"));
  module.def("install_quit_handler", &InstallQuitHandler);
  module.def("note_quit_handler_on_top", &NoteQuitHandlerOnTop);
  module.def("oldest_in_flight", &process::OldestInFlight);
  module.def("own_progress", &OwnProgress);
  module.def("fear_for_peers", &process::FearForPeers);
  module.def("stats", &Stats);
  module.def("group_stats", &GroupStats);
  module.def("last_group_failure", &LastGroupFailure);
  module.def("begin_round", &BeginRound);
  module.def("end_round", &EndRound);
  module.def("explain", &Explain);
}

// Membership: enqueue_* that add and remove process sets, and join.

namespace {

// wait() gives the number of the new set. Which ranks may be in a set is checked in Python.
Handle EnqueueAddProcessSet(std::vector<int32_t> ranks, const std::string& name) {
  CollectiveCall call({.op = OpKind::kAddProcessSet}, 1);
  std::sort(ranks.begin(), ranks.end());
  call.AddSignal(name).request.ranks = std::move(ranks);
  call.ReceiveNumbers();
  return call.Enqueue();
}

Handle EnqueueRemoveProcessSet(int process_set, const std::string& name) {
  CollectiveCall call({.op = OpKind::kRemoveProcessSet, .process_set = process_set}, 1);
  call.AddSignal(name);
  return call.Enqueue();
}

// wait() gives the rank that joined last.
Handle EnqueueJoin() {
  InFlightCall call;
  call.late = std::make_shared<LateOutputs>(0);
  call.gives_numbers = true;
  const auto on_numbers = [late = call.late](const std::vector<int64_t>& numbers) {
    late->numbers = numbers;
  };
  return InFlight::Instance().Keep(
      ValueOrThrow(ValueOrThrow(process::CurrentJob())->engine().Join(on_numbers)),
      std::move(call));
}

}  // namespace

void BindProcessSets(py::module_& module) {
  using py::arg;
  DefineCollective(module, "add_process_set", &EnqueueAddProcessSet, arg("ranks"), arg("name"));
  DefineCollective(module, "remove_process_set", &EnqueueRemoveProcessSet, arg("process_set"),
                   arg("name"));
  module.def("enqueue_join", &EnqueueJoin);
}

}  // namespace mydist

PYBIND11_MODULE(_C, module) {
  const mydist::Status fits =
      mydist::CheckCompiledFor("the binding (mydist._C)", mydist::build_config::kVersion);
  if (!fits.ok()) throw pybind11::import_error(fits.message());
  // The tensor conversions below need torch's own types to be registered.
  pybind11::module_::import("torch");
  mydist::BindErrors(module);
  mydist::BindLifecycle(module);
  mydist::BindCollectives(module);
  mydist::BindProcessSets(module);
  mydist::BindGradientReducer(module);
  mydist::BindAdamw(module);
  mydist::BindCodecs(module);
  mydist::OfferCachedMemory();
}
