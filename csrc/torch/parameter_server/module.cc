// The module mydist._ps: the parameter server's client, servers in this process, and its rules.
// Tensors come as addresses and counts: mydist.ps has checked dtype, layout and size.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "config/config.h"
#include "job/job.h"
#include "ps/client.h"
#include "ps/finite.h"
#include "ps/piece.h"
#include "ps/server.h"
#include "torch/error_translation.h"
#include "torch/gil.h"
#include "world/interface_choice.h"

namespace mydist {
namespace {

namespace py = pybind11;

using ps::Client;
using ps::Operation;
using ps::Server;
using ps::TableSpec;

using AddressTuple = std::tuple<int, std::string, uint16_t, std::string>;
using RuleTuple = std::pair<std::string, std::vector<std::pair<std::string, double>>>;

// As long as a wait goes on without a look at Python's signals.
constexpr Duration kSlice = std::chrono::milliseconds(100);

ps::JobKey KeyOf(const std::string& bytes) {
  ps::JobKey key{};
  if (bytes.size() != key.size()) {
    throw StatusError(
        Status::InvalidArgument("the key of a job has " + std::to_string(key.size()) + " bytes"));
  }
  std::copy(bytes.begin(), bytes.end(), key.begin());
  return key;
}

template <typename T>
T* At(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

ps::FrameKind KindOf(const std::string& name) {
  for (const ps::FrameKind kind :
       {ps::FrameKind::kPush, ps::FrameKind::kPull, ps::FrameKind::kPushPull,
        ps::FrameKind::kFinish, ps::FrameKind::kResume, ps::FrameKind::kRemove}) {
    if (ps::FrameKindName(kind) == name) return kind;
  }
  throw StatusError(Status::InvalidArgument("a table cannot do '" + name + "'"));
}

template <typename Enum>
Enum OneOf(const std::string& name, const std::vector<const char*>& names) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw StatusError(Status::InvalidArgument("unknown: '" + name + "'"));
  return static_cast<Enum>(found - names.begin());
}

TableSpec MakeSpec(const std::string& name, int64_t elements, int64_t piece_elements, int64_t rows,
                   int64_t width, const std::tuple<std::string, double, uint64_t>& init,
                   const RuleTuple& rule, const std::string& consistency, int64_t bound,
                   std::vector<int> ranks) {
  TableSpec spec{
      .name = name,
      .elements = elements,
      .piece_elements = piece_elements,
      .rows = rows,
      .width = width,
      .init = {OneOf<ps::RowInit::Kind>(std::get<0>(init), {"zeros", "uniform", "normal"}),
               std::get<1>(init), std::get<2>(init)},
      .rule = {rule.first, rule.second},
      .consistency = OneOf<ps::Consistency>(consistency, {"sync", "ssp", "async"}),
      .bound = bound,
      .ranks = std::move(ranks)};
  ThrowIfError(CheckTableSpec(spec));
  return spec;
}

// A forked child has none of the threads of what its parent holds, and no say in its connections:
// there nothing is destroyed.
struct DeleteInOwnProcess {
  const pid_t owner = getpid();
  template <typename T>
  void operator()(T* object) const {
    if (getpid() == owner) delete object;
  }
};
template <typename T>
using OfProcess = std::unique_ptr<T, DeleteInOwnProcess>;

Config Settings() { return ValueOrThrow(Config::FromEnv()); }

// `one_host`: all ranks of the job run here.
OfProcess<Server> StartServer(int number, bool one_host, const std::string& key) {
  const Config config = Settings();
  const InterfaceAddress own =
      ValueOrThrow(OwnAddress(config.network_interfaces, one_host, config.meeting_host));
  ps::ServerOptions options{.listen = {.server = number,
                                       .host_name = config.HostId(),
                                       .bind = own.address,
                                       .shares_memory = config.shared_memory,
                                       .key = KeyOf(key)},
                            .threads = static_cast<int>(config.ps_threads)};
  return OfProcess<Server>(ValueOrThrow(Server::Start(options)).release());
}

AddressTuple AddressOf(const Server& server) {
  const ps::Address& address = server.address();
  return {address.server, address.host, address.port, address.local};
}

OfProcess<Client> MakeClient(const std::vector<AddressTuple>& servers, const std::string& key,
                             int rank, int64_t pid, uint64_t session) {
  const Config config = Settings();
  ps::ClientOptions options;
  for (const auto& [number, name, port, local] : servers) {
    options.servers.push_back({number, name, port, local});
  }
  ps::LaneOptions& lane = options.lane;
  lane.most_in_flight = static_cast<uint64_t>(config.ps_in_flight_megabytes) << 20;
  lane.connect.key = KeyOf(key);
  lane.connect.self = {rank, pid, config.HostId(), session};
  lane.connect.shares_memory = config.shared_memory;
  lane.connect.window_bytes = lane.most_in_flight;
  lane.connect_time = config.connect_timeout;
  options.is_recording = [] {
    const Result<std::shared_ptr<Job>> job = process::CurrentJob();
    return job.ok() && (*job)->engine().is_recording();
  };
  options.on_span = [](const ps::Span& span) {
    const Result<std::shared_ptr<Job>> job = process::CurrentJob();
    if (!job.ok()) return;
    (*job)->engine().RecordSpan(span.lane, span.name, span.begin, span.duration, span.text);
  };
  options.stall_warning = OrNever(config.stall_warning);
  options.stall_shutdown = OrNever(config.stall_shutdown);
  return OfProcess<Client>(ValueOrThrow(Client::Connect(options)).release());
}

std::shared_ptr<Operation> SubmitRows(Client& client, const std::string& kind, uint32_t table,
                                      uintptr_t rows, size_t count, uintptr_t gradients,
                                      uintptr_t output, int priority) {
  return client.SubmitRows(KindOf(kind), table, {At<const int64_t>(rows), count},
                           At<const float>(gradients), At<float>(output), priority);
}

std::shared_ptr<Operation> SetOptions(Client& client, uint32_t table, const RuleTuple& rule) {
  ByteWriter writer;
  ps::EncodeRuleSpec({rule.first, rule.second}, writer);
  return client.SubmitToAll(ps::FrameKind::kOptions, table, std::move(writer).Take());
}

SetErrorFunction set_python_error = nullptr;

// Blocks until it is over; Python's signals may end the wait, and the operation goes on then.
void Wait(Client& client, const std::shared_ptr<Operation>& operation) {
  ps::Patience patience;
  while (true) {
    {
      const WithoutGil released;
      if (client.Wait(operation, patience, Now() + kSlice)) break;
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  if (operation->status().ok()) return;
  set_python_error(operation->status());  // As RaiseIfError, and why.
  throw py::error_already_set();
}

// The same; when the wait ends early the operation does, too: the caller's memory may be gone then.
void WaitForAll(Client& client, const std::shared_ptr<Operation>& operation) {
  try {
    Wait(client, operation);
  } catch (...) {
    operation->Fail(Status::Aborted("the call was interrupted"));
    throw;
  }
}

void Declare(Client& client, uint32_t table, const TableSpec& spec, int worker, bool creates,
             uintptr_t start) {
  ThrowIfError(client.Open(table, spec, worker));
  const auto kind = creates ? ps::FrameKind::kDeclare : ps::FrameKind::kOpen;
  WaitForAll(client, client.SubmitToAll(kind, table, EncodeTableSpec(spec)));
  if (!creates || start == 0) return;
  WaitForAll(client, client.Submit(ps::FrameKind::kStart, table, At<const float>(start), nullptr));
}

// A dense table in this process, for simulations: workers are numbers, and time is the caller's.
class LocalTable {
 public:
  LocalTable(TableSpec spec, uintptr_t start)
      : spec_(std::move(spec)),
        piece_(spec_, {At<const float>(start), static_cast<size_t>(spec_.elements)}) {}

  // Whether it has been answered: a later push of another worker may do that.
  std::shared_ptr<Operation> Push(int worker, uintptr_t gradient, uintptr_t output) {
    const auto operation = std::make_shared<Operation>("push of table '" + spec_.name + "'", 1);
    ps::Payload payload;
    if (gradient != 0) {
      payload = ps::Payload(
          std::vector<uint8_t>(At<const uint8_t>(gradient), At<const uint8_t>(gradient) + Bytes()));
    }
    piece_.Push(worker, std::move(payload), output != 0, ReplyTo(operation, output));
    return operation;
  }
  std::shared_ptr<Operation> Pull(int worker, uintptr_t output) {
    const auto operation = std::make_shared<Operation>("pull of table '" + spec_.name + "'", 1);
    piece_.Pull(worker, {}, ReplyTo(operation, output));
    return operation;
  }
  void Finish(int worker) { piece_.Finish(worker); }
  void Resume(int worker) { piece_.Resume(worker); }
  void SetOptions(const RuleTuple& rule) {
    ThrowIfError(
        piece_.SetRule(ValueOrThrow(ps::MakeRule({rule.first, rule.second}, spec_.workers()))));
  }

 private:
  size_t Bytes() const { return static_cast<size_t>(spec_.elements) * sizeof(float); }
  ps::OnAnswer ReplyTo(const std::shared_ptr<Operation>& operation, uintptr_t output) const {
    return [operation, output](const ps::Answer& answer) {
      if (!answer.status.ok()) return operation->Fail(answer.status);
      if (output != 0) {
        std::memcpy(At<float>(output), answer.parameters.data(), answer.parameters.size_bytes());
      }
      operation->Complete();
    };
  }

  const TableSpec spec_;
  ps::DensePiece piece_;
};

// Memory that is not touched yet gets pages of 2 MiB where the system has them: to fill it then
// takes 512 times fewer faults.
void TakeLargePages(uintptr_t address, size_t bytes) {
  constexpr uintptr_t kPage = uintptr_t{2} << 20;
  const uintptr_t begin = (address + kPage - 1) / kPage * kPage;
  const uintptr_t end = (address + bytes) / kPage * kPage;
  if (begin < end) static_cast<void>(madvise(At<void>(begin), end - begin, MADV_HUGEPAGE));
}

// Name, default and whether it is required, of each option of each rule.
py::dict Rules() {
  py::dict rules;
  for (const ps::RuleRow& row : ps::RuleRows()) {
    std::vector<std::tuple<std::string, double, bool>> options;
    for (const ps::RuleOption& option : row.options) {
      options.emplace_back(option.name, option.default_value, option.is_required);
    }
    rules[py::str(row.name)] = options;
  }
  return rules;
}

py::dict StatsOf(Client& client) {
  const ps::LaneStats stats = client.stats();
  py::dict result;
  result["sent_bytes"] = stats.sent_bytes;
  result["received_bytes"] = stats.received_bytes;
  result["repeated"] = stats.repeated;
  result["wait_us"] = std::chrono::duration_cast<std::chrono::microseconds>(stats.waited).count();
  return result;
}

py::tuple TableStatsOf(Client& client, uint32_t table) {
  const ps::TableStats stats = client.StatsOf(table);
  return py::make_tuple(stats.pushes, stats.mean_staleness, stats.most_staleness);
}

std::vector<std::tuple<int, int64_t, int64_t>> SharesOf(Client& client, uint32_t table) {
  std::vector<std::tuple<int, int64_t, int64_t>> shares;
  for (const ps::ServerShare& share : client.SharesOf(table)) {
    shares.emplace_back(share.server, share.pieces, share.bytes);
  }
  return shares;
}

std::vector<std::pair<std::string, std::string>> ConnectionsOf(Client& client) {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const std::shared_ptr<ps::Lane>& lane : client.lanes()) {
    texts.emplace_back(lane->server_text(), lane->Text());
  }
  return texts;
}

void Translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const StatusError& error) {
    set_python_error(error.status());
  }
}

}  // namespace
}  // namespace mydist

