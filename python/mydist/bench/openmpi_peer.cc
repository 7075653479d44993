// Collectives of Open MPI, measured as peer.h says.
//   mpirun -np N openmpi_peer OP TYPE ELEMENTS:SAMPLES:CALLS ...
#include <mpi.h>

#include "peer.h"

namespace mydist::bench {
namespace {

template <typename T>
MPI_Datatype MpiType() {
  if (std::is_same_v<T, float>) return MPI_FLOAT;
  if (std::is_same_v<T, double>) return MPI_DOUBLE;
  return sizeof(T) == 4 ? MPI_INT32_T : MPI_INT64_T;
}

class OpenMpi final : public Ranks {
 public:
  void Barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

  std::vector<double> Gather(std::vector<double> mine) override {
    int ranks = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    std::vector<double> all(mine.size() * static_cast<size_t>(ranks));
    const int count = static_cast<int>(mine.size());
    MPI_Allgather(mine.data(), count, MPI_DOUBLE, all.data(), count, MPI_DOUBLE, MPI_COMM_WORLD);
    return all;
  }

  template <typename T>
  void Call(const Problem& problem, T* input, T* output) {
    const MPI_Datatype type = MpiType<T>();
    const int count = static_cast<int>(problem.elements);
    const int part = count / problem.ranks;
    const MPI_Comm all = MPI_COMM_WORLD;
    switch (problem.op) {
      case Op::kAllreduce:
        MPI_Allreduce(MPI_IN_PLACE, input, count, type, MPI_SUM, all);
        break;
      case Op::kBroadcast:
        MPI_Bcast(input, count, type, 0, all);
        break;
      case Op::kAllgather:
        MPI_Allgather(input, count, type, output, count, type, all);
        break;
      case Op::kAlltoall:
        MPI_Alltoall(input, part, type, output, part, type, all);
        break;
      case Op::kReducescatter:
        MPI_Reduce_scatter_block(input, output, part, type, MPI_SUM, all);
        break;
      default:
        MPI_Barrier(all);
    }
  }
};

void Run(int argc, char** argv) {
  if (argc < 4) throw std::invalid_argument("expected OP TYPE ELEMENTS:SAMPLES:CALLS ...");
  MPI_Init(&argc, &argv);
  Problem problem{.op = OpOf(argv[1])};
  MPI_Comm_rank(MPI_COMM_WORLD, &problem.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &problem.ranks);
  PinToCore(problem.rank, problem.ranks);
  OpenMpi ranks;
  MeasureTyped(argv[2], "openmpi", ranks, problem, ParseSizes(argc, argv, 3));
  MPI_Finalize();
}

}  // namespace
}  // namespace mydist::bench

int main(int argc, char** argv) {
  return mydist::bench::RunProgram("openmpi_peer", [&] { mydist::bench::Run(argc, argv); });
}
