#include <cstring>
#include <numeric>

#include "algorithms/shm/shm_collectives.h"
#include "base/usable_cores.h"
#include "contender.h"
#include "memory/shm/arena.h"
#include "transport/shm_transport.h"

namespace mydist::bench {
namespace {

std::vector<int> AllOf(int size) {
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// The collectives of the core, called by whoever waits for the result: no engine, no negotiation.
class Mydist final : public Contender {
 public:
  Mydist(std::string name, std::unique_ptr<shm::ShmPort> port, int size,
         std::shared_ptr<float> memory)
      : name_(std::move(name)),
        port_(std::move(port)),
        memory_(std::move(memory)),
        collectives_(port_.get(), AllOf(size)) {}

  std::string name() const override { return name_; }
  float* memory() override { return memory_.get(); }
  Status Allreduce(float* data, int64_t count) override {
    return collectives_.Allreduce(data, count, {DataType::kFloat32, ReduceOp::kSum});
  }
  Status Barrier() override { return collectives_.Barrier(); }

 private:
  const std::string name_;
  const std::unique_ptr<shm::ShmPort> port_;
  const std::shared_ptr<float> memory_;
  shm::ShmCollectives collectives_;
};

Result<std::shared_ptr<float>> Allocate(shm::ShmPort& port, int64_t bytes, bool in_arena) {
  if (!in_arena) return PrivateMemory(bytes);
  const std::shared_ptr<shm::ArenaHeap> heap = port.heap();
  if (heap == nullptr) return Status::Internal("the ranks of this host have no heap in common");
  MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<uint8_t> memory, heap->Allocate(bytes));
  std::memset(memory.get(), 0, static_cast<size_t>(bytes));
  return std::shared_ptr<float>(memory, reinterpret_cast<float*>(memory.get()));
}

Result<std::unique_ptr<shm::ShmPort>> OpenPort(Ranks* ranks) {
  shm::ArenaOptions options;
  options.ranks = AllOf(ranks->size());
  options.index = ranks->rank();
  options.host = "this host";
  options.is_crowded =
      !HaveACoreEach(std::vector(options.ranks.size(), UsableCores::OfThisThread()));
  MYDIST_ASSIGN_OR_RETURN(auto made, shm::Arena::Establish(options, [&](const Bytes& mine) {
                            return ranks->Exchange(mine);
                          }));
  if (made.arena == nullptr) return Status::Internal(made.reason);
  return std::make_unique<shm::ShmPort>(std::move(made.arena));
}

Result<std::unique_ptr<Contender>> Make(Ranks* ranks, int64_t bytes, bool in_arena,
                                        const std::string& name) {
  MYDIST_ASSIGN_OR_RETURN(auto port, OpenPort(ranks));
  MYDIST_ASSIGN_OR_RETURN(auto memory, Allocate(*port, bytes, in_arena));
  return std::unique_ptr<Contender>(
      new Mydist(name, std::move(port), ranks->size(), std::move(memory)));
}

}  // namespace

Entry MakeMydist(Ranks* ranks, int64_t bytes, bool in_arena) {
  const std::string name = in_arena ? "mydist-arena" : "mydist-private";
  auto made = Make(ranks, bytes, in_arena, name);
  if (!made.ok()) return {name, nullptr, made.status().message()};
  return {name, std::move(made).value(), ""};
}

}  // namespace mydist::bench
