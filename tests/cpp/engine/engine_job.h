// A job of N engines in this process, connected by the loopback backend: what tests drive.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "algorithms/device/device_plugin.h"
#include "base/usable_cores.h"
#include "conformance/status_checks.h"
#include "engine/engine.h"
#include "fakes/forwarding.h"
#include "memory/shm/arena.h"
#include "transport/factory.h"
#include "transport/shm_transport.h"
#include "world/topology.h"

namespace mydist {

// One rank of the job, as its caller sees it.
struct EngineRank {
  std::shared_ptr<HandleTable> handles = std::make_shared<HandleTable>();
  std::shared_ptr<Engine> engine;

  int rank() const { return engine->topology().rank; }
  int size() const { return engine->topology().size; }

  // The outcome of what was submitted. Fails the test should it take longer than any sane engine.
  Status Wait(const Result<Handle>& handle) const {
    if (!handle.ok()) return handle.status();
    const auto outcome = engine->Wait(*handle, Now() + std::chrono::seconds(60));
    if (!outcome.ok()) return outcome.status();
    if (!outcome->has_value()) return Status::Internal("the handle did not complete in 60 s");
    return **outcome;
  }

  Result<Handle> Submit(Submission submission, Pace pace = Pace::kNow) const {
    std::vector<Submission> tensors;
    tensors.push_back(std::move(submission));
    return engine->Submit(std::move(tensors), pace);
  }

  Status Run(Submission submission, Pace pace = Pace::kNow) const {
    return Wait(Submit(std::move(submission), pace));
  }
};

struct JobOptions {
  Config config;
  std::vector<std::string> hosts;  // Default: all on one.
  std::string timeline_path;
  // Then no tensor may pass through the backend inside a host.
  bool shares_memory = false;
  std::optional<WaitPolicy> wait_policy{};  // Default: what suits the cores there are.
  // What passes between hosts fails for this rank with kInternal.
  std::optional<int> cut_off{};
  std::function<DevicePlugin*(int rank)> devices{};  // Default: none.
  // What the rank's engine gets in place of its own; default: that.
  std::function<std::unique_ptr<Transport>(int rank, std::unique_ptr<Transport>)> transport{};
  std::function<std::unique_ptr<ControlPlane>(int rank, std::unique_ptr<ControlPlane>)> control{};
};

// Refuses tensors between ranks of one host.
class RefusingTransport final : public testing::ForwardingTransport {
 public:
  RefusingTransport(std::unique_ptr<Transport> inner, std::vector<std::string> hosts)
      : ForwardingTransport(std::move(inner)), hosts_(std::move(hosts)) {}
  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override {
    const auto is_here = [this](const auto& transfer) {
      return hosts_[static_cast<size_t>(transfer.peer)] == hosts_[static_cast<size_t>(rank())];
    };
    if (std::any_of(sends.begin(), sends.end(), is_here) ||
        std::any_of(receives.begin(), receives.end(), is_here)) {
      return Status::Internal("a tensor passed through the backend");
    }
    return ForwardingTransport::Exchange(sends, receives);
  }

 private:
  const std::vector<std::string> hosts_;
};

inline constexpr const char* kCutOffText = "the cable is cut";

class CutOffTransport final : public testing::ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  Status Exchange(std::span<const SendTransfer>, std::span<const ReceiveTransfer>) override {
    return Status::Internal(kCutOffText);
  }
};

class EngineJob {
 public:
  explicit EngineJob(int size, const JobOptions& options = {}) {
    std::vector<Connection> connections;
    if (size == 1) {
      connections.push_back(ConnectLocal());
    } else {
      connections = ConnectLoopback(size);
    }
    const std::vector<std::string> hosts =
        options.hosts.empty() ? std::vector<std::string>(static_cast<size_t>(size), "host-a")
                              : options.hosts;
    std::vector<std::shared_ptr<shm::ShmPort>> ports(static_cast<size_t>(size));
    if (options.shares_memory) ports = ShareMemory(connections, hosts);
    if (options.cut_off) {
      std::unique_ptr<Transport>& transport =
          connections[static_cast<size_t>(*options.cut_off)].transport;
      transport = std::make_unique<CutOffTransport>(std::move(transport));
    }
    for (Connection& connection : connections) {
      if (!options.transport) break;
      connection.transport = options.transport(connection.rank, std::move(connection.transport));
    }
    for (Connection& connection : connections) {
      if (!options.control) break;
      connection.control = options.control(connection.rank, std::move(connection.control));
    }
    for (int r = 0; r < size; ++r) {
      EngineRank& rank = ranks_.emplace_back();
      Config config = options.config;
      config.timeline_path = options.timeline_path;
      rank.engine = *Engine::Start(
          {.config = config,
           .topology = *MakeTopology(r, hosts),
           .connection = std::move(connections[static_cast<size_t>(r)]),
           .handles = rank.handles,
           .shm = std::move(ports[static_cast<size_t>(r)]),
           .shares_everywhere = options.shares_memory,
           .wants_timeline = !options.timeline_path.empty(),
           .devices = options.devices ? options.devices(r) : nullptr,
           .wait_policy = options.wait_policy.value_or(WaitPolicy::For(IsCrowded(hosts.size())))});
    }
  }

  ~EngineJob() { Shutdown(); }

