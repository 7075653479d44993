// Collectives of Open MPI, timed the same way as mydist.bench times mydist: every rank rewrites its
// tensor, all meet at a barrier, the call is timed on every rank and the slowest rank counts.
//   mpirun -np N openmpi_peer OP TYPE ELEMENTS:ITERATIONS ...
#define _GNU_SOURCE
#include <mpi.h>
#include <stdlib.h>

#include "peer_tensor.h"

static MPI_Datatype MpiTypeOf(PeerType type) {
  switch (type) {
    case kPeerFloat32: return MPI_FLOAT;
    case kPeerFloat64: return MPI_DOUBLE;
    case kPeerInt32: return MPI_INT32_T;
    default: return MPI_INT64_T;
  }
}

static void Call(const PeerProblem* problem, void* input, void* output) {
  const MPI_Datatype type = MpiTypeOf(problem->type);
  const int count = (int)problem->elements;
  const int part = count / problem->ranks;
  const MPI_Comm all = MPI_COMM_WORLD;
  if (PeerIs(problem, "allreduce")) {
    MPI_Allreduce(MPI_IN_PLACE, input, count, type, MPI_SUM, all);
  } else if (PeerIs(problem, "broadcast")) {
    MPI_Bcast(input, count, type, 0, all);
  } else if (PeerIs(problem, "allgather")) {
    MPI_Allgather(input, count, type, output, count, type, all);
  } else if (PeerIs(problem, "alltoall")) {
    MPI_Alltoall(input, part, type, output, part, type, all);
  } else if (PeerIs(problem, "reducescatter")) {
    MPI_Reduce_scatter_block(input, output, part, type, MPI_SUM, all);
  } else {
    MPI_Barrier(all);
  }
}

// Fills times_us[iterations] and costs; 0 when a result was wrong.
static int Measure(const PeerProblem* problem, int iterations, double* times_us, double* costs) {
  const size_t bytes = (size_t)PeerTypeBytes(problem->type);
  void* input = calloc((size_t)problem->elements + 1, bytes);
  void* output = calloc((size_t)PeerOutputElements(problem) + 1, bytes);
  int right = input != NULL && output != NULL;
  for (int i = 0; right && i < kPeerWarmUpCount + iterations; ++i) {
    PeerFill(problem, input, i);
    MPI_Barrier(MPI_COMM_WORLD);
    const PeerCost start = PeerStart();
    Call(problem, input, output);
    const PeerCost cost = PeerStop(start);
    MPI_Barrier(MPI_COMM_WORLD);  // Or who is done first would check while others are still timed.
    right = PeerCheck(problem, PeerIsInPlace(problem) ? input : output, i);
    if (i < kPeerWarmUpCount) continue;
    times_us[i - kPeerWarmUpCount] = cost.time_us;
    costs[0] += cost.cpu_s / problem->ranks;
    costs[1] += cost.switches / problem->ranks;
  }
  free(input);
  free(output);
  return right;
}

static void Report(const PeerProblem* problem, int iterations) {
  double* times_us = calloc((size_t)iterations, sizeof(double));
  double costs[2] = {0, 0};
  if (times_us == NULL || !Measure(problem, iterations, times_us, costs)) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  const int is_root = problem->rank == 0;
  MPI_Reduce(is_root ? MPI_IN_PLACE : times_us, times_us, iterations, MPI_DOUBLE, MPI_MAX, 0,
             MPI_COMM_WORLD);
  MPI_Reduce(is_root ? MPI_IN_PLACE : costs, costs, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (is_root) PeerPrint(problem->elements, costs[0], costs[1], times_us, iterations);
  free(times_us);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  PeerProblem problem = {argc > 1 ? argv[1] : "", PeerTypeOf(argc > 2 ? argv[2] : ""), 0, 0, 1};
  MPI_Comm_rank(MPI_COMM_WORLD, &problem.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &problem.ranks);
  if (argc < 4 || problem.type == kPeerNoType) {
    if (problem.rank == 0) fprintf(stderr, "usage: openmpi_peer OP TYPE ELEMENTS:ITERATIONS ...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  for (int i = 3; i < argc; ++i) {
    int iterations = 0;
    if (sscanf(argv[i], "%ld:%d", &problem.elements, &iterations) != 2 || iterations < 1) {
      MPI_Abort(MPI_COMM_WORLD, 2);
    }
    Report(&problem, iterations);
  }
  MPI_Finalize();
  return 0;
}
