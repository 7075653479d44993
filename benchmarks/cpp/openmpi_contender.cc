#include <mpi.h>

#include <cstdlib>

#include "contender.h"

namespace mydist::bench {
namespace {

class JobRanks final : public Ranks {
 public:
  JobRanks(int rank, int size) : Ranks(rank, size) {}

  Result<std::vector<Bytes>> Exchange(const Bytes& mine) override {
    const int own = static_cast<int>(mine.size());
    std::vector<int> counts(static_cast<size_t>(size()));
    MPI_Allgather(&own, 1, MPI_INT, counts.data(), 1, MPI_INT, MPI_COMM_WORLD);
    std::vector<int> starts;
    int total = 0;
    for (const int count : counts) {
      starts.push_back(total);
      total += count;
    }
    Bytes joined(static_cast<size_t>(total));
    MPI_Allgatherv(mine.data(), own, MPI_BYTE, joined.data(), counts.data(), starts.data(),
                   MPI_BYTE, MPI_COMM_WORLD);
    std::vector<Bytes> all;
    for (size_t peer = 0; peer < counts.size(); ++peer) {
      const auto begin = joined.begin() + starts[peer];
      all.emplace_back(begin, begin + counts[peer]);
    }
    return all;
  }
  void Barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  int Finish(bool success) override {
    if (!success) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
  }
};

class OpenMpi final : public Contender {
 public:
  explicit OpenMpi(int64_t bytes) : memory_(PrivateMemory(bytes)) {}

  std::string name() const override { return "openmpi"; }
  float* memory() override { return memory_.get(); }
  Status Allreduce(float* data, int64_t count) override {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return Status::Ok();
  }
  Status Barrier() override {
    MPI_Barrier(MPI_COMM_WORLD);
    return Status::Ok();
  }

 private:
  const std::shared_ptr<float> memory_;
};

bool IsStartedByMpirun() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

}  // namespace

std::unique_ptr<Ranks> MpiRanks() {
  if (!IsStartedByMpirun()) return nullptr;
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return std::make_unique<JobRanks>(rank, size);
}

Entry MakeOpenMpi(Ranks*, int64_t bytes) {
  if (!IsStartedByMpirun()) {
    return {"openmpi", nullptr, "start this program with Open MPI's mpirun to measure it, too"};
  }
  return {"openmpi", std::make_unique<OpenMpi>(bytes), ""};
}

}  // namespace mydist::bench