PYBIND11_MODULE(_ps, module) {
  namespace py = pybind11;
  using namespace mydist;  // NOLINT: a function of registrations.
  // It knows how a Status becomes an exception.
  const py::capsule set_error = py::module_::import("mydist._C").attr(kSetErrorCapsule);
  set_python_error = reinterpret_cast<SetErrorFunction>(set_error.get_pointer());
  py::register_local_exception_translator(&Translate);
  using Free = py::call_guard<py::gil_scoped_release>;
  py::class_<TableSpec>(module, "TableSpec")
      .def(py::init(&MakeSpec), py::kw_only(), py::arg("name"), py::arg("elements"),
           py::arg("piece_elements"), py::arg("rows"), py::arg("width"), py::arg("init"),
           py::arg("rule"), py::arg("consistency"), py::arg("bound"), py::arg("ranks"))
      .def("pieces", &TableSpec::PieceCount);
  py::class_<Operation, std::shared_ptr<Operation>>(module, "Operation")
      .def("is_over", &Operation::is_over)
      .def("check", [](const Operation& operation) { ThrowIfError(operation.status()); });
  py::class_<Server, OfProcess<Server>>(module, "Server")
      .def(py::init(&StartServer), py::arg("number"), py::arg("one_host"), py::arg("key"))
      .def("address", &AddressOf);
  py::class_<Client, OfProcess<Client>>(module, "Client")
      .def(py::init(&MakeClient), py::kw_only(), py::arg("servers"), py::arg("key"),
           py::arg("rank"), py::arg("pid"), py::arg("session"), Free())
      .def("close", &Client::Close, py::arg("has_failed") = false, Free())
      .def("declare", &Declare, py::arg("table"), py::arg("spec"), py::arg("worker"),
           py::arg("creates"), py::arg("start"))
      .def(
          "submit",
          [](Client& client, const std::string& kind, uint32_t table, uintptr_t gradient,
             uintptr_t output, int priority) {
            return client.Submit(KindOf(kind), table, At<const float>(gradient), At<float>(output),
                                 priority);
          },
          py::arg("kind"), py::arg("table"), py::arg("gradient"), py::arg("output"),
          py::arg("priority"), Free())
      .def("submit_rows", &SubmitRows, py::arg("kind"), py::arg("table"), py::arg("rows"),
           py::arg("count"), py::arg("gradients"), py::arg("output"), py::arg("priority"), Free())
      .def(
          "submit_to_all",
          [](Client& client, const std::string& kind, uint32_t table) {
            return client.SubmitToAll(KindOf(kind), table);
          },
          py::arg("kind"), py::arg("table"), Free())
      .def("set_options", &SetOptions, py::arg("table"), py::arg("rule"), Free())
      .def("attend", &Client::Attend)
      .def("wait", &Wait, py::arg("operation"))
      .def("stats", &StatsOf)
      .def("table_stats", &TableStatsOf, py::arg("table"))
      .def("shares", &SharesOf, py::arg("table"))
      .def("connections", &ConnectionsOf);
  py::class_<LocalTable>(module, "LocalTable")
      .def(py::init<TableSpec, uintptr_t>(), py::arg("spec"), py::arg("start"))
      .def("push", &LocalTable::Push, py::arg("worker"), py::arg("gradient"), py::arg("output"))
      .def("pull", &LocalTable::Pull, py::arg("worker"), py::arg("output"))
      .def("finish", &LocalTable::Finish, py::arg("worker"))
      .def("resume", &LocalTable::Resume, py::arg("worker"))
      .def("set_options", &LocalTable::SetOptions, py::arg("rule"));
  module.def("rules", &Rules);
  module.def("server_count", [] { return Settings().servers; });
  module.def("piece_elements", [] {
    return Settings().ps_piece_kilobytes * 1024 / static_cast<int64_t>(sizeof(float));
  });
  module.def(
      "first_not_finite",
      [](uintptr_t values, size_t count) {
        return ps::FirstNotFinite({At<const float>(values), count});
      },
      py::arg("values"), py::arg("count"), Free());
  module.def("take_large_pages", &TakeLargePages, py::arg("address"), py::arg("bytes"));
}
