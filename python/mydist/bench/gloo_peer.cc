// Collectives of libgloo over TCP on the loopback interface, with no torch and no mydist around
// them, timed the same way as mydist.bench times mydist. Allreduce is the ring algorithm.
//   gloo_peer RANK RANKS STORE_FOLDER OP TYPE ELEMENTS:ITERATIONS ...     (once per rank)
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sched.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <vector>

#include "peer_tensor.h"

namespace {

using Context = std::shared_ptr<gloo::rendezvous::Context>;
using Reduce = void (*)(void*, const void*, const void*, size_t);

template <typename T>
void Allreduce(const Context& context, T* data, size_t count, Reduce reduce) {
  gloo::AllreduceOptions options(context);
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setOutput(data, count);
  options.setReduceFunction(reduce);
  gloo::allreduce(options);
}

template <typename T>
void Call(const Context& context, const PeerProblem& problem, T* input, T* output) {
  const auto count = static_cast<size_t>(problem.elements);
  if (PeerIs(&problem, "allreduce")) {
    Allreduce(context, input, count,
              [](void* c, const void* a, const void* b, size_t n) { gloo::sum<T>(c, a, b, n); });
  } else if (PeerIs(&problem, "broadcast")) {
    gloo::BroadcastOptions options(context);
    options.setOutput(input, count);
    options.setRoot(0);
    gloo::broadcast(options);
  } else if (PeerIs(&problem, "allgather")) {
    gloo::AllgatherOptions options(context);
    options.setInput(input, count);
    options.setOutput(output, count * static_cast<size_t>(problem.ranks));
    gloo::allgather(options);
  } else if (PeerIs(&problem, "alltoall")) {
    gloo::AlltoallOptions options(context);
    options.setInput(input, count);
    options.setOutput(output, count);
    gloo::alltoall(options);
  } else {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  }
}

void Barrier(const Context& context) {
  gloo::BarrierOptions options(context);
  gloo::barrier(options);
}

template <typename T>
bool Measure(const Context& context, const PeerProblem& problem, int iterations) {
  std::vector<T> input(static_cast<size_t>(problem.elements) + 1);
  std::vector<T> output(static_cast<size_t>(PeerOutputElements(&problem)) + 1);
  std::vector<double> times_us;
  double costs[2] = {0, 0};
  for (int i = 0; i < kPeerWarmUpCount + iterations; ++i) {
    PeerFill(&problem, input.data(), i);
    Barrier(context);
    const PeerCost start = PeerStart();
    Call(context, problem, input.data(), output.data());
    const PeerCost cost = PeerStop(start);
    Barrier(context);  // Or who is done first would check while others are still timed.
    const T* const got = PeerIsInPlace(&problem) ? input.data() : output.data();
    if (!PeerCheck(&problem, got, i)) return false;
    if (i < kPeerWarmUpCount) continue;
    times_us.push_back(cost.time_us);
    costs[0] += cost.cpu_s / problem.ranks;
    costs[1] += cost.switches / problem.ranks;
  }
  Allreduce(context, times_us.data(), times_us.size(),
            [](void* c, const void* a, const void* b, size_t n) { gloo::max<double>(c, a, b, n); });
  Allreduce(context, costs, 2,
            [](void* c, const void* a, const void* b, size_t n) { gloo::sum<double>(c, a, b, n); });
  if (problem.rank == 0) {
    PeerPrint(problem.elements, costs[0], costs[1], times_us.data(), iterations);
  }
  return true;
}

bool MeasureTyped(const Context& context, const PeerProblem& problem, int iterations) {
  switch (problem.type) {
    case kPeerFloat32: return Measure<float>(context, problem, iterations);
    case kPeerFloat64: return Measure<double>(context, problem, iterations);
    case kPeerInt32: return Measure<int32_t>(context, problem, iterations);
    default: return Measure<int64_t>(context, problem, iterations);
  }
}

// After connecting, so that Gloo's own thread goes where there is room.
void PinToCore(int rank, int ranks) {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0 || ranks > CPU_COUNT(&cores)) return;
  for (int core = 0, seen = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &cores) || seen++ != rank) continue;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    sched_setaffinity(0, sizeof(cores), &cores);
    return;
  }
}

int Run(int argc, char** argv) {
  PeerProblem problem = {argv[4], PeerTypeOf(argv[5]), 0, std::atoi(argv[1]), std::atoi(argv[2])};
  if (problem.type == kPeerNoType) return 2;
  gloo::rendezvous::FileStore store(argv[3]);
  auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1"));
  const auto context = std::make_shared<gloo::rendezvous::Context>(problem.rank, problem.ranks);
  context->connectFullMesh(store, device);
  PinToCore(problem.rank, problem.ranks);
  for (int i = 6; i < argc; ++i) {
    int iterations = 0;
    if (std::sscanf(argv[i], "%ld:%d", &problem.elements, &iterations) != 2 || iterations < 1) {
      return 2;
    }
    if (!MeasureTyped(context, problem, iterations)) return 1;
  }
  Barrier(context);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(stderr, "usage: gloo_peer RANK RANKS STORE OP TYPE ELEMENTS:ITERATIONS ...\n");
    return 2;
  }
  try {
    return Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_peer: %s\n", error.what());
    return 1;
  }
}