  // Runs `body` as each rank, one thread per rank, and waits for all.
  void OnEveryRank(const std::function<void(EngineRank&)>& body) {
    std::vector<std::thread> threads;
    for (EngineRank& rank : ranks_) threads.emplace_back([&] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  void Shutdown() {
    if (is_shut_down_) return;
    is_shut_down_ = true;
    OnEveryRank([](EngineRank& rank) { rank.engine->Shutdown(); });
  }

  EngineRank& rank(int r) { return ranks_[static_cast<size_t>(r)]; }

 private:
  static bool IsCrowded(size_t rank_count) {
    return !HaveACoreEach(std::vector(rank_count, UsableCores::OfThisThread()));
  }
  static std::vector<std::shared_ptr<shm::ShmPort>> ShareMemory(
      std::vector<Connection>& connections, const std::vector<std::string>& hosts) {
    std::vector<std::shared_ptr<shm::ShmPort>> ports(connections.size());
    std::vector<int> all;
    for (const Connection& connection : connections) all.push_back(connection.rank);
    std::vector<std::thread> threads;
    for (Connection& connection : connections) {
      threads.emplace_back([&] {
        const HostGroups groups = MakeHostGroups(hosts, all, connection.rank);
        shm::ArenaOptions options;
        options.ranks = groups.own_members();
        options.index = groups.place;
        options.is_crowded = IsCrowded(options.ranks.size());
        options.control_bytes = LocalControlBytes(static_cast<int>(options.ranks.size()));
        auto established = shm::Arena::Establish(options, connection.exchange);
        ASSERT_TRUE(established.ok() && established->arena != nullptr);
        auto& port = ports[static_cast<size_t>(connection.rank)];
        port = std::make_shared<shm::ShmPort>(std::move(established->arena));
        ASSERT_TRUE(ShareWithinHost(connection, port).ok());
        connection.transport =
            std::make_unique<RefusingTransport>(std::move(connection.transport), hosts);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return ports;
  }

  std::vector<EngineRank> ranks_;
  bool is_shut_down_ = false;
};

// An in-place allreduce of `data`; the vector must stay where it is.
inline Submission Allreduce(const std::string& name, std::vector<float>* data,
                            ReduceOp op = ReduceOp::kSum) {
  Submission submission;
  submission.request.name = name;
  submission.request.op = OpKind::kAllreduce;
  submission.request.dtype = DataType::kFloat32;
  submission.request.shape = Shape({static_cast<int64_t>(data->size())});
  submission.request.reduce_op = op;
  submission.input = data->data();
  submission.output = data->data();
  return submission;
}

// Allreduces of all tensors of a step at once. Every name has values of its own, and what the
// tensors hold afterwards is checked.
inline void AllreduceStep(const EngineRank& rank, int step, const std::vector<std::string>& names,
                          int64_t count = 5) {
  std::vector<std::vector<float>> data(names.size());
  std::vector<Handle> handles;
  for (size_t i = 0; i < names.size(); ++i) {
    const int own = rank.rank() + step + names[i].front();
    data[i].assign(static_cast<size_t>(count), static_cast<float>(own));
    const Result<Handle> handle = rank.Submit(Allreduce(names[i], &data[i]));
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    handles.push_back(*handle);
  }
  const int size = rank.size();
  for (size_t i = 0; i < names.size(); ++i) {
    const Status status = rank.Wait(handles[i]);
    ASSERT_TRUE(status.ok()) << status.ToString();
    const int sum = size * (step + names[i].front()) + size * (size - 1) / 2;
    ASSERT_EQ(data[i], std::vector<float>(data[i].size(), static_cast<float>(sum))) << names[i];
  }
}

// Returns when the engine's thread has not woken up for a while. Looks are counted and not only the
// time: a process that was stopped in between has seen time pass and nothing else.
inline void AwaitQuiet(const EngineRank& rank, int most_quiet_looks = 100) {
  const TimePoint limit = Now() + std::chrono::seconds(30);
  int64_t wakeups = rank.engine->stats().wakeups;
  for (int quiet_looks = 0; quiet_looks < most_quiet_looks; ++quiet_looks) {
    ASSERT_LT(Now(), limit) << "the engine's thread never rests";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const int64_t seen = rank.engine->stats().wakeups;
    if (seen != wakeups) quiet_looks = 0;
    wakeups = seen;
  }
}

// Adds a process set; `id` gets its number.
inline Status AddSet(const EngineRank& rank, const std::vector<int32_t>& ranks, ProcessSetId* id) {
  Submission submission;
  submission.request.name = "add";
  submission.request.op = OpKind::kAddProcessSet;
  submission.request.shape = Shape({0});
  submission.request.ranks = ranks;
  submission.on_numbers = [id](const std::vector<int64_t>& numbers) {
    *id = static_cast<ProcessSetId>(numbers.at(0));
  };
  return rank.Run(std::move(submission));
}

inline Status RemoveSet(const EngineRank& rank, ProcessSetId set) {
  Submission removal;
  removal.request.name = "remove";
  removal.request.op = OpKind::kRemoveProcessSet;
  removal.request.shape = Shape({0});
  removal.request.process_set = set;
  return rank.Run(std::move(removal));
}

// An op whose output is allocated when its shape is known; `output` gets it.
inline Submission WithOutput(OpKind op, const std::string& name, const Shape& shape,
                             const std::vector<int32_t>& input, std::vector<int32_t>* output) {
  Submission submission;
  submission.request.name = name;
  submission.request.op = op;
  submission.request.dtype = DataType::kInt32;
  submission.request.shape = shape;
  submission.input = input.data();
  submission.allocate = [output](const Shape& result) -> Result<void*> {
    output->assign(static_cast<size_t>(result.ElementCount().value()), -1);
    return static_cast<void*>(output->data());
  };
  return submission;
}

}  // namespace mydist
