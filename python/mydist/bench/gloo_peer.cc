// Collectives of libgloo over TCP on the loopback interface, with no torch and no mydist around
// them, measured as peer.h says. Allreduce is the ring algorithm.
//   gloo_peer RANK RANKS STORE_FOLDER OP TYPE ELEMENTS:SAMPLES:CALLS ...     (once per rank)
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>

#include "peer.h"

namespace mydist::bench {
namespace {

class Gloo final : public Ranks {
 public:
  Gloo(const Problem& problem, const char* store_folder)
      : context_(std::make_shared<gloo::rendezvous::Context>(problem.rank, problem.ranks)) {
    gloo::rendezvous::FileStore store(store_folder);
    auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1"));
    context_->connectFullMesh(store, device);
  }

  void Barrier() override {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }

  std::vector<double> Gather(std::vector<double> mine) override {
    std::vector<double> all(mine.size() * static_cast<size_t>(context_->size));
    Allgather(mine.data(), mine.size(), all.data(), all.size());
    return all;
  }

  template <typename T>
  void Call(const Problem& problem, T* input, T* output) {
    const auto count = static_cast<size_t>(problem.elements);
    switch (problem.op) {
      case Op::kAllreduce:
        return Allreduce(input, count);
      case Op::kBroadcast:
        return Broadcast(input, count);
      case Op::kAllgather:
        return Allgather(input, count, output, static_cast<size_t>(problem.OutputElements()));
      case Op::kAlltoall:
        return Alltoall(input, count, output);
      default:
        return Barrier();
    }
  }

 private:
  template <typename T>
  void Allreduce(T* data, size_t count) {
    gloo::AllreduceOptions options(context_);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setOutput(data, count);
    options.setReduceFunction(
        [](void* c, const void* a, const void* b, size_t n) { gloo::sum<T>(c, a, b, n); });
    gloo::allreduce(options);
  }

  template <typename T>
  void Broadcast(T* data, size_t count) {
    gloo::BroadcastOptions options(context_);
    options.setOutput(data, count);
    options.setRoot(0);
    gloo::broadcast(options);
  }

  template <typename T>
  void Allgather(T* input, size_t count, T* output, size_t output_count) {
    gloo::AllgatherOptions options(context_);
    options.setInput(input, count);
    options.setOutput(output, output_count);
    gloo::allgather(options);
  }

  template <typename T>
  void Alltoall(T* input, size_t count, T* output) {
    gloo::AlltoallOptions options(context_);
    options.setInput(input, count);
    options.setOutput(output, count);
    gloo::alltoall(options);
  }

  const std::shared_ptr<gloo::rendezvous::Context> context_;
};

void Run(int argc, char** argv) {
  if (argc < 7) throw std::invalid_argument("expected RANK RANKS STORE OP TYPE SIZES...");
  const Problem problem{
      .op = OpOf(argv[4]), .rank = std::atoi(argv[1]), .ranks = std::atoi(argv[2])};
  Gloo ranks(problem, argv[3]);
  PinToCore(problem.rank, problem.ranks);  // Gloo's own thread has started and is not pinned.
  MeasureTyped(argv[5], "gloo", ranks, problem, ParseSizes(argc, argv, 6));
  ranks.Barrier();
}

}  // namespace
}  // namespace mydist::bench

int main(int argc, char** argv) {
  return mydist::bench::RunProgram("gloo_peer", [&] { mydist::bench::Run(argc, argv); });
}
